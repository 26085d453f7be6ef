"""Dropping visual tokens between two layers of the language model, for selectors that want to see its attention first.

During one `generate` call, hooks on the decoder layers shorten what goes into them: from the chosen layer on, dropped
tokens are neither computed nor kept in the cache. The hooks act in the calling thread only and are gone afterwards.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from arr_coc.adapters.attention import causal_attention
from arr_coc.adapters.base import Adapter
from arr_coc.adapters.shortening import shortened
from arr_coc.errors import AllocationError, SelectorError, first_line
from arr_coc.selectors import Choice, Inside, Selector
from arr_coc.selectors.ranking import unit_range
from arr_coc.types.allocation import Allocation, checked
from arr_coc.types.answer import Prepared
from arr_coc.types.budget import Budget, Limit
from arr_coc.types.grid import Grid
from arr_coc.vlm import request as wishes
from arr_coc.vlm.fallback import FallbackWarning


@dataclass(frozen=True)
class Request:
    """A selector that works inside the language model, and what it may keep."""

    selector: Selector
    budget: Budget | Sequence[Budget]
    shared: bool
    seed: int


@dataclass(eq=False)
class Pruner:
    """One `generate` call's dropping: what each row still holds, layer by layer."""

    adapter: Adapter
    request: Request
    cells: torch.Tensor  # [B, L] the cell (of the row's pictures together) at each place of the prompt; -1: not a cell
    totals: list[int]  # cells of each row
    limits: list[Limit]  # of each row: its pictures' together, to spend on them as the selector likes
    real: torch.Tensor  # [B, L] not padding
    layers: dict[int, float]  # layer before which to drop -> the selector's depth
    index: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> [B', L'] places that it and later ones see
    alive: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> [B', L'] those that are not padding
    previous: tuple[torch.Tensor, Any] | None = None  # what went into the layer before
    held: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # layer -> each row's cells from there on
    reasons: dict[int, str] = field(default_factory=dict)
    worth: dict[int, torch.Tensor] = field(default_factory=dict)  # row -> [N] what the selector said of its cells

    def before(self, number: int, hidden: torch.Tensor, given: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """What layer `number` gets in place of `hidden` `[B, T, D]` and its keywords."""
        prefill = hidden.shape[1] > 1
        if prefill and number in self.layers:
            hidden = self._drop(number, hidden)
        stage = max((layer for layer in self.index if layer <= number), default=None)
        if stage is not None:
            given = shortened(given, self.index[stage], self.alive[stage], self.cells.shape[1], prefill)
        if prefill:
            self.previous = (hidden, given)
        return hidden, given

    def _drop(self, number: int, hidden: torch.Tensor) -> torch.Tensor:
        """Ask the selector, row by row, and take the dropped tokens out of `hidden` `[B, T, D]`."""
        earlier = max(self.index, default=None)
        copies = len(hidden) // len(self.cells)
        rows = torch.arange(len(hidden)) // copies
        places = (
            self.index[earlier] if earlier is not None else torch.arange(self.cells.shape[1]).expand(len(hidden), -1)
        )
        alive = self.alive[earlier] if earlier is not None else self.real[rows]
        held = torch.where(alive, self.cells[rows].gather(1, places), -1)  # [B', T]
        last = number == max(self.layers)
        stay = alive.clone()
        for b in range(len(hidden)):
            if b % copies == 0:  # beams and sequences of one row start from the same prompt
                kept = self._ask(int(rows[b]), b, number, hidden, held[b], alive[b], last)
                self.held.setdefault(number, []).append(kept)
            stay[b] &= (held[b] < 0) | torch.isin(held[b], kept)
        length = int(stay.sum(1).max())
        order = stay.int().argsort(dim=1, stable=True)[:, -length:]
        self.index[number], self.alive[number] = places.gather(1, order), stay.gather(1, order)
        return hidden.gather(1, order.to(hidden.device)[..., None].expand(-1, -1, hidden.shape[-1]))

    def _ask(
        self, row: int, b: int, number: int, hidden: torch.Tensor, held: torch.Tensor, alive: torch.Tensor, last: bool
    ) -> torch.Tensor:
        """The cells that a row keeps; evenly spaced ones, and a warning, where the selector fails."""
        present = held[held >= 0]
        bound = self.limits[row]
        if bound.everything or len(present) == 0:
            return present
        real = alive.nonzero()[:, 0]
        here = real.to(hidden.device)
        sight = Inside(
            depth=self.layers[number], layer=number, hidden=hidden[b, here], cells=held[real],
            attend=lambda queries: self._attention(number, b, here, queries), k=bound.k, seed=self.request.seed,
        )  # fmt: skip
        selector = self.request.selector
        try:
            answer = selector.at_layer(sight)
            choice = answer if isinstance(answer, Choice) else Choice(answer)
            keep = checked(choice.keep, Grid(1, 1, self.totals[row]), "kept cells")
            if not torch.isin(keep, present).all():
                raise AllocationError("expected cells that are still there")
            if last and bound.k is not None and len(keep) > bound.k:
                raise AllocationError(f"expected at most {bound.k} cells, got {len(keep)}")
            self._remember(row, number, present, choice.relevance)
            return keep
        except SelectorError:
            raise
        except Exception as error:
            self.reasons[row] = f"{type(error).__name__}: {first_line(error)}"
            warnings.warn(
                f"selector {selector.name!r} failed ({self.reasons[row]}); evenly spaced cells are kept instead",
                FallbackWarning, stacklevel=2,
            )  # fmt: skip
            count = len(present) if bound.k is None else min(bound.k, len(present))
            return present[((torch.arange(count) + 0.5) * len(present) / max(count, 1)).long()]

    def _remember(self, row: int, number: int, present: torch.Tensor, relevance: torch.Tensor | None) -> None:
        """Relevance `[V]` of the cells that are still there; with each layer, those that have come so far rank higher."""
        if relevance is None:
            return
        if tuple(relevance.shape) != tuple(present.shape) or not torch.isfinite(relevance).all():
            raise AllocationError(
                f"expected {len(present)} finite values as relevance, got shape {list(relevance.shape)}"
            )
        stage = sorted(self.layers).index(number)
        worth = self.worth.setdefault(row, torch.zeros(self.totals[row]))
        worth[present] = (stage + unit_range(relevance.detach().float().cpu())) / len(self.layers)

    def _attention(self, number: int, b: int, real: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """`[heads, Q, T]`: row `b`'s attention in the layer before `number`, over the tokens that came out of it."""
        assert self.previous is not None
        entered, given = self.previous
        cos, sin = (table[b if len(table) > 1 else 0, real] for table in given["position_embeddings"])
        layer = self.adapter.text_model.layers[number - 1]
        return causal_attention(layer, entered[b, real], cos, sin, queries.to(entered.device))

    def read(self, cells: torch.Tensor, row: int) -> float:
        """How many of a row's `cells` a language layer reads, on average over all layers."""
        count = len(self.adapter.text_model.layers)
        stages = sorted(self.held)
        spans = zip([0, *stages], [*stages, count], strict=True)
        still = [cells, *(cells[torch.isin(cells, self.held[stage][row])] for stage in stages)]
        return sum(len(some) * (stop - start) for some, (start, stop) in zip(still, spans, strict=True)) / count

    def allocations(self, prepared: Prepared) -> tuple[Allocation, ...]:
        """What was kept in the end, picture by picture."""
        out, start, row = [], 0, 0
        for allocation in prepared.allocations:
            start, row = (0, allocation.row) if allocation.row != row else (start, row)
            kept = self.held[max(self.layers)][allocation.row]
            worth = None if allocation.row in self.reasons else self.worth.get(allocation.row)
            mine = kept[(kept >= start) & (kept < start + allocation.n)] - start
            out.append(
                replace(
                    allocation,
                    keep=mine,
                    read=self.read(torch.arange(start, start + allocation.n), allocation.row),
                    selector=self.request.selector.name,
                    strategy=f"{self.request.selector.name} before layer {', '.join(map(str, sorted(self.layers)))}",
                    relevance=worth[start : start + allocation.n] if worth is not None else None,
                    fallback=self.reasons.get(allocation.row, ""),
                    notes=(*allocation.notes, *filter(None, [self.limits[allocation.row].note])),
                )
            )
            start += allocation.n
        return tuple(out)


def check_options(selector: Selector, options: Mapping[str, Any]) -> None:
    """One sentence where `generate` is asked for what dropping inside the model does not go with."""
    config = options.get("generation_config")
    for name in ("assistant_model", "prompt_lookup_num_tokens", "prefill_chunk_size"):
        if options.get(name, getattr(config, name, None)) is not None:
            raise SelectorError(f"selector {selector.name!r} works inside the language model: leave {name} out")
    if options.get("use_cache", getattr(config, "use_cache", True)) is False:
        raise SelectorError(
            f"selector {selector.name!r} works inside the language model: it needs the cache, leave use_cache on"
        )


@contextmanager
def pruning(adapter: Adapter, prepared: Prepared, request: Request | None) -> Iterator[Pruner | None]:
    """Let `request`'s selector drop tokens inside the model while the `with` lasts; without a request, do nothing."""
    if request is None or not prepared.allocations:
        yield None
        return
    pruner = _pruner(adapter, prepared, request)
    thread = threading.get_ident()

    def hooked(number: int) -> Any:
        def hook(layer: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
            if threading.get_ident() != thread:
                return None
            hidden, given = pruner.before(number, args[0] if args else given["hidden_states"], dict(given))
            given.pop("hidden_states", None)
            return (hidden, *args[1:]), given

        return hook

    first = min(pruner.layers)
    handles = [
        layer.register_forward_pre_hook(hooked(number), with_kwargs=True)
        for number, layer in enumerate(adapter.text_model.layers)
        if number >= first - 1
    ]
    try:
        yield pruner
    finally:
        for handle in handles:
            handle.remove()


def _pruner(adapter: Adapter, prepared: Prepared, request: Request) -> Pruner:
    layers = layers_at(request.selector.depths, len(adapter.text_model.layers), max(1, adapter.deep_layers))
    cells = torch.full(prepared.source.shape, -1)
    totals = [0] * prepared.rows
    ids = prepared["input_ids"].cpu()
    for row in range(prepared.rows):
        left = {kind: (ids[row] == adapter.token_id(kind)).nonzero()[:, 0] for kind in adapter.kinds}
        for allocation in prepared.of_row(row):
            count, which = adapter.token_count(allocation.grid), adapter.cell_tokens(allocation.grid)
            places, left[allocation.kind] = left[allocation.kind].tensor_split([count])
            if len(places) < count:
                raise _not_from_the_start(request)
            cells[row, places if which is None else places[which]] = totals[row] + torch.arange(allocation.n)
            totals[row] += allocation.n
        if any(len(rest) for rest in left.values()):
            raise _not_from_the_start(request)
    limits = _row_limits(request, prepared, totals)
    return Pruner(adapter, request, cells, totals, limits, prepared.source >= 0, layers)


def layers_at(depths: Sequence[float], count: int, earliest: int = 1) -> dict[int, float]:
    """The layer of `count` before which each depth drops; two depths share one only where there are too few layers.

    >>> layers_at((2 / 32, 6 / 32, 15 / 32), 6)
    {1: 0.0625, 2: 0.1875, 3: 0.46875}
    """
    found: dict[int, float] = {}
    for depth in sorted(depths):
        after = max(found, default=earliest - 1) + 1
        found[min(max(round(depth * count), after), count - 1)] = depth
    return found


def _row_limits(request: Request, prepared: Prepared, totals: list[int]) -> list[Limit]:
    """What each row may keep: the sum of its pictures' limits; `auto` where any of them is."""
    bounds = wishes.limits(request.budget, prepared.allocations, "budget", request.shared)
    found = []
    for row, total in enumerate(totals):
        mine = [b for b, allocation in zip(bounds, prepared.allocations, strict=True) if allocation.row == row]
        ks = [bound.k for bound in mine]
        note = next((bound.note for bound in mine if bound.note), "")
        found.append(Limit(total, None if None in ks else sum(k for k in ks if k is not None), note))
    return found


def _not_from_the_start(request: Request) -> SelectorError:
    return SelectorError(
        f"selector {request.selector.name!r} starts from every visual token: leave glance and allocation alone"
    )
