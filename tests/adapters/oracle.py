"""The slow truth: dense runs in which dropped tokens, or dropped patches, are masked out of every attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.vision_utils import get_vision_window_index

from arr_coc.adapters.base import Adapter, Encoded, Visual
from arr_coc.adapters.packing import assemble, model_kwargs


def choose(visuals: list[Visual], share: float = 0.4, seed: int = 3) -> list[torch.Tensor]:
    """Some cells of every visual, by chance."""
    dice = torch.Generator().manual_seed(seed)
    return [
        torch.randperm(visual.n, generator=dice)[: max(1, round(visual.n * share))].sort().values for visual in visuals
    ]


def at_hand(adapter: Adapter, inputs: dict[str, Any]) -> dict[str, Any]:
    """A processor's output as `prepare` hands it on: only the pixels lie on the model's device."""
    return {name: value if name in adapter.pixel_keys else value.cpu() for name, value in inputs.items()}


def sparse(
    adapter: Adapter,
    inputs: dict[str, Any],
    keeps: list[torch.Tensor] | None = None,
    encoded: list[Encoded] | None = None,
) -> tuple[dict[str, Any], torch.Tensor]:
    """Our way: keywords for the model, and where each token of the pruned prompt came from."""
    inputs = at_hand(adapter, inputs)
    visuals = adapter.visuals(inputs)
    encoded = adapter.encode(inputs, visuals, None, ()) if encoded is None else encoded
    keeps = [seen.cells for seen in encoded] if keeps is None else keeps
    packed, kept = assemble(adapter, inputs, visuals, encoded, keeps)
    return model_kwargs(adapter, packed, kept), packed.source


def masked(adapter: Adapter, inputs: dict[str, Any], keeps: list[torch.Tensor]) -> dict[str, Any]:
    """The dense prompt, every feature in it, with the dropped tokens masked at every layer."""
    inputs = at_hand(adapter, inputs)
    visuals = adapter.visuals(inputs)
    dense, _ = sparse(adapter, inputs)
    mask = inputs["attention_mask"].clone()
    for visual, keep in zip(visuals, keeps, strict=True):
        mask[visual.row, visual.places] = visual.tokens_kept(keep).long()
    positions = adapter.positions(inputs)
    return dense | {"attention_mask": mask.to(adapter.device), "position_ids": positions.to(adapter.device)}


def at_source(dense: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The dense logits `[B, T, V]` of the tokens that a pruned prompt still has, row after row: `[S, V]`."""
    return torch.cat([row[places[places >= 0]] for row, places in zip(dense, source, strict=True)])


def real(logits: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """A pruned prompt's logits without its padding: `[S, V]`."""
    return torch.cat([row[places >= 0] for row, places in zip(logits, source, strict=True)])


@contextmanager
def deaf_to(model: Any, patches: torch.Tensor, thw: torch.Tensor) -> Iterator[None]:
    """Inside, the stock encoder attends to the patches where `patches` `[P]` is True only, in every layer.

    It calls its attention once per segment, in order, so a running count tells which patches a call is about.
    """
    encoder = model.model.visual
    order = patches
    if hasattr(encoder, "window_size"):
        window, _ = get_vision_window_index(thw, encoder.spatial_merge_size, encoder.window_size, encoder.patch_size)
        order = patches.view(-1, encoder.spatial_merge_size**2)[window].flatten()
    at = 0

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        nonlocal at
        length = query.shape[2]
        heard = order[at : at + length]
        at = (at + length) % len(order)
        if not heard.any():  # nothing in this segment is kept: whatever comes out is not looked at
            return value.transpose(1, 2), None
        scores = query @ key.transpose(2, 3) * given["scaling"]
        weights = scores.masked_fill(~heard, -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2), None

    with attending(encoder, attend):
        yield


@contextmanager
def attending(encoder: Any, attend: Any) -> Iterator[None]:
    """Inside, the encoder uses `attend` as its attention function."""
    AttentionInterface.register("of_a_test", attend)
    before = encoder.config._attn_implementation
    encoder.config._attn_implementation = "of_a_test"
    try:
        yield
    finally:
        encoder.config._attn_implementation = before


def greedy(model: Any, inputs: dict[str, Any], count: int = 20, **options: Any) -> torch.Tensor:
    """The next `count` tokens `[B, count]`, the end token ignored."""
    return model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None, **options)[:, -count:]
