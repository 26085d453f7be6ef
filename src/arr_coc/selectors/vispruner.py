"""VisPruner: half of the budget by attention received, half by removing duplicates from the rest."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import (
    cosine_matrix,
    encoder_attention,
    encoder_tokens,
    relevance_map,
    top_k,
    unit_vectors,
)

LAST = 1.0  # encoder depth
DROPPED = 8  # tokens per round


class VisPruner(Selector):
    """Half of the budget by attention received, half from the rest without duplicates.

    Duplicates are removed in rounds over the rest, which is sorted by attention at first. A round splits the tokens
    alternately into two halves, finds the most similar token of the second half for each of the first, and drops the first
    token of the eight most similar pairs. The next round gets the remaining first half, most similar first, then the second
    half. "Beyond Text-Visual Attention: Exploiting Visual Cues for Effective Token Pruning in VLMs" (2024). Needs: tokens
    and attention.
    """

    name = "vispruner"
    sets_budget = False
    attention_at = (LAST,)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received, as a multiple of the mean: `[M]`."""
        return encoder_attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        attention, tokens, count = self.relevance(selection), encoder_tokens(selection), selection.count
        order = top_k(attention, len(attention))
        important, diverse = order[: count // 2], order[count // 2 :]
        if count - len(important) < len(diverse):
            cosines = cosine_matrix(unit_vectors(tokens[diverse.to(tokens.device)]))
            diverse = diverse[remove_duplicates(cosines.cpu().numpy(), count - len(important))]
        return Choice(
            selection.candidates[torch.cat([important, diverse])].sort().values,
            relevance=relevance_map(selection, attention),
            strategy="half by attention received, half without doubles",
        )


def remove_duplicates(cosines: np.ndarray, count: int) -> torch.Tensor:
    """`count` indices of cosines `[R, R]`, which are sorted by attention."""
    left = np.arange(len(cosines) if count else 0)
    while len(left) > count:
        first, second = left[0::2], left[1::2]
        closest = cosines.take(first, 0).take(second, 1).max(1)  # [R / 2]
        stay = np.argsort(-closest, kind="stable")[min(DROPPED, len(left) - count) :]
        left = np.concatenate([first[stay], second])
    return torch.from_numpy(left)
