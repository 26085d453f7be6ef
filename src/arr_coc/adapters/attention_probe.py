"""Scouting: what the language model looks for before it has said a word, from a short run over some of the cells.

The prompt is read as far as the deepest layer that is asked for and no further. Nothing is generated, and nothing of it stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from arr_coc.adapters import assembly
from arr_coc.adapters.attention import causal_attention
from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual


def scout(
    adapter: Adapter, inputs: Inputs, visuals: Sequence[Visual], encoded: Sequence[Encoded], number: int,
    cells: torch.Tensor, depths: Sequence[float],
) -> torch.Tensor:  # fmt: skip
    """The attention `[K]` that `cells` of picture `number` get from the prompt's last token, averaged over heads and depths.

    The prompt's other pictures are left out: each is scouted by itself. `depths` are shares of the layers.
    """
    visual, cells = visuals[number], cells.contiguous()
    mine = [i for i, other in enumerate(visuals) if other.row == visual.row]
    nothing = cells[:0]
    alone = {
        name: value[visual.row : visual.row + 1]
        for name, value in inputs.items()
        if name in ("input_ids", "attention_mask")
    }
    positions = adapter.positions(inputs)[..., visual.row : visual.row + 1, :]
    packed, kept = assembly.assemble(
        adapter, alone, [_first_row(visuals[i]) for i in mine], [encoded[i] for i in mine],
        [cells if i == number else nothing for i in mine], positions=positions,
    )  # fmt: skip
    wanted = run_layers(depths, len(adapter.text_model.layers))
    length = packed.input_ids.shape[1]
    last = torch.tensor([length - 1], device=adapter.device)
    seen = attention_maps(adapter, assembly.keywords(adapter, packed, kept), wanted, lambda tokens: last)
    places = torch.searchsorted(packed.source[0], visual.cell_places[cells])
    return torch.stack([seen[layer].mean((0, 1))[places] for layer in wanted]).mean(0)


def run_layers(depths: Sequence[float], count: int) -> list[int]:
    """The layers of `count` whose attention is looked at; all before the last of them run.

    >>> run_layers((0.5, 2 / 3), 6)
    [3, 4]
    """
    return sorted({min(round(depth * count), count - 1) for depth in depths})


class _FarEnough(Exception):
    """The deepest layer that was asked for has been reached."""


@torch.no_grad()
def attention_maps(
    adapter: Adapter, given: Mapping[str, Any], wanted: Sequence[int], queries: Callable[[int], torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Attention `[heads, Q, T]` of some tokens of a one-row prompt in the layers `wanted`; later layers do not run.

    `queries(T)` says which tokens, `[Q]`.
    """
    with suppress(_FarEnough), watching(adapter, wanted, queries, stop=True) as found:
        adapter.model(**given, use_cache=False)
    return found


@contextmanager
def watching(
    adapter: Adapter, wanted: Sequence[int], queries: Callable[[int], torch.Tensor], stop: bool = False
) -> Iterator[dict[int, torch.Tensor]]:
    """Inside, a run of the model leaves those maps behind; `stop`: it ends where the last of them is taken."""
    thread = threading.get_ident()
    found: dict[int, torch.Tensor] = {}

    def hooked(number: int) -> Any:
        def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() != thread:
                return
            hidden = args[0] if args else kwargs["hidden_states"]
            cos, sin = (table[0] for table in kwargs["position_embeddings"])
            maps = causal_attention(layer, hidden[0], cos, sin, queries(hidden.shape[1]))
            found[number] = maps.cpu()
            if stop and number == max(wanted):
                raise _FarEnough

        return hook

    layers = list(adapter.text_model.layers)
    handles = [layers[number].register_forward_pre_hook(hooked(number), with_kwargs=True) for number in wanted]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _first_row(visual: Visual) -> Visual:
    return Visual(0, visual.kind, visual.number, visual.grid, visual.places, visual.cells)
