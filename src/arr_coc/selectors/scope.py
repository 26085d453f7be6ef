"""SCOPE: tokens that received attention and that cover many others."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import cosine_matrix, encoder_attention, encoder_tokens, relevance_map, unit_vectors

LAST = 1.0  # encoder depth
BATCH = 16  # tokens whose gain is recomputed at once


class Scope(Selector):
    """Add the token j with the largest gain in coverage times saliency: sum_i max(0, cos(i, j) - cover_i) * a_j^`alpha`.

    cover_i is the cosine of token i with its most similar chosen token, 0 at first; a is the attention received in the
    encoder's last layer. "SCOPE: Saliency-Coverage Oriented Token Pruning for Efficient Multimodel LLMs" (2025). Needs:
    tokens and attention. The first gains need the whole cosine matrix, which takes most of the time.
    """

    name = "scope"
    sets_budget = False
    attention_at = (LAST,)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received, as a multiple of the mean: `[M]`."""
        return encoder_attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        attention = self.relevance(selection)
        cosines = cosine_matrix(unit_vectors(encoder_tokens(selection)))
        chosen = greedy_coverage(cosines.cpu().numpy(), (attention**self.alpha).numpy(), selection.count)
        return Choice(
            selection.candidates[chosen].sort().values,
            relevance=relevance_map(selection, attention),
            strategy="tokens that are looked at and cover the others",
        )


def greedy_coverage(cosines: np.ndarray, weight: np.ndarray, count: int) -> torch.Tensor:
    """`count` indices by greedy weighted coverage of cosines `[M, M]`.

    A token's gain only falls as others are chosen, so a gain from an earlier step is an upper bound. Only the tokens with
    the largest bounds are recomputed, a few at a time (lazy greedy).
    """
    chosen = np.zeros(count, np.int64)
    cover, ones = np.zeros(len(cosines), np.float32), np.ones(len(cosines), np.float32)
    bound = torch.from_numpy(cosines).clamp(min=0).sum(1).numpy() * weight  # [M]
    computed_at = np.zeros(len(cosines), np.int64)  # [M] the step of each bound
    for step in range(count):
        size = min(BATCH, len(cosines) - step)
        while computed_at[index := int(bound.argmax())] < step:
            batch = torch.from_numpy(bound).topk(size).indices.numpy()
            batch[0] = index  # with many ties, topk may have left it out
            gain = np.maximum(cosines[batch], cover)
            gain -= cover
            bound[batch] = (gain @ ones) * weight[batch]
            computed_at[batch] = step
        chosen[step] = index
        bound[index] = -np.inf
        np.maximum(cover, cosines[index], out=cover)
    return torch.from_numpy(chosen)
