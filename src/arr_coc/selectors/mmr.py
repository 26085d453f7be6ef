"""MMR: tokens that are relevant to the question and unlike those already chosen (maximal marginal relevance)."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import (
    CosineRows,
    encoder_tokens,
    question_similarity,
    relevance_map,
    unit_range,
    unit_vectors,
)


class MMR(Selector):
    """Add the token with the largest `balance` * importance - (1 - `balance`) * similarity to the nearest chosen token.

    "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing Summaries" (1998); for visual tokens
    "IDPruner: Harmonizing Importance and Diversity in Visual Token Pruning for MLLMs" (2026), whose importance is learned.
    Needs: tokens and the question. Importance is the cosine of a token with the mean of the question's word embeddings,
    scaled to [0, 1].
    """

    name = "mmr"
    sets_budget = False

    def __init__(self, balance: float = 0.5) -> None:
        self.balance = balance

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Cosine with the question: `[M]`."""
        return question_similarity(selection)

    def select(self, selection: SelectionInput) -> Choice:
        relevance, unit = self.relevance(selection), unit_vectors(encoder_tokens(selection))
        chosen = marginal_relevance(unit, unit_range(relevance), selection.count, self.balance)
        return Choice(
            selection.candidates[chosen].sort().values,
            relevance=relevance_map(selection, relevance),
            strategy="relevant to the question, no two alike (MMR)",
        )


def marginal_relevance(unit: torch.Tensor, importance: torch.Tensor, count: int, balance: float) -> torch.Tensor:
    """`count` indices by maximal marginal relevance; the first by `importance` `[M]` alone."""
    rows = CosineRows(unit, count)
    value = (balance * importance).cpu().numpy()
    nearest = np.full_like(value, -np.inf)  # [M] cosine with the most similar chosen token
    score = value.copy()
    chosen = np.zeros(count, np.int64)
    for step in range(count):
        chosen[step] = index = int(score.argmax())
        value[index] = -np.inf
        np.maximum(nearest, rows(index, score), out=nearest)
        np.multiply(nearest, balance - 1, out=score)
        score += value
    return torch.from_numpy(chosen)
