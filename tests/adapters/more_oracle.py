"""The ground truth for `more_families.py`, read from runs of the stock models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers.vision_utils import get_vision_window_index

from arr_coc.adapters.base import Adapter, Encoded, Visual
from arr_coc.adapters.families import adapter
from arr_coc.adapters.packing import assemble, model_kwargs
from tests.adapters.more_families import model, prompt
from tests.adapters.oracle import attention_function

STEPS = 4
TOLERANCE = 2e-5
GREEDY: dict[str, Any] = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None}
RASTER = ("kimi_k25", "paddleocr_vl", "hunyuan_vl", "mistral3", "pixtral", "lighton_ocr")  # patches row by row


@dataclass(frozen=True, eq=False)
class Case:
    """A model, a prompt, and what the stock model does with it."""

    family: str
    model: Any
    adapter: Adapter
    inputs: dict[str, Any]
    visuals: list[Visual]
    encoded: list[Encoded]
    given: dict[str, Any]  # what the stock `generate` gave to the text model at first
    logits: torch.Tensor  # [B, V] of the first token
    answer: torch.Tensor  # [B, STEPS]


@lru_cache
@torch.no_grad()
def case(family: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32, rows: str = "ragged") -> Case:
    stock = model(family, attention, dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in prompt(family, rows).items()}
    reader = adapter(stock)
    with _caught(reader.text_model) as calls:
        made = stock.generate(**dict(inputs), **GREEDY, output_logits=True, return_dict_in_generate=True)
    visuals = reader.visuals(inputs)
    return Case(
        family, stock, reader, inputs, visuals, reader.encode(inputs, visuals, None, ()), calls[0], made.logits[0],
        made.sequences[:, -STEPS:],
    )  # fmt: skip


@contextmanager
def _caught(module: Any) -> Iterator[list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []

    def hook(module: Any, args: Any, given: dict[str, Any]) -> None:
        calls.append(dict(given))

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def choose(found: Case, share: float = 0.4, seed: int = 3) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return [
        torch.randperm(visual.n, generator=dice)[: max(2, round(visual.n * share))].sort().values
        for visual in found.visuals
    ]


def keyword_arguments(found: Case, keeps: list[torch.Tensor] | None = None) -> dict[str, Any]:
    """What is tested."""
    keeps = [seen.cells for seen in found.encoded] if keeps is None else keeps
    packed, kept = assemble(found.adapter, found.inputs, found.visuals, found.encoded, keeps)
    return model_kwargs(found.adapter, packed, kept)


def last_logits(found: Case, given: dict[str, Any]) -> torch.Tensor:
    made = found.model.generate(
        **given, **GREEDY | {"max_new_tokens": 1}, output_logits=True, return_dict_in_generate=True
    )
    return made.logits[0]


def generated(found: Case, given: dict[str, Any]) -> torch.Tensor:
    return found.model.generate(**given, **GREEDY)[:, -STEPS:]


def stepwise(found: Case, keeps: list[torch.Tensor]) -> torch.Tensor:
    """A greedy answer without a cache: every token by a pass over the whole pruned prompt."""
    given = keyword_arguments(found, keeps)
    for _ in range(STEPS):
        fresh = keyword_arguments(found, keeps)["mm_encoder_outputs"]  # a pass may write into it
        token = found.model(**given | {"mm_encoder_outputs": fresh}, use_cache=False).logits[:, -1:].argmax(-1)
        given["input_ids"] = torch.cat([given["input_ids"], token], 1)
        given["attention_mask"] = torch.cat([given["attention_mask"], torch.ones_like(token)], 1)
        given["position_ids"] = torch.cat([given["position_ids"], given["position_ids"][..., -1:] + 1], -1)
        given |= found.adapter.token_kwargs(given["input_ids"])
    return given["input_ids"][:, -STEPS:]


# The language model.


def language_error(
    found: Case, keeps: list[torch.Tensor], renumbered: bool = False, flipped: bool = False, masked: bool = False,
    against: list[torch.Tensor] | None = None,
) -> float:  # fmt: skip
    """The largest difference in the text model's output at the kept tokens; the options make mistakes on purpose."""
    packed, kept = assemble(found.adapter, found.inputs, found.visuals, found.encoded, keeps)
    if flipped:
        kept = {
            kind: [(tokens.flip(0), tuple(level.flip(0) for level in deep)) for tokens, deep in rows]
            for kind, rows in kept.items()
        }
    given = model_kwargs(found.adapter, packed, kept)
    if renumbered:
        mask = given["attention_mask"]
        rising = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        given["position_ids"] = rising.expand_as(given["position_ids"])
    ours = _text_output(found, given)
    left = _left(found, keeps if against is None else against)
    rows = [row[real.bool()] for row, real in zip(ours, given["attention_mask"], strict=True)]
    removing = found.adapter.semantics == "removed" and not masked
    truth = _removed(found, left) if removing else _masked(found, left)
    counts = [min(len(a), len(b)) for a, b in zip(rows, truth, strict=True)]
    return max(float((a[-count:] - b[-count:]).abs().max()) for a, b, count in zip(rows, truth, counts, strict=True))


def _left(found: Case, keeps: list[torch.Tensor]) -> torch.Tensor:
    """`[B, T]`: the tokens of the whole prompt that are left."""
    left = found.inputs["attention_mask"].bool().clone()
    for visual, keep in zip(found.visuals, keeps, strict=True):
        left[visual.row, visual.places] = visual.tokens_kept(keep)
    return left


def _text_output(found: Case, given: dict[str, Any]) -> torch.Tensor:
    caught: list[torch.Tensor] = []
    handle = found.adapter.text_model.register_forward_hook(lambda *all_: caught.append(all_[-1][0]))
    found.model(**given)
    handle.remove()
    return caught[0]


def _masked(found: Case, left: torch.Tensor) -> list[torch.Tensor]:
    """The stock model, from pixels, with the dropped tokens masked at every layer."""
    mask = left.to(found.inputs["attention_mask"].dtype)
    out = _text_output(found, found.inputs | {"attention_mask": mask, "position_ids": found.given["position_ids"]})
    return [row[here] for row, here in zip(out, left, strict=True)]


def _removed(found: Case, left: torch.Tensor) -> list[torch.Tensor]:
    """The stock text model on the embeddings without the dropped tokens, each row alone, with the positions of the whole."""
    out, (batch, length) = [], left.shape
    for row, here in enumerate(left):

        def cut(value: Any, row: int = row, here: torch.Tensor = here) -> Any:
            if isinstance(value, torch.Tensor) and value.shape[:2] == (batch, length):
                return value[row : row + 1, here]
            if isinstance(value, torch.Tensor) and value.ndim == 3 and value.shape[1:] == (batch, length):
                return value[:, row : row + 1, here]
            return value

        names = ("inputs_embeds", "position_ids", "per_layer_inputs")
        given = {name: cut(found.given[name]) for name in names if found.given.get(name) is not None}
        given["attention_mask"] = torch.ones(given["inputs_embeds"].shape[:2], dtype=torch.long)
        kinds = {name: cut(value) for name, value in found.adapter.token_kwargs(found.inputs["input_ids"]).items()}
        if found.family == "llama4":  # its temperature counts the padding of a batch, in the stock model, too
            given = _padded(given, int(left.sum(1).max()))
        runs = found.adapter.core if kinds else found.adapter.text_model  # the stock model makes masks from the kinds
        out.append(runs(**given, **kinds).last_hidden_state[0, -int(here.sum()) :])
    return out


def _padded(given: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """One row's tensors `[1, T, ...]`, padded on the left with zeros."""
    missing = length - given["attention_mask"].shape[1]
    return {name: torch.cat([value.new_zeros(1, missing, *value.shape[2:]), value], 1) for name, value in given.items()}


# The vision encoder.


def encoder_error(
    found: Case, keeps: list[torch.Tensor], against: list[torch.Tensor] | None = None
) -> tuple[float, float]:
    """The largest difference from masking the dropped patches, and how much those patches matter."""
    seen = found.adapter.encode(found.inputs, found.visuals, keeps, ())
    truth = _masked_encoder(found, keeps if against is None else against)
    errors, controls = [0.0], [0.0]
    for visual, ours, whole, stock, keep in zip(
        found.visuals, seen, found.encoded, truth, keeps if against is None else against, strict=True
    ):
        if not len(keep):
            continue
        cells = torch.arange(visual.n) if visual.cells is None else visual.cells
        tokens, deep = stock
        errors.append(float((ours.tokens - tokens[cells[keep]]).abs().max()))
        controls.append(float((whole.tokens[keep] - tokens[cells[keep]]).abs().max()))
        for mine, level in zip(ours.deep, deep, strict=True):
            errors.append(float((mine - level[keep]).abs().max()))
        if ours.extra is not None:
            errors.append(float((ours.extra - whole.extra).abs().max()))
    return max(errors), max(controls)


def _masked_encoder(found: Case, keeps: list[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Each picture's tokens and deep features, by the stock encoder with the dropped patches masked in every attention."""
    made: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
    for kind in found.adapter.kinds:
        numbers = [number for number, visual in enumerate(found.visuals) if visual.kind == kind]
        if numbers:
            output = _masked_kind(found, kind, [(found.visuals[n], keeps[n]) for n in numbers])
            made |= dict(zip(numbers, output, strict=True))
    return [made[number] for number in range(len(found.visuals))]


def _masked_kind(
    found: Case, kind: str, pairs: list[tuple[Visual, torch.Tensor]]
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    heard = torch.cat([_patches(found, visual, keep) for visual, keep in pairs])
    core = found.adapter.core
    names = ("visual", "vision_tower", "vision_encoder")
    tower = next(getattr(core, name) for name in names if hasattr(core, name))
    if hasattr(tower, "window_size"):
        index, _ = get_vision_window_index(
            found.inputs[f"{kind}_grid_thw"], tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        heard = heard.view(-1, 4)[index].flatten()
    at = 0

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        nonlocal at
        length = query.shape[2]
        here = heard[at : at + length]
        at = (at + length) % len(heard)
        mask = given.get("attention_mask") if not _ else _[0]
        scores = query @ key.transpose(2, 3) * given["scaling"]
        scores = scores if mask is None else scores + mask
        lowest = torch.finfo(scores.dtype).min
        return (scores.masked_fill(~here, lowest).softmax(-1) @ value).transpose(1, 2), None

    names = ("pixel_values", "image_grid_thw", "image_sizes")
    if kind == "video":
        names = ("pixel_values_videos", "video_grid_thw")
    given = {name: found.inputs[name] for name in names if name in found.inputs}
    with attention_function(tower, attend):
        output = getattr(core, f"get_{kind}_features")(**given, return_dict=True)
    deep = getattr(output, "deepstack_features", None) or []
    return [(part, [level[number] for level in deep]) for number, part in enumerate(output.pooler_output)]


def received(found: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention that each cell receives in the encoder's first and last block, by the stock attention function."""
    tower, parts = found.adapter.core.visual, {}  # type: ignore[var-annotated]

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        weights = (query @ key.transpose(2, 3) * given["scaling"]).softmax(-1)
        parts.setdefault(id(module), []).append(weights[0].mean((0, 1)))
        return (weights @ value).transpose(1, 2), None

    grid = found.inputs["image_grid_thw"]
    with attention_function(tower, attend):
        found.adapter.core.get_image_features(found.inputs["pixel_values"], grid)
    cells = [torch.cat(parts[id(tower.blocks[number].attn)]).view(-1, 4).mean(1) for number in (0, -1)]
    if hasattr(tower, "window_size"):
        index, _ = get_vision_window_index(grid, tower.spatial_merge_size, tower.window_size, tower.patch_size)
        cells = [values[index.argsort()] for values in cells]
    return cells[0], cells[1]


def _patches(found: Case, visual: Visual, keep: torch.Tensor) -> torch.Tensor:
    """The kept patches of a picture, in the encoder's order."""
    grid, cells = visual.grid.views[0], torch.zeros(visual.n, dtype=torch.bool)
    cells[keep] = True
    merge = 1 if found.family == "pixtral" else 2
    if found.family not in RASTER:
        return cells.repeat_interleave(merge**2)
    square = cells.view(grid.h, grid.w)
    return square.repeat_interleave(merge, 0).repeat_interleave(merge, 1).flatten()
