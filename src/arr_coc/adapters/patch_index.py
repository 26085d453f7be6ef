"""Indices of the patches of some cells: pixel rows, positions and attention segments, as the Qwen encoders take them.

A cell is a group of `merge` x `merge` patches that the encoder merges into one token. The processor stores a picture's
patches group by group. Everything is computed from the kept cells alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from arr_coc.types.grid import Grid


@dataclass(frozen=True, eq=False)
class PatchIndex:
    """The patches of some cells of several pictures, in the processor's order."""

    rows: torch.Tensor  # [P] into the processor's pixel values
    places: torch.Tensor  # [P, 2] row and column in their picture's patch grid
    sizes: torch.Tensor  # [P, 2] height and width of that grid
    frames: torch.Tensor  # [F] number of patches of each frame that has any
    # For encoders with windows:
    order: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [M] the cells by window
    windows: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [W] patches of each


def index_patches(grids: Sequence[Grid], cells: Sequence[torch.Tensor], merge: int) -> PatchIndex:
    """The patches of `cells[i]` `[M_i]` of each of `grids`."""
    inner = torch.arange(merge * merge)
    rows, places, sizes, frames = [], [], [], []
    start = 0
    for grid, chosen in zip(grids, cells, strict=True):
        rows.append(((chosen + start)[:, None] * merge**2 + inner).flatten())
        corner = grid.thw(chosen)[:, None, 1:] * merge  # [M, 1, 2]
        inside = torch.stack([inner // merge, inner % merge], dim=-1)  # [merge^2, 2]
        places.append((corner + inside).reshape(-1, 2))
        sizes.append(torch.tensor([grid.h * merge, grid.w * merge]).expand(len(chosen) * merge**2, 2))
        frames.append(torch.bincount(chosen // (grid.h * grid.w), minlength=grid.t) * merge**2)
        start += grid.n
    lengths = torch.cat(frames)
    return PatchIndex(torch.cat(rows), torch.cat(places), torch.cat(sizes), lengths[lengths > 0])


def sort_by_window(
    grids: Sequence[Grid], cells: Sequence[torch.Tensor], side: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort cells by the window of `side` x `side` cells that contains them.

    Returns the order `[M]` over all pictures' chosen cells, and the number of cells of each window that has any `[W]`.
    """
    orders, lengths, start = [], [], 0
    for grid, chosen in zip(grids, cells, strict=True):
        frame, row, column = grid.thw(chosen).unbind(-1)
        down, across = -(-grid.h // side), -(-grid.w // side)
        window = (frame * down + row // side) * across + column // side
        orders.append(window.argsort(stable=True) + start)
        lengths.append(torch.bincount(window, minlength=grid.t * down * across))
        start += len(chosen)
    counts = torch.cat(lengths)
    return torch.cat(orders), counts[counts > 0]


def boundaries(lengths: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Cumulative lengths of segments, from 0: `[S]` to `[S + 1]`."""
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return ends.to(device, torch.int32)
