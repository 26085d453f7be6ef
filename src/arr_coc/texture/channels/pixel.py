"""Colour and position: what a single pixel is, and where it is in the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.texture import filters
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray


def _register_colour(number: int, name: str) -> None:
    @channel(name, family="colour", cost="free", meaning=f"{name} of the image")
    def colour(texture: TextureArray) -> torch.Tensor:
        return texture.pixels[number]


for _number, _name in enumerate(("red", "green", "blue")):
    _register_colour(_number, _name)


def pixel_centres(count: int, device: torch.device) -> torch.Tensor:
    """Pixel centres along one axis, in [0, 1]: `[count]`."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


@channel("x", family="position", cost="free", meaning="pixel centre from left (0) to right (1)")
def x(texture: TextureArray) -> torch.Tensor:
    return pixel_centres(texture.size[1], texture.device).to(texture.dtype).expand(texture.size)


@channel("y", family="position", cost="free", meaning="pixel centre from top (0) to bottom (1)")
def y(texture: TextureArray) -> torch.Tensor:
    return pixel_centres(texture.size[0], texture.device).to(texture.dtype)[:, None].expand(texture.size)


@channel(
    "eccentricity", family="position", cost="cheap", meaning="distance to the image's centre, 1 at the corner pixels"
)
def eccentricity(texture: TextureArray) -> torch.Tensor:
    height, width = texture.size
    farthest = ((height - 1) ** 2 + (width - 1) ** 2) ** 0.5 / 2
    if farthest == 0:
        return texture.constant(0.0)
    across = (pixel_centres(width, texture.device) - 0.5) * (width / farthest)
    down = (pixel_centres(height, texture.device) - 0.5) * (height / farthest)
    return filters.magnitude(across.expand(height, width), down[:, None].expand(height, width)).clamp_(max=1)
