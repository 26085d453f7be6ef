"""DivPrune: the most diverse tokens."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import cosine_matrix, encoder_tokens, unit_vectors


class DivPrune(Selector):
    """Greedy max-min diversity: start with the token farthest from its nearest neighbour, then add the token farthest from
    all chosen ones. The distance is 1 - cosine.

    "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (2025). Needs: tokens; ignores the
    question. The first token needs the whole cosine matrix, which takes most of the time.
    """

    name = "divprune"
    sets_budget = False

    def select(self, selection: SelectionInput) -> Choice:
        cosines = cosine_matrix(unit_vectors(encoder_tokens(selection))).cpu().numpy()
        chosen = max_min_diverse(cosines, selection.count)
        return Choice(selection.candidates[chosen].sort().values, strategy="the most diverse tokens")


def max_min_diverse(cosines: np.ndarray, count: int) -> torch.Tensor:
    """`count` indices by greedy max-min distance on cosines `[M, M]`, in the order of choosing.

    The farthest token is the one whose largest cosine is smallest, so distances are never computed.
    """
    chosen = np.zeros(count, np.int64)
    if count == 0:
        return torch.from_numpy(chosen)
    diagonal = cosines.diagonal().copy()
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.max(1)  # [M] each token's cosine with its nearest neighbour
    np.fill_diagonal(cosines, diagonal)
    for step in range(count):
        chosen[step] = index = nearest.argmin()
        if step == 0:
            nearest = cosines[index].copy()
        else:
            np.maximum(nearest, cosines[index], out=nearest)
        nearest[index] = np.inf  # stays so: the maximum never falls
    return torch.from_numpy(chosen)
