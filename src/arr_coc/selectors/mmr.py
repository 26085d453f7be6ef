"""Keep tokens that answer the question, each unlike those already kept: maximal marginal relevance."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import on_grid, unit_range
from arr_coc.selectors.similarity import Rows, to_question, tokens_of, units


class MMR(Selector):
    """Add the token with the largest `balance` * importance - (1 - `balance`) * similarity to the nearest chosen one.

    "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing Summaries" (1998); for visual tokens
    "IDPruner: Harmonizing Importance and Diversity in Visual Token Pruning for MLLMs" (2026), whose importance is learned.
    Needs: tokens and words. Importance is the cosine of a token with the mean of the question's embeddings, in the
    language model's space, stretched to [0, 1].
    """

    name = "mmr"

    def __init__(self, balance: float = 0.5) -> None:
        self.balance = balance

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Cosine with the question: `[M]`."""
        return to_question(selection)

    def select(self, selection: SelectionInput) -> Choice:
        worth = self.relevance(selection)
        chosen = marginal(units(tokens_of(selection)), unit_range(worth), selection.count, self.balance)
        keep = selection.candidates[chosen].sort().values
        return Choice(
            keep, relevance=on_grid(selection, worth), strategy="relevant to the question, no two alike (MMR)"
        )


def marginal(unit: torch.Tensor, worth: torch.Tensor, count: int, balance: float) -> torch.Tensor:
    """`count` places by maximal marginal relevance; the first by `worth` `[M]` alone."""
    rows = Rows(unit, count)
    value = (balance * worth).cpu().numpy()
    nearest = np.full_like(value, -np.inf)  # [M] cosine with the most similar chosen token
    score = value.copy()
    chosen = np.zeros(count, np.int64)
    for step in range(count):
        chosen[step] = place = int(score.argmax())
        value[place] = -np.inf
        np.maximum(nearest, rows(place, score), out=nearest)
        np.multiply(nearest, balance - 1, out=score)
        score += value
    return torch.from_numpy(chosen)
