"""CDPruner: relevant and diverse tokens by a determinantal point process (DPP)."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import (
    CosineRows,
    encoder_tokens,
    question_similarity,
    relevance_map,
    top_k,
    unit_range,
    unit_vectors,
)

MIN_GAIN = 1e-6  # a smaller gain is rounding: the chosen tokens span the rest already


class CDPruner(Selector):
    """Greedy maximum of the determinant of L = r_i cos(i, j) r_j, with r the relevance scaled to [0, 1].

    "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs" (2025). The greedy steps
    use incremental Cholesky, "Fast Greedy MAP Inference for Determinantal Point Process to Improve Recommendation
    Diversity" (2018): O(k^2 M) on top of the kernel's M^2 D, so large k takes longer than in most methods. Needs: tokens
    and the question. Relevance is the cosine of a token with the mean of the question's word embeddings. Once no token adds
    volume, the most relevant of the rest follow.
    """

    name = "cdpruner"
    sets_budget = False

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Cosine with the question: `[M]`."""
        return question_similarity(selection)

    def select(self, selection: SelectionInput) -> Choice:
        relevance = self.relevance(selection)
        chosen = greedy_dpp(unit_vectors(encoder_tokens(selection)), unit_range(relevance), selection.count)
        return Choice(
            selection.candidates[chosen].sort().values,
            relevance=relevance_map(selection, relevance),
            strategy="relevant to the question and diverse (DPP)",
        )


def greedy_dpp(unit: torch.Tensor, relevance: torch.Tensor, count: int) -> torch.Tensor:
    """`count` indices by greedy MAP of the DPP with qualities `relevance` `[M]` and directions `unit` `[M, D]`."""
    scaled = unit * relevance[:, None]
    kernel = CosineRows(scaled, count)
    factor = np.zeros((count, len(unit)), np.float32)  # rows of the Cholesky factor
    gain = scaled.square().sum(1).cpu().numpy()  # [M] squared distance from the span of the chosen tokens
    chosen: list[int] = []
    for step in range(count):
        index = int(gain.argmax())
        largest = float(gain[index])
        if largest < MIN_GAIN:
            break
        chosen.append(index)
        row = factor[step]
        np.matmul(factor[:step, index], factor[:step], out=row)
        np.subtract(kernel(index, gain), row, out=row)
        row /= largest**0.5
        gain -= row * row
        gain[index] = -np.inf
    if len(chosen) < count:
        rest = relevance.clone()
        rest[chosen] = -torch.inf
        chosen += top_k(rest, count - len(chosen)).tolist()
    return torch.tensor(chosen, dtype=torch.long)
