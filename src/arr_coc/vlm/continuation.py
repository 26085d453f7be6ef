"""Continuing the prefill where a probe stopped: the probed layers run once, and later layers read the kept cells only.

A probe reads the language model's attention in its middle layers, which takes a prefill of the layers before. A selector
with `continues` does not repeat them. Its call before the language model is put off (`ProbeDeferred`); the prompt starts with
the cells that it wanted to probe; inside `generate`, it gets their attention and chooses; the layers from there on read what
it chose. The result equals the model with the cells that were not probed masked at every layer, and those that were
dropped masked from that layer on.

Selectors that only work inside the language model (`depths`) take the same way: `prune_inside`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from arr_coc.adapters import layer_pruning
from arr_coc.adapters.base import Adapter
from arr_coc.adapters.layer_pruning import PruningRequest
from arr_coc.errors import SelectorError
from arr_coc.selectors import selector as selector_of
from arr_coc.selectors.base import Choice, LayerState, SelectionInput, Selector
from arr_coc.selectors.scoring import top_k
from arr_coc.vlm.request import Request, SelectionRequest


class ProbeDeferred(BaseException):
    """Ends a selector's call before the language model at its probe. Selectors that catch exceptions do not catch it."""

    def __init__(self, cells: torch.Tensor, layers: tuple[int, ...]) -> None:
        self.cells, self.layers = cells, layers


@dataclass(frozen=True, eq=False)
class Deferred:
    """A call that waits for the attention to `cells` `[M]` in some language layers."""

    selection: SelectionInput
    cells: torch.Tensor
    layers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Waiting:
    """The calls of a prompt that wait, by row. `allowed` says whether its options let any do so; it is asked only where one would."""

    allowed: Callable[[], bool]
    rows: dict[int, Deferred] = field(default_factory=dict)


def can_defer(adapter: Adapter, layers: Sequence[int], cells: torch.Tensor, k: int | None) -> bool:
    """Whether the prefill can continue from a probe of `cells` `[M]`: tokens can be dropped there, and enough were probed."""
    return (
        k is not None
        and k < len(cells)
        and adapter.readable
        and adapter.semantics == "masked"
        and min(layers) >= max(1, adapter.deep_layers)
    )


class Continued(Selector):
    """The selector of a request inside the language model: it chooses at the layer where its probe would have stopped."""

    def __init__(self, chosen: Selector, rows: Mapping[int, Deferred], layer_count: int) -> None:
        """`rows`: the calls that wait. Rows that are not in it keep the cells that they have."""
        self.name, self.chosen, self.rows = chosen.name, chosen, rows
        self.layers = sorted({layer for one in rows.values() for layer in one.layers})
        self.depths = tuple(layer / layer_count for layer in self.layers)
        self.maps: dict[int, list[torch.Tensor]] = {}  # row -> attention to its cells [M], layer by layer

    def at_layer(self, state: LayerState) -> Choice:
        here = state.cells >= 0
        waiting = self.rows.get(state.row)
        if waiting is None or state.layer not in waiting.layers:
            return Choice(state.cells[here])
        last = torch.tensor([len(state.cells) - 1])
        maps = self.maps.setdefault(state.row, [])
        maps.append(state.next_attention(last).mean((0, 1)).cpu()[here])
        if state.layer < max(waiting.layers):
            return Choice(state.cells[here])
        return self._choose(waiting, torch.stack(maps).mean(0), state.cells[here])

    def _choose(self, waiting: Deferred, attention: torch.Tensor, present: torch.Tensor) -> Choice:
        """The selector's own choice, given the attention `[M]` to the cells `present` `[M]`."""

        def probe(cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
            if not torch.equal(cells, present):
                raise SelectorError("expected the same cells to be probed again: the selector is not deterministic")
            return attention

        selection = replace(waiting.selection, probe=probe)
        found = self.chosen.select(selection)
        choice = found if isinstance(found, Choice) else Choice(found)
        keep = choice.keep[torch.isin(choice.keep, present)]
        if choice.relevance is not None and len(keep) < len(choice.keep):  # some were not probed: take the next best
            rest = present[~torch.isin(present, keep)]
            keep = torch.cat([keep, rest[top_k(choice.relevance[rest], len(choice.keep) - len(keep))]]).sort().values
        relevance = None if choice.relevance is None else choice.relevance[present]
        return replace(choice, keep=keep, relevance=relevance)


# What an answer asks of this module.


def prune_inside(
    adapter: Adapter, request: Request, remember: bool, options: Mapping[str, Any]
) -> tuple[Request, PruningRequest]:
    """A selector that works inside the language model: keep everything before it, and prune during generation."""
    selection = request.selection
    chosen = selection.selector
    if remember:
        raise SelectorError(f"selector {chosen.name!r} leaves a cache that cannot be continued: drop remember=True")
    layer_pruning.check_options(adapter, chosen, options)
    everything = selector_of("all")
    glancing = everything if selection.glance_selector is chosen else selection.glance_selector
    before = replace(selection, selector=everything, glance_selector=glancing, budget="all", shared=False)
    pruning = PruningRequest(chosen, selection.budget, selection.shared, selection.seed)
    layer_pruning.check(adapter, pruning)
    return replace(request, selection=before), pruning


def allow_waiting(adapter: Adapter, request: Request, remember: bool, options: Mapping[str, Any]) -> Waiting | None:
    """The calls of a selector that may wait for the prefill; None where something speaks against dropping inside of it."""
    selection, chosen = request.selection, request.selection.selector
    if remember or selection.shared:
        return None
    if isinstance(selection.budget, list | tuple):
        return None  # budgets by image: a large image may be shown as several

    def allowed() -> bool:
        try:
            layer_pruning.check_options(adapter, chosen, options)
        except SelectorError:
            return False  # then the probe runs separately
        return True

    return Waiting(allowed)


def prune_from_probe(adapter: Adapter, selection: SelectionRequest, waiting: Waiting) -> PruningRequest:
    """Dropping inside the language model, where the selector's waiting calls get their attention."""
    chosen = Continued(selection.selector, waiting.rows, len(adapter.text_model.layers))
    return PruningRequest(chosen, selection.budget, False, selection.seed, partial=True)
