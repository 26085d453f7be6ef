"""Where an answer stands: groups of boxes on a picture, or on the frames of a video."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from arr_coc.types.grid import Cells, Grid

Box = Sequence[float]  # x0, y0, x1, y1 in pixels; for a video a fifth number may say which frame, from 0
Evidence = Sequence[Sequence[Box]]  # groups: within one all boxes are needed, any one group suffices
Placed = tuple[tuple[float, float, float, float], int]  # a box, and the moment of the grid that it is at


def by_moment(evidence: Evidence, grid: Cells, frames: int = 1) -> list[list[Placed]]:
    """The groups with each box at its moment of the grid, which may hold several of a video's `frames`.

    A box that names no frame is there all the time, and any moment of it suffices: its group becomes one for each moment.

    >>> by_moment([[(0, 0, 8, 8, 3)], [(4, 4, 9, 9)]], Grid(2, 1, 1), frames=4)
    [[((0, 0, 8, 8), 1)], [((4, 4, 9, 9), 0)], [((4, 4, 9, 9), 1)]]
    """
    moments = grid.t if isinstance(grid, Grid) else 1
    together = -(-frames // moments)  # frames that one moment holds
    found = []
    for group in evidence:
        placed: list[Placed] = [
            (_sides(box), min(int(box[4]) // together, moments - 1)) for box in group if len(box) > 4
        ]
        always = [_sides(box) for box in group if len(box) == 4]
        for moment in range(moments) if always else (0,):
            found.append([*placed, *((box, moment) for box in always)])
    return found


def moments_of(grid: Cells) -> torch.Tensor:
    """The moment `[N]` of each cell: 0 everywhere on a picture, tiles and overviews included."""
    cells = torch.arange(grid.n)
    return cells // (grid.h * grid.w) if isinstance(grid, Grid) else torch.zeros_like(cells)


def _sides(box: Box) -> tuple[float, float, float, float]:
    return box[0], box[1], box[2], box[3]
