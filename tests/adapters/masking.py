"""The slow truth for families with one position per token: the dense model with dropped tokens, or patches, masked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

from arr_coc.adapters.assembly import assemble, keywords
from arr_coc.adapters.base import Adapter, Encoded, Visual


def some(visuals: list[Visual], share: float = 0.4, seed: int = 3) -> list[torch.Tensor]:
    """Some cells of every visual, by chance."""
    dice = torch.Generator().manual_seed(seed)
    return [torch.randperm(v.n, generator=dice)[: max(1, round(v.n * share))].sort().values for v in visuals]


def sparse(
    reader: Adapter, inputs: dict[str, Any], keeps: list[torch.Tensor] | None = None, encoded: list[Encoded] | None = None
) -> tuple[dict[str, Any], torch.Tensor]:  # fmt: skip
    """Our way: keywords for the model, and where each token of the pruned prompt came from."""
    visuals = reader.visuals(inputs)
    encoded = reader.encode(inputs, visuals, None, ()) if encoded is None else encoded
    packed, kept = assemble(reader, inputs, visuals, encoded, keeps or [seen.cells for seen in encoded])
    return keywords(reader, packed, kept), packed.source


def positions(mask: torch.Tensor) -> torch.Tensor:
    """What the models' own `generate` makes of a mask."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


def masked(reader: Adapter, inputs: dict[str, Any], keeps: list[torch.Tensor]) -> dict[str, Any]:
    """The stock model's own inputs, pixels and all, at the dense positions, with the dropped tokens masked."""
    mask = inputs["attention_mask"].clone()
    for visual, keep in zip(reader.visuals(inputs), keeps, strict=True):
        at = torch.arange(len(visual.places)) if visual.cells is None else visual.cells
        gone = torch.ones(visual.n, dtype=torch.bool)
        gone[keep] = False
        mask[visual.row, visual.places[at[gone]]] = 0
    return inputs | {"attention_mask": mask, "position_ids": positions(inputs["attention_mask"])}


def dense(inputs: dict[str, Any]) -> dict[str, Any]:
    return inputs | {"position_ids": positions(inputs["attention_mask"])}


def at(logits: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Dense logits `[B, T, V]` of the tokens that a pruned prompt still has, row after row: `[S, V]`."""
    return torch.cat([row[places[places >= 0]] for row, places in zip(logits, source, strict=True)])


def real(logits: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """A pruned prompt's logits without its padding: `[S, V]`."""
    return torch.cat([row[places >= 0] for row, places in zip(logits, source, strict=True)])


def greedy(model: Any, inputs: dict[str, Any], count: int = 20, **options: Any) -> torch.Tensor:
    return model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None, **options)[:, -count:]


@contextmanager
def deaf(vision: Any, heard: torch.Tensor) -> Iterator[None]:
    """Inside, the vision tower attends to the tokens where `heard` `[T, S]` is True only, tile by tile, in every layer."""

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        scores = query @ key.transpose(2, 3) * given["scaling"]
        scores = scores.masked_fill(~heard[:, None, None], torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register("deaf_tower", attend)
    before = vision.config._attn_implementation
    vision.config._attn_implementation = "deaf_tower"
    try:
        yield
    finally:
        vision.config._attn_implementation = before
