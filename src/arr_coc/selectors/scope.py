"""Keep tokens that the encoder looked at and that stand for many others."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, Selector, Sight
from arr_coc.selectors.ranking import attention, on_grid
from arr_coc.selectors.similarity import cosines, tokens_of, units

LAST = 1.0  # encoder depth


class Scope(Selector):
    """Add the token j with the largest gain in coverage times salience: sum_i max(0, cos(i, j) - cover_i) * a_j^`alpha`.

    cover_i is the cosine of token i with its most similar chosen one, 0 at first; a is the attention received in the
    encoder's last layer. "SCOPE: Saliency-Coverage Oriented Token Pruning for Efficient Multimodel LLMs" (2025). Needs:
    tokens and attention. All pairs count at every step, so it takes longer than most: see benchmarks/selector_speed.py.
    """

    name = "scope"
    attention_at = (LAST,)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def relevance(self, sight: Sight) -> torch.Tensor:
        """Attention received, 1 being an even share: `[M]`."""
        return attention(sight, LAST)

    def select(self, sight: Sight) -> Choice:
        seen = self.relevance(sight)
        similar = cosines(units(tokens_of(sight)))
        chosen = covering(similar, seen.to(similar.device) ** self.alpha, sight.count)
        keep = sight.candidates[chosen].sort().values
        return Choice(keep, relevance=on_grid(sight, seen), strategy="tokens that are looked at and cover the others")


def covering(similar: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
    """`count` places by greedy weighted coverage of cosines `[M, M]`."""
    chosen: list[int] = []
    cover, barred = torch.zeros_like(weight), torch.zeros_like(weight)
    room = similar.clamp(min=0)  # one more [M, M], written over and over: fresh memory costs more than the sums
    gain = room.sum(1)  # [M] of each token as the next
    for _ in range(count):
        place = int((gain * weight + barred).argmax())
        chosen.append(place)
        barred[place] = -torch.inf
        better = (similar[place] > cover).nonzero()[:, 0]
        old, new = cover[better, None], similar[place, better, None]
        cover[better] = new[:, 0]
        if 4 * len(better) > len(cover):  # early steps: afresh, which also keeps rounding errors from adding up
            gain = torch.sub(similar, cover, out=room).clamp_(min=0).sum(1)
        else:  # later ones: only what a few tokens, now covered better, no longer have to gain
            gain -= similar[better].clamp_(old, new).sub_(old).sum(0)
    return torch.tensor(chosen, dtype=torch.long)
