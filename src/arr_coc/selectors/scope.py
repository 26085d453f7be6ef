"""Keep tokens that the encoder looked at and that stand for many others."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import attention, on_grid
from arr_coc.selectors.similarity import cosines, tokens_of, units

LAST = 1.0  # encoder depth
AT_ONCE = 16  # tokens weighed again


class Scope(Selector):
    """Add the token j with the largest gain in coverage times salience: sum_i max(0, cos(i, j) - cover_i) * a_j^`alpha`.

    cover_i is the cosine of token i with its most similar chosen one, 0 at first; a is the attention received in the
    encoder's last layer. "SCOPE: Saliency-Coverage Oriented Token Pruning for Efficient Multimodel LLMs" (2025). Needs:
    tokens and attention. The first gains need every pair of tokens, which is most of its time.
    """

    name = "scope"
    attention_at = (LAST,)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received, 1 being an even share: `[M]`."""
        return attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        seen = self.relevance(selection)
        similar = cosines(units(tokens_of(selection)))
        chosen = covering(similar.cpu().numpy(), (seen**self.alpha).numpy(), selection.count)
        keep = selection.candidates[chosen].sort().values
        return Choice(
            keep, relevance=on_grid(selection, seen), strategy="tokens that are looked at and cover the others"
        )


def covering(similar: np.ndarray, weight: np.ndarray, count: int) -> torch.Tensor:
    """`count` places by greedy weighted coverage of cosines `[M, M]`.

    What a token would gain only falls as others are chosen, so a gain from an earlier step is a bound: only tokens whose
    bounds are the largest are weighed again, a few at a time.
    """
    chosen = np.zeros(count, np.int64)
    cover, every = np.zeros(len(similar), np.float32), np.ones(len(similar), np.float32)
    bound = torch.from_numpy(similar).clamp(min=0).sum(1).numpy() * weight  # [M]
    weighed = np.zeros(len(similar), np.int64)  # [M] the step that a bound is of
    for step in range(count):
        few = min(AT_ONCE, len(similar) - step)
        while weighed[place := int(bound.argmax())] < step:
            some = torch.from_numpy(bound).topk(few).indices.numpy()
            some[0] = place  # which may have been left out, where more than a few are equal
            room = np.maximum(similar[some], cover)
            room -= cover
            bound[some] = (room @ every) * weight[some]
            weighed[some] = step
        chosen[step] = place
        bound[place] = -np.inf
        np.maximum(cover, similar[place], out=cover)
    return torch.from_numpy(chosen)
