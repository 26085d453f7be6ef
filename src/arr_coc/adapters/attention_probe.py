"""The language model's attention to visual tokens, read from a forward pass.

`prompt_attention` probes it before anything is generated: a partial prefill, stopped at the deepest layer asked for.
`locate_answer` reads a finished answer again and finds the cells that its tokens attended to.
The maps are computed from each layer's input, so they do not depend on the attention implementation. Where a family
projects or rotates in its own way, a copy of its attention module, which shares the weights, does so (`module_attention`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual, pre_hooks
from arr_coc.adapters.packing import assemble, model_kwargs
from arr_coc.errors import PromptError
from arr_coc.types.answer import Prepared

PROBE = "arr_coc_probe"  # the name of an attention function
ANSWER_DEPTH = 0.5  # layers from this depth on locate an answer: the earlier ones gather the question


def prompt_attention(
    adapter: Adapter, inputs: Inputs, visuals: Sequence[Visual], encoded: Sequence[Encoded], number: int,
    cells: torch.Tensor, depths: Sequence[float],
) -> torch.Tensor:  # fmt: skip
    """The attention `[K]` from the prompt's last token to `cells` of visual `number`, averaged over heads and depths.

    The prompt's other visuals are left out: each is probed separately. `depths` are shares of the layers.
    """
    visual, cells = visuals[number], cells.contiguous()
    in_row = [i for i, other in enumerate(visuals) if other.row == visual.row]
    row = slice(visual.row, visual.row + 1)
    packed, kept = assemble(
        adapter,
        {name: inputs[name][row] for name in ("input_ids", "attention_mask")},
        [replace(visuals[i], row=0) for i in in_row],
        [encoded[i] for i in in_row],
        [cells if i == number else cells[:0] for i in in_row],
        positions=adapter.positions(inputs)[..., row, :],
    )
    layers = probe_layers(depths, len(adapter.text_model.layers), adapter.probed_layers)
    last = torch.tensor([packed.input_ids.shape[1] - 1], device=adapter.device)
    maps = attention_maps(adapter, model_kwargs(adapter, packed, kept), layers, last)
    places = torch.searchsorted(packed.source[0], visual.cell_places[cells])
    return torch.stack([maps[layer].mean((0, 1))[places] for layer in layers]).mean(0)


def probe_layers(depths: Sequence[float], count: int, among: Sequence[int]) -> list[int]:
    """Those layers `among` the `count` that are nearest to the depths; the layers before the last of them run.

    >>> probe_layers((0.5, 2 / 3), 6, range(6)), probe_layers((0.5, 2 / 3), 6, (1, 5))
    ([3, 4], [1, 5])
    """
    wanted = {min(round(depth * count), count - 1) for depth in depths}
    return sorted({min(among, key=lambda layer: abs(layer - place)) for place in wanted})


def locate_answer(
    adapter: Adapter, prepared: Prepared, answer: torch.Tensor, since: float = ANSWER_DEPTH
) -> list[torch.Tensor]:
    """For each visual the attention `[N]` from the answer's tokens `[A]` to its cells; 0 where a cell was dropped.

    Prompt and answer are read in one forward pass. The maps are averaged over the answer's tokens, the heads, and the
    layers from depth `since` on. Each visual's map is scaled to a maximum of 1.
    """
    if prepared.rows != 1:
        raise PromptError(f"expected a prompt of one row, got {prepared.rows}: locate one answer at a time")
    if not prepared.allocations or len(answer) == 0:
        return [torch.zeros(allocation.n) for allocation in prepared.allocations]
    given, queries = append_answer(prepared, answer)
    maps = attention_maps(adapter, given, late_layers(adapter, since), queries)
    return [cells / cells.max().clamp_min(1e-12) for cells in split_by_visual(prepared, mean_attention(maps))]


def append_answer(prepared: Prepared, answer: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    """The model's keyword arguments for a one-row prompt followed by the answer `[A]`.

    And the tokens `[A]` that predict those of the answer: the one before each.
    """
    given = prepared.make()
    answer = answer.to(given["input_ids"].device)[None]
    steps = torch.arange(1, answer.shape[1] + 1, device=answer.device)
    given["input_ids"] = torch.cat([given["input_ids"], answer], 1)
    given["attention_mask"] = torch.cat([given["attention_mask"], torch.ones_like(answer)], 1)
    given["position_ids"] = torch.cat([given["position_ids"], given["position_ids"][..., -1:] + steps], -1)
    for name in set(given) & {"token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"}:  # the answer is text
        given[name] = torch.cat([given[name], torch.zeros_like(answer, dtype=given[name].dtype)], 1)
    return given, steps + prepared.length - 2


def late_layers(adapter: Adapter, since: float = ANSWER_DEPTH) -> list[int]:
    """The layers from depth `since` on whose attention can be read; the last of them if there is none."""
    first = round(since * (len(adapter.text_model.layers) - 1))
    return [layer for layer in adapter.probed_layers if layer >= first] or adapter.probed_layers[-1:]


def mean_attention(maps: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """The attention that each token `[T]` receives, averaged over layers, heads and queries."""
    return torch.stack([one.mean((0, 1)) for one in maps.values()]).mean(0)


def split_by_visual(prepared: Prepared, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Values of a prompt's tokens `[T]` as values of each visual's cells `[N]`; 0 where a cell was dropped."""
    maps = []
    for allocation, places in zip(prepared.allocations, prepared.places, strict=True):
        cells = torch.zeros(allocation.n)
        cells[allocation.keep] = tokens[torch.searchsorted(prepared.source[0], places)]
        maps.append(cells)
    return maps


class _DeepestLayerReached(Exception):
    """Ends a forward pass early."""


@torch.no_grad()
def attention_maps(
    adapter: Adapter, given: Mapping[str, Any], layers: Sequence[int], queries: torch.Tensor
) -> dict[int, torch.Tensor]:
    """Layer -> attention `[heads, Q, T]` of the tokens `queries` `[Q]` of a one-row prompt.

    Layers after the last of `layers` do not run.
    """
    with suppress(_DeepestLayerReached), record_attention(adapter, layers, queries, stop=True) as found:
        adapter.model(**given, use_cache=False)
    return found


@contextmanager
def record_attention(
    adapter: Adapter, layers: Sequence[int], queries: torch.Tensor, stop: bool = False
) -> Iterator[dict[int, torch.Tensor]]:
    """Inside the `with`, a forward pass fills the dict with those maps; `stop`: it ends at the last of `layers`."""
    found: dict[int, torch.Tensor] = {}
    plain = adapter.readable and adapter.semantics == "masked"

    def hook(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        layer = adapter.text_model.layers[number]
        if plain:
            hidden = args[0] if args else kwargs["hidden_states"]
            cos, sin = (table[0] for table in kwargs["position_embeddings"])
            found[number] = causal_attention(layer, hidden[0], cos, sin, queries).cpu()
        else:
            found[number] = module_attention(layer.self_attn, args, kwargs, queries).cpu()
        if stop and number == max(layers):
            raise _DeepestLayerReached

    chosen = {number: adapter.text_model.layers[number] for number in layers}
    if not plain:
        chosen = {number: layer.self_attn for number, layer in chosen.items()}
    with pre_hooks(chosen, hook):
        yield found


@torch.no_grad()
def module_attention(
    attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], queries: torch.Tensor
) -> torch.Tensor:
    """Attention `[heads, Q, T]` of an attention module called with these arguments, by a copy that shares its weights."""
    from transformers import AttentionInterface

    AttentionInterface.register(PROBE, _probe_attention)
    twin, config = copy.copy(attention), copy.copy(attention.config)
    config._attn_implementation_internal = PROBE  # the setter would also change the parts of the configuration
    twin.config, twin.probe_queries, twin.probe_found = config, queries, []
    given = {name: value for name, value in kwargs.items() if name not in ("past_key_values", "use_cache")}
    given |= {"past_key_values": None} if "past_key_values" in kwargs else {}
    type(attention).forward(twin, *args, **given)  # not `twin(...)`, which would call the hook again
    return twin.probe_found[0]


def _probe_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None, *_: Any,
    scaling: float | None = None, **__: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """An attention function that keeps the weights of the twin's queries, for a prompt of one row."""
    queries, length = module.probe_queries.to(query.device), key.shape[2]
    scores = query[0][:, queries] @ key[0].repeat_interleave(query.shape[1] // key.shape[1], 0).transpose(1, 2)
    scores = scores.float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    mask = attention_mask[0, 0, queries, :length] if attention_mask is not None and attention_mask.ndim == 4 else None
    if mask is None:
        mask = torch.arange(length, device=query.device)[None] <= queries[:, None]
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    module.probe_found.append(scores.softmax(-1))
    return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None


def causal_attention(
    layer: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, queries: torch.Tensor
) -> torch.Tensor:
    """Attention of the tokens `queries` `[Q]` in a decoder layer with input `[T, D]`: `[heads, Q, T]`.

    `cos` and `sin` `[T, d]` are the tokens' rotary tables.
    """
    attention = layer.self_attn
    states = layer.input_layernorm(hidden)
    cos, sin, queries = (part.to(states.device) for part in (cos, sin, queries))  # a layer may be on its own device
    query = _project(attention, "q", states[queries], cos[queries], sin[queries])
    key = _project(attention, "k", states, cos, sin).repeat_interleave(attention.num_key_value_groups, 0)
    scores = query @ key.transpose(1, 2) * attention.scaling
    future = torch.arange(len(states), device=queries.device)[None] > queries[:, None]
    return scores.float().masked_fill(future, -torch.inf).softmax(-1)


def layer_keys(layer: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The keys of a decoder layer with input `[T, D]`, rotated to their positions: `[T, heads, d]`."""
    states = layer.input_layernorm(hidden)
    return _project(layer.self_attn, "k", states, cos.to(states.device), sin.to(states.device)).transpose(0, 1)


def _project(attention: Any, which: str, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys with rotary positions: `[T, D]` to `[H, T, d]`."""
    heads = getattr(attention, f"{which}_proj")(states).view(len(states), -1, attention.head_dim)
    norm = getattr(attention, f"{which}_norm", None)
    heads = (heads if norm is None else norm(heads)).transpose(0, 1)
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
