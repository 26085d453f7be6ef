"""Keep what the encoder looked at, and of the rest what is not there twice."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, Selector, Sight
from arr_coc.selectors.ranking import attention, best, on_grid
from arr_coc.selectors.similarity import cosines, tokens_of, units

LAST = 1.0  # encoder depth
FEWEST, SHARE = 8, 8  # a round drops 8 tokens, as in the paper, or an eighth of those left where that is more


class VisPruner(Selector):
    """Half of the budget by attention received, half from thinning the rest.

    A round splits the rest by turns into two halves, finds each token of the first half its most similar one in the second,
    and drops the first of the most similar pairs. "Beyond Text-Visual Attention: Exploiting Visual Cues for Effective Token
    Pruning in VLMs" (2024). Needs: tokens and attention.
    """

    name = "vispruner"
    attention_at = (LAST,)

    def relevance(self, sight: Sight) -> torch.Tensor:
        """Attention received, 1 being an even share: `[M]`."""
        return attention(sight, LAST)

    def select(self, sight: Sight) -> Choice:
        seen, tokens, count = self.relevance(sight), tokens_of(sight), sight.count
        important = best(seen, (count + 1) // 2)
        left = torch.ones(len(seen), dtype=torch.bool).index_fill_(0, important, False)
        rest = left.nonzero()[:, 0]
        diverse = rest
        if count - len(important) < len(rest):
            unit = units(tokens[rest.to(tokens.device)])
            diverse = rest[thinned(cosines(unit), count - len(important))]
        keep = sight.candidates[torch.cat([important, diverse])].sort().values
        return Choice(keep, relevance=on_grid(sight, seen), strategy="half by attention received, half without doubles")


def thinned(similar: torch.Tensor, count: int) -> torch.Tensor:
    """`count` places of cosines `[R, R]`, sorted."""
    if count == 0:
        return torch.zeros(0, dtype=torch.long)
    left = torch.arange(len(similar), device=similar.device)
    while len(left) > count:
        first, second = left[0::2], left[1::2]
        closest = similar[first][:, second].amax(1)  # [R / 2]
        dropped = best(closest, min(max(FEWEST, len(left) // SHARE), len(left) - count))
        stay = torch.ones(len(left), dtype=torch.bool, device=left.device).index_fill_(0, dropped * 2, False)
        left = left[stay]
    return left.cpu()
