"""Keep cells with something written or drawn in them."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.pixels import area_mean, by_cell
from arr_coc.selectors.ranking import best_cells
from arr_coc.texture import TextureArray
from arr_coc.texture.channels.edges import luma
from arr_coc.types.grid import Grid


class Ink(Selector):
    """The `k` cells of the largest contrast inside: the standard deviation of luma.

    RMS contrast, after Peli, "Contrast in complex images" (1990). Needs: pixels.
    """

    name = "ink"

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Contrast inside each candidate, 0 to 0.5: `[M]`."""
        return by_cell(selection, contrast)

    def select(self, selection: SelectionInput) -> Choice:
        return best_cells(selection, self.relevance(selection), "the cells with most contrast inside")

    before_encoding = select


def contrast(texture: TextureArray, view: Grid) -> torch.Tensor:
    """Standard deviation of luma over each cell of one frame of `view`: `[h, w]`."""
    light = luma(texture).double()
    variance = area_mean(light.square(), view) - area_mean(light, view).square()
    # What rounding leaves of an even cell is no contrast: it must tie with every other even cell.
    return torch.where(variance > 1e-10, variance, 0.0).sqrt()
