"""Keep what the encoder looked at, and of the rest what is not there twice."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import attention, best, on_grid
from arr_coc.selectors.similarity import cosines, tokens_of, units

LAST = 1.0  # encoder depth
STEP = 8  # tokens that a round drops


class VisPruner(Selector):
    """Half of the budget by attention received, half from thinning the rest.

    The rest is thinned in rounds, at first in the order of the attention: each splits it by turns into two halves, finds
    every token of the first half its most similar one in the second, drops the first of the eight most similar pairs, and
    hands on what is left of the first half, most similar ones first, and then the second. "Beyond Text-Visual Attention:
    Exploiting Visual Cues for Effective Token Pruning in VLMs" (2024). Needs: tokens and attention.
    """

    name = "vispruner"
    attention_at = (LAST,)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received, 1 being an even share: `[M]`."""
        return attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        seen, tokens, count = self.relevance(selection), tokens_of(selection), selection.count
        order = best(seen, len(seen))
        important, diverse = order[: count // 2], order[count // 2 :]
        if count - len(important) < len(diverse):
            unit = units(tokens[diverse.to(tokens.device)])
            diverse = diverse[thinned(cosines(unit).cpu().numpy(), count - len(important))]
        keep = selection.candidates[torch.cat([important, diverse])].sort().values
        return Choice(
            keep, relevance=on_grid(selection, seen), strategy="half by attention received, half without doubles"
        )


def thinned(similar: np.ndarray, count: int) -> torch.Tensor:
    """`count` places of cosines `[R, R]`, whose order is that of the attention."""
    left = np.arange(len(similar) if count else 0)
    while len(left) > count:
        first, second = left[0::2], left[1::2]
        closest = similar.take(first, 0).take(second, 1).max(1)  # [R / 2]
        stay = np.argsort(-closest, kind="stable")[min(STEP, len(left) - count) :]
        left = np.concatenate([first[stay], second])
    return torch.from_numpy(left)
