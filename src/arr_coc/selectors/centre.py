"""Keep the cells nearest the picture's centre: photographers put things there."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import best_cells
from arr_coc.types.grid import Cells


class Centre(Selector):
    """The baseline of the centre bias (Tatler, "The central fixation bias in scene viewing", 2007).

    Needs: the grid.
    """

    name = "centre"

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """1 at the centre, 0 in the corners: `[M]`."""
        return 1 - off_centre(selection.grid, selection.candidates)

    def select(self, selection: SelectionInput) -> Choice:
        """The `k` candidates whose middles are nearest; tiles, an overview and frames each by where they lie."""
        return best_cells(selection, self.relevance(selection), "the cells nearest the centre")

    before_encoding = select


def off_centre(grid: Cells, cells: torch.Tensor) -> torch.Tensor:
    """Distance of cells `[M]` from the picture's centre, in half diagonals: `[M]`.

    The picture is measured in the cells of its finest view, which are square or nearly so; no pixels are needed.
    """
    width, height = max(
        ((view.w / (view.area[2] - view.area[0]), view.h / (view.area[3] - view.area[1])) for view in grid.views),
        key=lambda size: size[0] * size[1],
    )
    # 1,000 units to a cell, so that boxes come as whole numbers or close to it
    boxes = grid.boxes(cells, (round(width * 1000), round(height * 1000))).double() / 1000
    across, down = boxes[:, 0::2].mean(1) - width / 2, boxes[:, 1::2].mean(1) - height / 2
    # Rounded, because the borders of tiles carry rounding errors that would break ties between mirrored cells.
    return (2 * (across.square() + down.square()).sqrt() / (width**2 + height**2) ** 0.5 * 1e5).round() / 1e5
