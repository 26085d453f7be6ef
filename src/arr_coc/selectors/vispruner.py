"""Keep what the encoder looked at, and of the rest what is not there twice."""

from __future__ import annotations

import numpy as np
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
            diverse = rest[thinned(cosines(unit).cpu().numpy(), count - len(important))]
        keep = sight.candidates[torch.cat([important, diverse])].sort().values
        return Choice(keep, relevance=on_grid(sight, seen), strategy="half by attention received, half without doubles")


def thinned(similar: np.ndarray, count: int) -> torch.Tensor:
    """`count` places of cosines `[R, R]`, sorted."""
    left = np.arange(len(similar) if count else 0)
    while len(left) > count:
        first, second = left[0::2], left[1::2]
        closest = similar.take(first, 0).take(second, 1).max(1)  # [R / 2]
        few = min(max(FEWEST, len(left) // SHARE), len(left) - count)
        dropped = np.argsort(-closest, kind="stable")[:few]
        left = np.delete(left, 2 * dropped)
    return torch.from_numpy(left)
