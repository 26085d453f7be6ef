"""Optical flow in torch alone, for devices that OpenCV does not run on: least squares on a pyramid, coarse to fine.

At every level each pixel asks which small step best explains how brightness changed around it (Lucas and Kanade's normal
equations in a window), the frame is read anew at the result, and so on for a few rounds. Where a window holds no structure
the step is zero and what the coarser level said stays.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROUNDS = 5
WINDOW = 9  # px
COARSEST = 12  # px of the shorter side of the smallest level
STEP = 1.0  # px that one round may change a vector by, at most
STEADY = 1e-4  # added to the diagonal of the normal equations: noise in 8-bit frames, squared
SMOOTH = 5  # px over which vectors are averaged after each level, by how much structure they rest on


def vectors(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Vectors `[2, h, w]` (across, down) from each pixel of `start` `[h, w]` to the same point in `end`."""
    first, second = [start.float()[None, None]], [end.float()[None, None]]
    while min(first[-1].shape[2:]) >= 2 * COARSEST:
        for pyramid in (first, second):
            pyramid.append(F.avg_pool2d(_blurred(pyramid[-1], 3), 2, ceil_mode=True))
    found = first[-1].new_zeros(1, 2, *first[-1].shape[2:])
    for here, there in zip(reversed(first), reversed(second), strict=True):
        found = _refined(_grown(found, (int(here.shape[2]), int(here.shape[3]))), here, there)
    return found[0]


def _refined(found: torch.Tensor, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Vectors `[1, 2, h, w]` after a few rounds on one level."""
    across, down = _gradients(here)
    xx, xy, yy = (_blurred(product, WINDOW) for product in (across * across, across * down, down * down))
    determinant = (xx + STEADY) * (yy + STEADY) - xy * xy
    for _ in range(ROUNDS):
        change = _read(there, found) - here
        x, y = _blurred(change * across, WINDOW), _blurred(change * down, WINDOW)
        step = torch.cat([(yy + STEADY) * x - xy * y, (xx + STEADY) * y - xy * x], dim=1) / determinant
        found = found - step.clamp(-STEP, STEP)
    structure = (xx + yy) / 2 + 1e-9
    return _blurred(found * structure, SMOOTH) / _blurred(structure, SMOOTH)


def _read(frame: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """A frame `[1, 1, h, w]` read where each pixel has moved to."""
    height, width = frame.shape[2:]
    x = torch.arange(width, device=frame.device) + moved[:, 0]
    y = torch.arange(height, device=frame.device)[:, None] + moved[:, 1]
    at = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
    return F.grid_sample(frame, at, mode="bilinear", padding_mode="border", align_corners=False)


def _gradients(frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Central differences across and down, `[1, 1, h, w]` each."""
    padded = F.pad(frame, (1, 1, 1, 1), mode="replicate")
    return (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2, (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2


def _blurred(planes: torch.Tensor, width: int) -> torch.Tensor:
    """Planes `[1, C, h, w]` averaged over a window, twice, so that its corners count less; the border is repeated."""
    for _ in range(2):
        padded = F.pad(planes, (width // 2,) * 4, mode="replicate")
        planes = F.avg_pool2d(padded, width, 1)
    return planes


def _grown(found: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Vectors `[1, 2, h, w]` in the pixels of a finer level."""
    if tuple(found.shape[2:]) == size:
        return found
    scale = found.new_tensor([size[1] / found.shape[3], size[0] / found.shape[2]]).view(1, 2, 1, 1)
    return F.interpolate(found, size=size, mode="bilinear", align_corners=False) * scale
