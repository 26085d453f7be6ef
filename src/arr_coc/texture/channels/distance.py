"""Distance to the nearest edge: 0 on edges, large in empty regions that can be skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import torch

from arr_coc.texture.channels.edges import gradient
from arr_coc.texture.kernels import planes as kernels
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

IS_EDGE = 0.1  # of m: a step of a tenth of the range from black to white


@channel(
    "distance",
    family="distance",
    cost="moderate",
    meaning="distance to the nearest edge over half the diagonal; 1 where there is none",
)
def distance(texture: TextureArray) -> torch.Tensor:
    made = kernels.distance_plane(texture)
    if made is not None:
        return made
    edge = gradient(texture)[2] > IS_EDGE
    if not bool(edge.any()):
        return texture.constant(1.0)
    height, width = texture.size
    half_diagonal = (height**2 + width**2) ** 0.5 / 2
    return distance_to(edge).div_(half_diagonal).clamp_(max=1)


def distance_to(mask: torch.Tensor) -> torch.Tensor:
    """Pixels to the nearest True of a bool `[H, W]` with at least one: exact on the CPU, jump flooding elsewhere."""
    if mask.device.type == "cpu":
        outside = (~mask).to(torch.uint8).numpy()
        length = torch.from_numpy(cv2.distanceTransform(outside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE))
        # OpenCV's last bit depends on where in memory the array lies. Squared distances are whole numbers: that mends it.
        return length.square_().round_().sqrt_()
    return jump_flooding(mask)


def jump_flooding(mask: torch.Tensor) -> torch.Tensor:
    """Each pixel asks ever nearer neighbours for their nearest edge; wrong by a pixel or two in rare corners."""
    height, width = mask.shape
    rows = torch.arange(height, device=mask.device, dtype=torch.float32)[:, None].expand(height, width)
    columns = torch.arange(width, device=mask.device, dtype=torch.float32).expand(height, width)
    far = float(4 * (height + width))
    seed = torch.stack([torch.where(mask, rows, far), torch.where(mask, columns, far)])  # [2, H, W], nearest edge known
    best = (seed[0] - rows) ** 2 + (seed[1] - columns) ** 2
    step = 1 << (max(height, width) - 1).bit_length()
    # A pass with step 1 before the descent removes most of the errors of the plain scheme.
    for reach in [1, *(step >> k for k in range(1, step.bit_length()))]:
        for down in (-reach, 0, reach):
            for across in (-reach, 0, reach):
                if (down, across) == (0, 0) or abs(down) >= height or abs(across) >= width:
                    continue
                here = (slice(max(0, -down), height - max(0, down)), slice(max(0, -across), width - max(0, across)))
                there = (slice(max(0, down), height - max(0, -down)), slice(max(0, across), width - max(0, -across)))
                offered = seed[:, there[0], there[1]].clone()
                length = (offered[0] - rows[here]) ** 2 + (offered[1] - columns[here]) ** 2
                nearer = length < best[here]
                best[here] = torch.where(nearer, length, best[here])
                seed[:, here[0], here[1]] = torch.where(nearer, offered, seed[:, here[0], here[1]])
    return best.sqrt()
