"""HiPrune: anchors from a middle encoder layer, their neighbours, and the rest by late attention."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import encoder_attention, relevance_map, top_k
from arr_coc.types.grid import Cells

MIDDLE, LAST = 0.375, 1.0  # encoder depths
ANCHOR_SHARE = 0.1  # of the budget, for anchors and their neighbours together


class HiPrune(Selector):
    """Anchors by attention received in a middle layer, their four neighbours, and the rest by that of the last layer.

    A tenth of the budget is for anchors and neighbours together; there is at least one anchor. "HiPrune: Training-Free
    Visual Token Pruning via Hierarchical Attention in Vision-Language Models" (2025). Needs: the grid and attention.
    Neighbours lie in the same view and frame: rows do not wrap around.
    """

    name = "hiprune"
    sets_budget = False
    attention_at = (MIDDLE, LAST)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received in the last layer, as a multiple of the mean: `[M]`."""
        return encoder_attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        late, count = self.relevance(selection), selection.count
        anchors = top_k(encoder_attention(selection, MIDDLE), min(count, max(1, round(ANCHOR_SHARE * count / 5))))
        index = torch.full((selection.grid.n + 1,), -1)  # cell to candidate; the last entry is for -1, no cell
        index[selection.candidates] = torch.arange(len(late))
        around = index[neighbours(selection.grid)[selection.candidates[anchors]]].flatten()  # strongest anchors first
        order = torch.cat([anchors, around[around >= 0], top_k(late, len(late))])  # candidates may repeat
        first = torch.full((len(late),), len(order)).scatter_reduce(0, order, torch.arange(len(order)), "amin")
        return Choice(
            selection.candidates[first.argsort()[:count]].sort().values,
            relevance=relevance_map(selection, late),
            strategy="anchors half-way, their neighbours, then late attention",
        )


def neighbours(grid: Cells) -> torch.Tensor:
    """The cells above, below, left and right of each: `[N, 4]`, -1 where there is none in its view and frame.

    >>> from arr_coc.types.grid import Grid
    >>> neighbours(Grid(1, 2, 2)).tolist()
    [[-1, 2, -1, 1], [-1, 3, 0, -1], [0, -1, -1, 3], [1, -1, 2, -1]]
    """
    parts, start = [], 0
    for view in grid.views:
        padded = torch.full((view.t, view.h + 2, view.w + 2), -1)
        padded[:, 1:-1, 1:-1] = torch.arange(start, start + view.n).view(view.t, view.h, view.w)
        above, below = padded[:, :-2, 1:-1], padded[:, 2:, 1:-1]
        left, right = padded[:, 1:-1, :-2], padded[:, 1:-1, 2:]
        parts.append(torch.stack([above, below, left, right], dim=-1).reshape(-1, 4))
        start += view.n
    return torch.cat(parts)
