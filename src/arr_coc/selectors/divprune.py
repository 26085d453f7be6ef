"""Keep tokens that are as far from each other as can be."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.similarity import cosines, tokens_of, units


class DivPrune(Selector):
    """Max-min diversity, greedily: start at the token farthest from its nearest other, then add the one farthest from all
    chosen ones; the distance is 1 - cosine.

    "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (2025). Needs: tokens; reads no question.
    Where to start takes every pair of tokens, which is most of its time.
    """

    name = "divprune"

    def select(self, selection: SelectionInput) -> Choice:
        chosen = spread_out(cosines(units(tokens_of(selection))).cpu().numpy(), selection.count)
        return Choice(selection.candidates[chosen].sort().values, strategy="the most diverse tokens")


def spread_out(similar: np.ndarray, count: int) -> torch.Tensor:
    """`count` places by greedy max-min distance on cosines `[M, M]`, in the order of choosing.

    The farthest token is the one whose largest cosine is smallest, so no distances are ever written down.
    """
    chosen = np.zeros(count, np.int64)
    if count == 0:
        return torch.from_numpy(chosen)
    own = similar.diagonal().copy()
    np.fill_diagonal(similar, -np.inf)
    nearest = similar.max(1)  # [M] the cosine of each token with its nearest other
    np.fill_diagonal(similar, own)
    for step in range(count):
        chosen[step] = place = nearest.argmin()
        if step == 0:
            nearest = similar[place].copy()
        else:
            np.maximum(nearest, similar[place], out=nearest)
        nearest[place] = np.inf  # stays so: the maximum never falls
    return torch.from_numpy(chosen)
