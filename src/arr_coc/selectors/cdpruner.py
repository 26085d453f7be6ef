"""Keep tokens that answer the question and differ from each other: a determinantal point process."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import best, on_grid, unit_range
from arr_coc.selectors.similarity import Rows, to_question, tokens_of, units

EXHAUSTED = 1e-6  # a gain below this is rounding: the chosen tokens span the others already


class CDPruner(Selector):
    """Greedy maximum of the determinant of L = r_i cos(i, j) r_j, r the relevance stretched to [0, 1].

    "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs" (2025); the greedy steps
    by incremental Cholesky, "Fast Greedy MAP Inference for Determinantal Point Process to Improve Recommendation
    Diversity" (2018): O(k^2 M) beside the M^2 D of the kernel, so it takes longer than most at large k. Needs: tokens and
    words. Relevance is the cosine of a token with the mean of the question's embeddings, in the language model's space.
    Where no token adds volume, the most relevant of the rest follow.
    """

    name = "cdpruner"

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Cosine with the question: `[M]`."""
        return to_question(selection)

    def select(self, selection: SelectionInput) -> Choice:
        worth = self.relevance(selection)
        chosen = largest_volume(units(tokens_of(selection)), unit_range(worth), selection.count)
        keep = selection.candidates[chosen].sort().values
        return Choice(keep, relevance=on_grid(selection, worth), strategy="relevant to the question and diverse (DPP)")


def largest_volume(unit: torch.Tensor, worth: torch.Tensor, count: int) -> torch.Tensor:
    """`count` places by greedy MAP of the process with qualities `worth` `[M]` and directions `unit` `[M, D]`."""
    scaled = unit * worth[:, None]
    kernel = Rows(scaled, count)
    factor = np.zeros((count, len(unit)), np.float32)  # rows of the Cholesky factor
    gain = scaled.square().sum(1).cpu().numpy()  # [M] squared distance from the chosen ones' span
    chosen: list[int] = []
    for step in range(count):
        place = int(gain.argmax())
        left = float(gain[place])
        if left < EXHAUSTED:
            break
        chosen.append(place)
        row = factor[step]
        np.matmul(factor[:step, place], factor[:step], out=row)
        np.subtract(kernel(place, gain), row, out=row)
        row /= left**0.5
        gain -= row * row
        gain[place] = -np.inf
    if len(chosen) < count:
        rest = worth.clone()
        rest[chosen] = -torch.inf
        chosen += best(rest, count - len(chosen)).tolist()
    return torch.tensor(chosen, dtype=torch.long)
