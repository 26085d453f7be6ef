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
    """`count` places by greedy max-min distance on cosines `[M, M]`, in the order of choosing."""
    chosen = torch.zeros(count, dtype=torch.long, device=similar.device)
    if count == 0:
        return chosen.cpu()
    distance = 1 - similar
    nearest = distance.clone().fill_diagonal_(torch.inf).amin(1)  # [M] of each token to any other
    for step in range(count):
        chosen[step] = place = nearest.argmax()
        if step == 0:
            nearest = distance[place].clone()
        else:
            torch.minimum(nearest, distance[place], out=nearest)
        nearest[place] = -torch.inf  # stays so: the minimum never rises
    return chosen.cpu()
