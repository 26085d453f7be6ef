"""Kept cells, their heat and grids as text and numbers, for a file."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from arr_coc.types.grid import Cells, Grid, Mosaic

LEVELS = 255  # that heat is told in


def packed(keep: torch.Tensor, n: int) -> str:
    """Cell numbers `[K]` of `n` as text, one bit a cell."""
    bits = np.zeros(n, np.uint8)
    bits[keep.numpy()] = 1
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def unpacked(text: str, n: int) -> torch.Tensor:
    """The way back from `packed`.

    >>> unpacked(packed(torch.tensor([0, 9]), 12), 12).tolist()
    [0, 9]
    """
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:n]
    return torch.from_numpy(bits.nonzero()[0])


def pressed(heat: torch.Tensor) -> str:
    """Values `[N]` as text, from the least to the largest in 256 steps, which are finer for small ones."""
    values = heat.detach().double().cpu().numpy()
    low, high = float(values.min()), float(values.max())
    shares = (values - low) / (high - low) if high > low else np.zeros_like(values)
    steps = np.round(np.sqrt(shares) * LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode()


def released(text: str) -> torch.Tensor:
    """The way back from `pressed`, in [0, 1].

    >>> released(pressed(torch.tensor([2.0, 7.0, 3.0]))).tolist()[:2]
    [0.0, 1.0]
    """
    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return (torch.from_numpy(steps.astype(np.float32)) / LEVELS).square()


def views(grid: Cells) -> list[list[float]]:
    """A grid as numbers."""
    return [[view.t, view.h, view.w, *view.area] for view in grid.views]


def from_views(numbers: Sequence[Sequence[float]]) -> Cells:
    """The way back from `views`."""
    grids = tuple(Grid(int(t), int(h), int(w), tuple(area)) for t, h, w, *area in numbers)  # type: ignore[arg-type]
    return grids[0] if len(grids) == 1 else Mosaic(grids)
