"""Keep objects that the encoder saw half-way, what lies around them, and what it gathered in the end."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import attention, best, on_grid
from arr_coc.types.grid import Cells

MIDDLE, LAST = 0.375, 1.0  # encoder depths
ANCHORED = 0.1  # of the budget, for anchors and their neighbours together


class HiPrune(Selector):
    """Anchors by attention received in a middle layer, their four neighbours, and the rest by that of the last layer.

    A tenth of the budget is for anchors and neighbours together; there is at least one anchor.

    "HiPrune: Training-Free Visual Token Pruning via Hierarchical Attention in Vision-Language Models" (2025). Needs: the
    grid and attention. Neighbours are inside the same view and frame: no row goes on in the next.
    """

    name = "hiprune"
    attention_at = (MIDDLE, LAST)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received in the last layer, 1 being an even share: `[M]`."""
        return attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        late, count = self.relevance(selection), selection.count
        anchors = best(attention(selection, MIDDLE), min(count, max(1, round(ANCHORED * count / 5))))
        cells = selection.candidates[anchors]
        place = torch.full((selection.grid.n + 1,), -1)  # cell to candidate; the last entry is for no cell at all
        place[selection.candidates] = torch.arange(len(late))
        around = place[neighbours(selection.grid)[cells]].flatten()  # those of the strongest anchors first
        turns = torch.cat([anchors, around[around >= 0], best(late, len(late))])
        first = torch.full((len(late),), len(turns)).scatter_reduce(0, turns, torch.arange(len(turns)), "amin")
        chosen = first.argsort()[:count]  # each in its first turn
        keep = selection.candidates[chosen].sort().values
        return Choice(
            keep, relevance=on_grid(selection, late), strategy="anchors half-way, their neighbours, then late attention"
        )


def neighbours(grid: Cells) -> torch.Tensor:
    """The cells above, below, left and right of each: `[N, 4]`, -1 where there is none in its view and frame.

    >>> from arr_coc.grid import Grid
    >>> neighbours(Grid(1, 2, 2)).tolist()
    [[-1, 2, -1, 1], [-1, 3, 0, -1], [0, -1, -1, 3], [1, -1, 2, -1]]
    """
    parts, start = [], 0
    for view in grid.views:
        framed = torch.full((view.t, view.h + 2, view.w + 2), -1)
        framed[:, 1:-1, 1:-1] = torch.arange(start, start + view.n).view(view.t, view.h, view.w)
        above, below = framed[:, :-2, 1:-1], framed[:, 2:, 1:-1]
        left, right = framed[:, 1:-1, :-2], framed[:, 1:-1, 2:]
        parts.append(torch.stack([above, below, left, right], dim=-1).reshape(-1, 4))
        start += view.n
    return torch.cat(parts)
