"""EVS: what changes in a video."""

from __future__ import annotations

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.controls import evenly_spaced
from arr_coc.selectors.scoring import encoder_tokens, relevance_map, top_k, unit_vectors

MAX_CHANGE = 2.0  # largest value of 1 - cosine


class EVS(Selector):
    """The first frame, and from later frames the cells that differ most (1 - cosine) from the same cell a frame earlier.

    "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference" (2025). Needs: a video's tokens.
    If only some cells are encoded, a cell is compared with the last earlier frame that has it; without one it counts as
    changed. A budget below one frame is evenly spaced over the first.
    """

    name = "evs"
    sets_budget = False
    kinds = ("video",)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """How much each candidate changed, 0 to 2: `[M]`."""
        if selection.kind != "video":
            raise SelectorError(
                f"selector 'evs' compares the frames of a video, got an {selection.kind}: choose another"
            )
        unit = unit_vectors(encoder_tokens(selection))
        frame, row, column = selection.grid.thw(selection.candidates).unbind(-1)
        place = row * (int(column.max()) + 1 if len(column) else 1) + column
        order = (place * (int(frame.max()) + 1 if len(frame) else 1) + frame).argsort()  # by place, then time
        later = (place[order][1:] == place[order][:-1]).nonzero()[:, 0] + 1
        here, before = order[later], order[later - 1]
        change = torch.full((len(unit),), MAX_CHANGE)
        change[here] = (1 - (unit[here.to(unit.device)] * unit[before.to(unit.device)]).sum(1)).cpu()
        return change

    def select(self, selection: SelectionInput) -> Choice:
        change, count = self.relevance(selection), selection.count
        frame = selection.grid.thw(selection.candidates)[:, 0]
        first = (frame == frame[:1]).nonzero()[:, 0]
        ranked = change.index_fill(0, first, MAX_CHANGE + 1)
        chosen = first[evenly_spaced(len(first), count)] if count < len(first) else top_k(ranked, count)
        return Choice(
            selection.candidates[chosen].sort().values,
            relevance=relevance_map(selection, change),
            strategy="the first frame and what changed since",
        )
