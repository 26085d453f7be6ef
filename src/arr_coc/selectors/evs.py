"""Keep what is new in a video."""

from __future__ import annotations

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import best, on_grid
from arr_coc.selectors.similarity import tokens_of, units
from arr_coc.selectors.uniform import spread

NEW = 2.0  # the largest value of 1 - cosine


class EVS(Selector):
    """The first frame, and everywhere else the cells that differ most (1 - cosine) from the same cell a frame earlier.

    "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference" (2025). Needs: a video's tokens.
    Where only some cells were encoded, a cell is compared with the last earlier frame that has it, and counts as new where
    none does. A budget below one frame is spread evenly over the first.
    """

    name = "evs"
    kinds = ("video",)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """How new each candidate is, 0 to 2: `[M]`."""
        if selection.kind != "video":
            raise SelectorError(
                f"selector 'evs' compares the frames of a video, got an {selection.kind}: choose another"
            )
        unit = units(tokens_of(selection))
        frame, row, column = selection.grid.thw(selection.candidates).unbind(-1)
        where = row * (int(column.max()) + 1 if len(column) else 1) + column
        order = (where * (int(frame.max()) + 1 if len(frame) else 1) + frame).argsort()  # place by place through time
        later = (where[order][1:] == where[order][:-1]).nonzero()[:, 0] + 1
        here, before = order[later], order[later - 1]
        novelty = torch.full((len(unit),), NEW)
        novelty[here] = (1 - (unit[here.to(unit.device)] * unit[before.to(unit.device)]).sum(1)).cpu()
        return novelty

    def select(self, selection: SelectionInput) -> Choice:
        novelty, count = self.relevance(selection), selection.count
        fresh = (
            selection.grid.thw(selection.candidates)[:, 0] == selection.grid.thw(selection.candidates[:1])[:, 0]
        ).nonzero()[:, 0]
        ranked = novelty.index_fill(0, fresh, NEW + 1)
        chosen = fresh[spread(len(fresh), count)] if count < len(fresh) else best(ranked, count)
        keep = selection.candidates[chosen].sort().values
        return Choice(keep, relevance=on_grid(selection, novelty), strategy="the first frame and what changed since")
