"""From kept cells to what the model reads: the pruned prompt and the features that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual, to_rows
from arr_coc.adapters.packing import Packed, pack

Kept = dict[str, list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]]


def assemble(
    adapter: Adapter, inputs: Inputs, visuals: Sequence[Visual], encoded: Sequence[Encoded],
    keeps: Sequence[torch.Tensor], replaced: Sequence[torch.Tensor | None] | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[Packed, Kept]:  # fmt: skip
    """The prompt without its dropped tokens, and each row's kept features; `positions`: every token's, where known."""
    known = adapter.positions(inputs) if positions is None else positions
    packed = pack(inputs["input_ids"], inputs["attention_mask"], known, visuals, keeps, adapter.pad_token)
    features = to_rows(
        visuals, encoded, keeps, len(inputs["input_ids"]), replaced if replaced is not None else [None] * len(visuals)
    )
    return packed.on(adapter.device), features


def keywords(adapter: Adapter, packed: Packed, kept: Kept) -> dict[str, Any]:
    """Keyword arguments for the model's `forward` and `generate`. Beam search changes them: make them anew for each call."""
    made: dict[str, Any] = {
        "input_ids": packed.input_ids,
        "attention_mask": packed.attention_mask,
        "position_ids": packed.position_ids,
    }
    if kept:
        made["mm_encoder_outputs"] = adapter.encoder_outputs(kept)
    return made
