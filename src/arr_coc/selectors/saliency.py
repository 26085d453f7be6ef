"""Keep what stands out from its surroundings."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.pixels import area_mean, by_cell
from arr_coc.selectors.ranking import best_cells


class Saliency(Selector):
    """The `k` cells of the largest mean saliency.

    Centre-surround contrast over several scales, after Itti, Koch and Niebur, "A model of saliency-based visual attention
    for rapid scene analysis" (1998), as the texture's channel of that name computes it. Needs: pixels.
    """

    name = "saliency"

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Mean saliency inside each candidate: `[M]`."""
        return by_cell(selection, lambda texture, view: area_mean(texture["saliency"], view))

    def select(self, selection: SelectionInput) -> Choice:
        return best_cells(selection, self.relevance(selection), "the cells that stand out most")

    before_encoding = select
