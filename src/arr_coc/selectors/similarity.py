"""Cosines between encoder tokens, and between tokens and the question."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Sight

BLOCK = 216  # rows; small enough to skip most of the lower triangle, large enough for a fast product


def tokens_of(sight: Sight) -> torch.Tensor:
    """The candidates' tokens `[M, D]` as the encoder made them."""
    if sight.tokens is None:
        raise SelectorError("this selector compares encoder tokens, and nothing is encoded yet")
    return sight.tokens.detach()


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


def rows_of(unit: torch.Tensor, count: int) -> Callable[[int], torch.Tensor]:
    """For greedy loops of `count` steps: the products `[M]` of one token with all, by whichever way is cheaper."""
    if 4 * count < len(unit):
        return lambda place: unit @ unit[place]
    whole = cosines(unit)
    return lambda place: whole[place]


def to_question(sight: Sight) -> torch.Tensor:
    """Cosine of each candidate's token with the mean of the question's embeddings in the language model: `[M]`.

    Tokens come out of the encoder in that same space. Without words every cosine is 0.
    """
    tokens = tokens_of(sight)
    spoken = sight.words.embeddings.detach()
    if spoken.numel() == 0:
        return tokens.new_zeros(len(tokens), dtype=torch.float32)
    if spoken.shape[-1] != tokens.shape[-1]:
        raise SelectorError(
            f"expected question and tokens in one space, got {spoken.shape[-1]} and {tokens.shape[-1]} dimensions"
        )
    return units(tokens) @ units(spoken.to(tokens.device, torch.float32).mean(0, keepdim=True))[0]
