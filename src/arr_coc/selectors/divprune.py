"""Keep tokens that are as far from each other as can be."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, Selector, Sight
from arr_coc.selectors.similarity import cosines, tokens_of, units


class DivPrune(Selector):
    """Max-min diversity, greedily: start at the token farthest from its nearest other, then add the one farthest from all
    chosen ones; the distance is 1 - cosine.

    "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (2025). Needs: tokens; reads no question.
    """

    name = "divprune"

    def select(self, sight: Sight) -> Choice:
        chosen = spread_out(cosines(units(tokens_of(sight))), sight.count)
        return Choice(sight.candidates[chosen].sort().values, strategy="the most diverse tokens")


def spread_out(similar: torch.Tensor, count: int) -> torch.Tensor:
    """`count` places by greedy max-min distance on cosines `[M, M]`, in the order of choosing.

    The farthest token is the one whose largest cosine is smallest, so no distances are ever written down.
    """
    chosen = torch.zeros(count, dtype=torch.long, device=similar.device)
    if count == 0:
        return chosen.cpu()
    own = similar.diagonal().clone()
    nearest = similar.fill_diagonal_(-torch.inf).amax(1)  # [M] the cosine of each token with its nearest other
    similar.diagonal().copy_(own)
    for step in range(count):
        chosen[step] = place = nearest.argmin()
        if step == 0:
            nearest = similar[place].clone()
        else:
            torch.maximum(nearest, similar[place], out=nearest)
        nearest[place] = torch.inf  # stays so: the maximum never falls
    return chosen.cpu()
