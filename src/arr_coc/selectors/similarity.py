"""Cosines between encoder tokens, and between tokens and the question.

Greedy choosing is many short steps, each of which waits for the last: numpy on the CPU takes them in a fraction of the time
that torch needs for each call. So large products are torch's, on the tokens' own device, and loops are over arrays.
"""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import SelectionInput

BLOCK = 216  # rows; small enough to skip most of the lower triangle, large enough for a fast product
FEWEST, PARTS = 32, 4  # rows made at once where not all are needed: so many, or that part of what will be asked for


def tokens_of(selection: SelectionInput) -> torch.Tensor:
    """The candidates' tokens `[M, D]` as the encoder made them."""
    if selection.tokens is None:
        raise SelectorError("this selector compares encoder tokens, and nothing is encoded yet")
    return selection.tokens.detach()


def units(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens `[M, D]` at length 1, float32; a token of zeros stays one, and is similar to nothing."""
    tokens = tokens.float()
    return tokens / tokens.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def cosines(unit: torch.Tensor) -> torch.Tensor:
    """Product of every pair of units `[M, D]`: `[M, M]`; little more than one half is computed, the other copied."""
    count = len(unit)
    out = unit.new_empty(count, count)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        rows = unit[start:stop] @ unit[start:].T
        out[start:stop, start:] = rows
        out[stop:, start:stop] = rows[:, stop - start :].T
    return out


class Rows:
    """Products of one token with all, for greedy loops that will ask for few of them.

    A row that is not there yet is made together with those that look most likely to be asked for next.
    """

    def __init__(self, unit: torch.Tensor, count: int) -> None:
        """`count`: how many will be asked for."""
        self.unit, self.ahead = unit, max(FEWEST, count // PARTS)
        self.made = np.empty((len(unit), len(unit)), np.float32)  # only what is written to takes up memory
        self.known = np.zeros(len(unit), bool)

    def __call__(self, place: int, hopes: np.ndarray) -> np.ndarray:
        """The products `[M]` with the token at `place`; `hopes` `[M]` is larger for likelier next ones."""
        if not self.known[place]:
            worth = np.where(self.known, -np.inf, hopes)
            worth[place] = np.inf
            few = min(self.ahead, int((~self.known).sum()))
            some = np.argpartition(-worth, few - 1)[:few]
            at = torch.from_numpy(some).to(self.unit.device)
            self.made[some] = (self.unit[at] @ self.unit.T).cpu().numpy()
            self.known[some] = True
        row: np.ndarray = self.made[place]
        return row


def to_question(selection: SelectionInput) -> torch.Tensor:
    """Cosine of each candidate's token with the mean of the question's embeddings in the language model: `[M]`.

    Tokens come out of the encoder in that same space. Without words every cosine is 0.
    """
    tokens = tokens_of(selection)
    spoken = selection.question.embeddings.detach()
    if spoken.numel() == 0:
        return tokens.new_zeros(len(tokens), dtype=torch.float32)
    if spoken.shape[-1] != tokens.shape[-1]:
        raise SelectorError(
            f"expected question and tokens in one space, got {spoken.shape[-1]} and {tokens.shape[-1]} dimensions"
        )
    return units(tokens) @ units(spoken.to(tokens.device, torch.float32).mean(0, keepdim=True))[0]
