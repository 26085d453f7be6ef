"""The ground truth: runs of the stock model in which dropped tokens, or dropped patches, are masked in every attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.vision_utils import get_vision_window_index

from arr_coc.adapters.base import Adapter, Encoded, Visual
from arr_coc.adapters.packing import assemble, model_kwargs
from arr_coc.adapters.qwen2_vl import PIXELS, Qwen2VL
from tests.adapters.families import FAMILIES

Deep = list[torch.Tensor]


def choose(visuals: list[Visual], share: float = 0.4, seed: int = 3) -> list[torch.Tensor]:
    """Some cells of every visual, by chance."""
    dice = torch.Generator().manual_seed(seed)
    return [
        torch.randperm(visual.n, generator=dice)[: max(1, round(visual.n * share))].sort().values for visual in visuals
    ]


def on_host(adapter: Adapter, inputs: dict[str, Any]) -> dict[str, Any]:
    """A processor's output as `prepare` passes it on: only the pixels are on the model's device."""
    return {name: value if name in adapter.pixel_keys else value.cpu() for name, value in inputs.items()}


def sparse(
    adapter: Adapter,
    inputs: dict[str, Any],
    keeps: list[torch.Tensor] | None = None,
    encoded: list[Encoded] | None = None,
) -> tuple[dict[str, Any], torch.Tensor]:
    """What is tested: keyword arguments for the model, and each token's index in the dense prompt."""
    inputs = on_host(adapter, inputs)
    visuals = adapter.visuals(inputs)
    encoded = adapter.encode(inputs, visuals, None, ()) if encoded is None else encoded
    keeps = [seen.cells for seen in encoded] if keeps is None else keeps
    packed, kept = assemble(adapter, inputs, visuals, encoded, keeps)
    return model_kwargs(adapter, packed, kept), packed.source


def positions(mask: torch.Tensor) -> torch.Tensor:
    """What `generate` makes of a mask, in families with one position per token."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


def dense(adapter: Adapter, inputs: dict[str, Any]) -> dict[str, Any]:
    """The stock model's inputs, pixels and all, with the positions that its `generate` gives them."""
    return inputs if isinstance(adapter, Qwen2VL) else inputs | {"position_ids": positions(inputs["attention_mask"])}


def masked(adapter: Adapter, inputs: dict[str, Any], keeps: list[torch.Tensor]) -> dict[str, Any]:
    """The dense prompt with the tokens of all cells but the kept ones masked at every layer."""
    inputs = on_host(adapter, inputs)
    mask = inputs["attention_mask"].clone()
    for visual, keep in zip(adapter.visuals(inputs), keeps, strict=True):
        cells = torch.arange(len(visual.places)) if visual.cells is None else visual.cells
        dropped = torch.ones(visual.n, dtype=torch.bool)
        dropped[keep] = False
        mask[visual.row, visual.places[cells[dropped]]] = 0
    if isinstance(adapter, Qwen2VL):  # from pixels, `generate` would compute positions from the mask
        whole, _ = sparse(adapter, inputs)
        where = adapter.positions(inputs).to(adapter.device)
        return whole | {"attention_mask": mask.to(adapter.device), "position_ids": where}
    return dense(adapter, inputs) | {"attention_mask": mask}


@torch.no_grad()
def converse(
    adapter: Adapter, inputs: dict[str, Any], since: torch.Tensor, count: int
) -> tuple[list[int], torch.Tensor]:
    """The next `count` greedy tokens of a dense conversation, none of them visual, and their probabilities; no cache.

    `since` `[T]`: the turn from which each token is read; a very late one for cells that are not read. A token attends to
    those before it that were read by its own turn.
    """
    inputs = on_host(adapter, inputs)
    whole, _ = sparse(adapter, inputs)
    ids, places, now = whole["input_ids"], adapter.positions(inputs).to(adapter.device), int(since[-1])
    said, chances = [], []
    for _ in range(count):
        order = torch.arange(ids.shape[1])
        seen = (order[None] <= order[:, None]) & (since[None] <= since[:, None])
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
        given = {**whole, "input_ids": ids, "attention_mask": mask, "position_ids": places, **adapter.token_kwargs(ids)}
        logits = adapter.model(**given, use_cache=False).logits[0, -1]
        logits[[adapter.token_id(kind) for kind in adapter.kinds]] = -torch.inf
        chances.append(logits.softmax(-1))
        said.append(int(logits.argmax()))
        ids = torch.cat([ids, torch.tensor([[said[-1]]])], 1)
        places = torch.cat([places, places[..., -1:] + 1], -1)
        since = torch.cat([since, torch.tensor([now])])
    return said, torch.stack([one[token] for one, token in zip(chances, said, strict=True)])


@torch.no_grad()
def embedded(adapter: Adapter, inputs: dict[str, Any]) -> dict[str, Any]:
    """The same prompt as embeddings, pictures included: beam search repeats them row by row.

    (From pixels, some versions of transformers mix up the pictures of a row in beam search.)
    """
    if isinstance(adapter, Qwen2VL):
        return inputs
    caught: list[torch.Tensor] = []
    handle = adapter.text_model.register_forward_pre_hook(
        lambda module, args, given: caught.append(given["inputs_embeds"]), with_kwargs=True
    )
    adapter.model(**inputs)
    handle.remove()
    return {"inputs_embeds": caught[0], **{name: inputs[name] for name in ("attention_mask", "position_ids")}}


def at_source(dense: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The dense logits `[B, T, V]` of the tokens that a pruned prompt still has, row after row: `[S, V]`."""
    return torch.cat([row[places[places >= 0]] for row, places in zip(dense, source, strict=True)])


def real(logits: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """A pruned prompt's logits without its padding: `[S, V]`."""
    return torch.cat([row[places >= 0] for row, places in zip(logits, source, strict=True)])


def greedy(model: Any, inputs: dict[str, Any], count: int = 20, **options: Any) -> torch.Tensor:
    """The next `count` tokens `[B, count]`, the end token ignored."""
    return model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None, **options)[:, -count:]


# The vision encoder.


def encoder_truth(
    family: str, adapter: Adapter, inputs: dict[str, Any], keeps: list[torch.Tensor]
) -> list[tuple[torch.Tensor, Deep]]:
    """Each visual's kept tokens and deep features, by the stock encoder with the dropped patches masked."""
    visuals = adapter.visuals(inputs)
    features = _qwen_features if FAMILIES[family].mrope else _tile_features
    found = features(family, adapter, inputs, visuals, keeps)
    out = []
    for visual, keep in zip(visuals, keeps, strict=True):
        cells = torch.arange(visual.n) if visual.cells is None else visual.cells
        tokens, deep = found[visual.kind, visual.number]
        out.append((tokens[cells[keep]], [level[cells[keep]] for level in deep]))
    return out


def _qwen_features(
    family: str, adapter: Adapter, inputs: dict[str, Any], visuals: list[Visual], keeps: list[torch.Tensor]
) -> dict[tuple[str, int], tuple[torch.Tensor, Deep]]:
    found = {}
    for kind, (pixels, grid) in PIXELS.items():
        pairs = [(v, k) for v, k in zip(visuals, keeps, strict=True) if v.kind == kind]
        if not pairs:
            continue
        pairs.sort(key=lambda pair: pair[0].number)
        heard = torch.cat([visual.tokens_kept(keep) for visual, keep in pairs]).repeat_interleave(4)
        with _masked_segments(adapter.core.visual, heard, inputs[grid]):
            output = adapter.core.visual(inputs[pixels], grid_thw=inputs[grid], return_dict=True)
        counts = [visual.n for visual, _ in pairs]
        deep = [level.split(counts) for level in getattr(output, "deepstack_features", [])]
        for number, tokens in enumerate(output.pooler_output.split(counts)):
            found[kind, number] = (tokens, [level[number] for level in deep])
    return found


def _tile_features(
    family: str, adapter: Adapter, inputs: dict[str, Any], visuals: list[Visual], keeps: list[torch.Tensor]
) -> dict[tuple[str, int], tuple[torch.Tensor, Deep]]:
    with _masked_tiles(vision_tower(adapter.model), tile_mask(family, visuals, keeps)):
        answer = adapter.core.get_image_features(inputs["pixel_values"], return_dict=True).pooler_output
    flat = answer.flatten(0, -2) if isinstance(answer, torch.Tensor) else torch.cat(list(answer))
    in_order = sorted(visuals, key=lambda visual: visual.number)
    parts = flat.split([len(visual.places) for visual in in_order])
    return {("image", visual.number): (tokens, []) for visual, tokens in zip(in_order, parts, strict=True)}


def vision_tower(model: Any) -> Any:
    return model.model.vision_tower if hasattr(model.model, "vision_tower") else model.model.vision_model


def tile_mask(family: str, visuals: list[Visual], keeps: list[torch.Tensor]) -> torch.Tensor:
    """`[T, S]`: the tower's tokens that belong to kept cells, and its class token."""
    merge, first = FAMILIES[family].merge, FAMILIES[family].class_tokens
    side = visuals[0].grid.views[0].h
    rows = []
    for visual, keep in sorted(zip(visuals, keeps, strict=True), key=lambda pair: pair[0].number):
        kept = torch.zeros(visual.n, dtype=torch.bool)
        kept[keep] = True
        for tile in kept.view(-1, side, side):
            patches = tile.repeat_interleave(merge, 0).repeat_interleave(merge, 1).flatten()
            rows.append(torch.cat([torch.ones(first, dtype=torch.bool), patches]))
    return torch.stack(rows)


@contextmanager
def _masked_segments(encoder: Any, patches: torch.Tensor, thw: torch.Tensor) -> Iterator[None]:
    """Inside, the stock encoder attends only to the patches where `patches` `[P]` is True, in every layer.

    It calls its attention once per segment, in order, so a running count finds the patches of a call.
    """
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
        if not heard.any():  # nothing of this segment is kept: its output is not used
            return value.transpose(1, 2), None
        scores = query @ key.transpose(2, 3) * given["scaling"]
        weights = scores.masked_fill(~heard, -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2), None

    with attention_function(encoder, attend):
        yield


@contextmanager
def _masked_tiles(tower: Any, heard: torch.Tensor) -> Iterator[None]:
    """Inside, a plain ViT attends only to the tokens where `heard` `[T, S]` is True, tile by tile, in every layer."""

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        scores = query @ key.transpose(2, 3) * given["scaling"]
        scores = scores.masked_fill(~heard[:, None, None], torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    with attention_function(tower, attend):
        yield


@contextmanager
def attention_function(encoder: Any, attend: Any) -> Iterator[None]:
    """Inside, the encoder uses `attend` as its attention function."""
    AttentionInterface.register("of_a_test", attend)
    before = encoder.config._attn_implementation
    encoder.config._attn_implementation = "of_a_test"
    try:
        yield
    finally:
        encoder.config._attn_implementation = before
