"""Position: where a pixel is, in image coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.texture import filters
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray


def centres(count: int, device: torch.device) -> torch.Tensor:
    """Pixel centres along one axis, in [0, 1]: `[count]`."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


@channel("x", family="position", cost="free", meaning="pixel centre from left (0) to right (1)")
def x(texture: TextureArray) -> torch.Tensor:
    return centres(texture.size[1], texture.device).to(texture.dtype).expand(texture.size)


@channel("y", family="position", cost="free", meaning="pixel centre from top (0) to bottom (1)")
def y(texture: TextureArray) -> torch.Tensor:
    return centres(texture.size[0], texture.device).to(texture.dtype)[:, None].expand(texture.size)


@channel(
    "eccentricity", family="position", cost="cheap", meaning="distance to the image's centre, 1 at the corner pixels"
)
def eccentricity(texture: TextureArray) -> torch.Tensor:
    height, width = texture.size
    farthest = ((height - 1) ** 2 + (width - 1) ** 2) ** 0.5 / 2
    if farthest == 0:
        return texture.constant(0.0)
    across = (centres(width, texture.device) - 0.5) * (width / farthest)
    down = (centres(height, texture.device) - 0.5) * (height / farthest)
    return filters.magnitude(across.expand(height, width), down[:, None].expand(height, width)).clamp_(max=1)
