"""Keep evenly spaced cells: what to do when nothing is known, and what to fall back to."""

from __future__ import annotations

import math

import torch

from arr_coc.selectors.base import SelectionInput, Selector
from arr_coc.types.budget import divide
from arr_coc.types.grid import Grid


class Uniform(Selector):
    """Needs: the grid."""

    name = "uniform"

    def select(self, selection: SelectionInput) -> torch.Tensor:
        """Exactly `k` cells spread over the grid at its own aspect ratio; among encoded cells, over those."""
        count = selection.count
        if len(selection.candidates) < selection.grid.n:
            return selection.candidates[spread(len(selection.candidates), count)]
        kept, start = [], 0
        for view, share in zip(
            selection.grid.views, divide(count, [view.n for view in selection.grid.views]), strict=True
        ):
            kept.append(even_cells(view, share) + start)
            start += view.n
        return torch.cat(kept)

    before_encoding = select


def even_cells(grid: Grid, count: int) -> torch.Tensor:
    """`count` cells of `grid`, as evenly spaced as whole cells allow, sorted.

    >>> even_cells(Grid(1, 4, 4), 4).tolist()
    [5, 7, 13, 15]
    """
    cells = []
    for frame, share in enumerate(divide(count, [grid.h * grid.w] * grid.t)):
        if share:
            cells.append(_even_rows(grid, share) + frame * grid.h * grid.w)
    return torch.cat(cells) if cells else torch.zeros(0, dtype=torch.long)


def _even_rows(grid: Grid, count: int) -> torch.Tensor:
    """Rows as far apart as the columns inside them: r rows of about count / r cells, r / h like count / (r w)."""
    rows = min(grid.h, max(math.ceil(count / grid.w), round(math.sqrt(count * grid.h / grid.w))))
    return torch.cat(
        [
            spread(grid.w, share) + int(row) * grid.w
            for row, share in zip(spread(grid.h, rows), divide(count, [grid.w] * rows), strict=True)
        ]
    )


def spread(length: int, count: int) -> torch.Tensor:
    """`count` of `length` places, evenly: the middles of `count` equal parts."""
    return ((torch.arange(count, dtype=torch.float64) + 0.5) * length / max(count, 1)).long()
