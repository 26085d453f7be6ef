"""IDPruner: important tokens that differ from each other, by maximal marginal relevance without the question."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.mmr import marginal_relevance
from arr_coc.selectors.scoring import encoder_attention, encoder_tokens, relevance_map, unit_range, unit_vectors

LAST = 1.0  # encoder depth whose attention is the importance


class IDPruner(Selector):
    """Add the token with the largest `balance` * importance - (1 - `balance`) * cosine with the nearest chosen token.

    "IDPruner: Harmonizing Importance and Diversity in Visual Token Pruning for MLLMs" (2026). From the paper: pruning once,
    between encoder and language model; the first token by importance alone; importance scaled to [0, 1] by its smallest and
    largest value; cosine as the similarity; equal weights (0.5). Changed: the paper's importance comes from a scorer that is
    trained for each model and sees visual tokens only. There is none for an arbitrary model, so the default importance is
    the attention that a token receives in the encoder's last layer. `importance` takes a scorer of your own, a function
    `SelectionInput -> [M]`; then no attention is recorded. Needs: tokens and encoder attention; ignores the question.
    """

    name = "idpruner"
    sets_budget = False
    attention_at: tuple[float, ...] = (LAST,)

    def __init__(
        self, balance: float = 0.5, importance: Callable[[SelectionInput], torch.Tensor] | None = None
    ) -> None:
        self.balance, self.importance = balance, importance
        if importance is not None:
            self.attention_at = ()

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """The importance of each candidate: `[M]`."""
        return encoder_attention(selection, LAST) if self.importance is None else self.importance(selection)

    def select(self, selection: SelectionInput) -> Choice:
        importance, unit = self.relevance(selection), unit_vectors(encoder_tokens(selection))
        chosen = marginal_relevance(unit, unit_range(importance.float()), selection.count, self.balance)
        return Choice(
            selection.candidates[chosen].sort().values,
            relevance=relevance_map(selection, importance),
            strategy="important tokens, no two alike (IDPruner)",
        )
