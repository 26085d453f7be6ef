"""Linear maps along one axis, as matrices in float64: averages with the border repeated, halving, resizing.

What a filter does at a border is worked out once, here, by what it does to each unit vector; kernels and products then need to
know nothing of borders. A matrix whose rows have few entries can be had as those entries (`bands`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


def twice_averaged(length: int, window: int) -> torch.Tensor:
    """`[n, n]`: the mean over a window, taken twice, each time with the border repeated."""
    once = filtered(length, torch.full((window,), 1 / window, dtype=torch.float64))
    return once @ once


def filtered(length: int, taps: torch.Tensor) -> torch.Tensor:
    """`[n, n]`: a filter with an odd number of taps, the border repeated."""
    made = torch.zeros(length, length, dtype=torch.float64)
    rows = torch.arange(length)
    for off, tap in enumerate(taps.double(), start=-(len(taps) // 2)):
        made.index_put_((rows, (rows + off).clamp(0, length - 1)), tap.expand(length), accumulate=True)
    return made


def halved(length: int) -> torch.Tensor:
    """`[ceil(n / 2), n]`: blurred by 3 twice, then the mean of each two; the last of an odd number alone."""
    pairs = F.avg_pool1d(torch.eye(length, dtype=torch.float64)[None], 2, ceil_mode=True)[0].T
    return pairs @ twice_averaged(length, 3)


def resized(length: int, wanted: int) -> torch.Tensor:
    """`[wanted, n]`: bilinear, and where it makes smaller each value an average of all that it stands for."""
    unit = torch.eye(length, dtype=torch.float64)[:, None, None, :]
    return F.interpolate(unit, (1, wanted), mode="bilinear", antialias=True, align_corners=False)[:, 0, 0].T


@dataclass(frozen=True, eq=False)
class Bands:
    """The entries of a matrix near its diagonal: row i has `weights[i, t]` at column `step * i + low + t`."""

    weights: torch.Tensor  # float32 [rows, width]
    low: int

    @property
    def width(self) -> int:
        return int(self.weights.shape[1])


def bands(matrix: torch.Tensor, device: torch.device | str, step: int = 1) -> Bands:
    """A matrix `[m, n]` by its entries around `step * i`."""
    rows, columns = matrix.nonzero(as_tuple=True)
    off = columns - step * rows
    low, high = int(off.min()), int(off.max())
    weights = torch.zeros(len(matrix), high - low + 1)
    weights[rows, off - low] = matrix[rows, columns].float()
    return Bands(weights.to(device).contiguous(), low)
