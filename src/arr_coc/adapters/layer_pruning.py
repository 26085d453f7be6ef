"""Dropping visual tokens between two layers of the language model, for selectors that read its attention first.

During one `generate` call, hooks on the decoder layers shorten their inputs: from the chosen layer on, dropped tokens are
neither computed nor cached. The hooks act in the calling thread only and are removed afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from arr_coc.adapters.attention_probe import causal_attention, layer_keys
from arr_coc.adapters.base import Adapter, pre_hooks
from arr_coc.errors import AllocationError, FallbackWarning, SelectorError, first_line
from arr_coc.selectors import Choice, LayerState, Selector
from arr_coc.selectors.scoring import unit_range
from arr_coc.types.allocation import Allocation, check_cells
from arr_coc.types.answer import Prepared
from arr_coc.types.budget import Budget, Limit, limits
from arr_coc.types.grid import Grid


@dataclass(frozen=True)
class PruningRequest:
    """A selector that works inside the language model, and its budget."""

    selector: Selector
    budget: Budget | Sequence[Budget]
    shared: bool
    seed: int
    partial: bool = False  # the prompt may hold some of the cells only


def check(adapter: Adapter, request: PruningRequest) -> None:
    """Raise where tokens cannot be dropped between two layers."""
    if not adapter.readable or adapter.semantics != "masked":
        raise SelectorError(
            f"expected a family whose layers take fewer tokens for selector {request.selector.name!r}, got {adapter.family}: "
            "choose a selector that drops them before the language model"
        )


@dataclass(eq=False)
class LayerPruner:
    """The state of one `generate` call: the cells that each row still holds, layer by layer."""

    adapter: Adapter
    request: PruningRequest
    cells: torch.Tensor  # [B, L] each token's cell, counted over all pictures of its row; -1: not a cell
    totals: list[int]  # cells of each row
    limits: list[Limit]  # of each row: the sum over its pictures, which the selector may distribute freely
    real: torch.Tensor  # [B, L] not padding
    layers: dict[int, float]  # layer before which to drop -> the selector's depth
    index: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> [B', L'] tokens that it and later ones read
    alive: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> [B', L'] those that are not padding
    previous: tuple[torch.Tensor, Any] | None = None  # the input of the layer before
    kept: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # layer -> each row's cells from there on
    reasons: dict[int, str] = field(default_factory=dict)  # row -> why the selector failed
    relevance: dict[int, torch.Tensor] = field(default_factory=dict)  # row -> [N] the selector's scores
    choices: dict[int, Choice] = field(default_factory=dict)  # row -> the last result

    def before(self, number: int, hidden: torch.Tensor, given: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Layer `number`'s input in place of `hidden` `[B, T, D]` and its keyword arguments."""
        prefill = hidden.shape[1] > 1
        if prefill and number in self.layers:
            hidden = self._drop(number, hidden)
        stage = max((layer for layer in self.index if layer <= number), default=None)
        if stage is not None:
            length, flash = self.cells.shape[1], self.adapter.flash_attention
            given = shorten_kwargs(given, self.index[stage], self.alive[stage], length, prefill, flash)
        if prefill:
            self.previous = (hidden, given)
        return hidden, given

    def _drop(self, number: int, hidden: torch.Tensor) -> torch.Tensor:
        """Ask the selector, row by row, and take the dropped tokens out of `hidden` `[B, T, D]`."""
        copies = len(hidden) // len(self.cells)
        rows = torch.arange(len(hidden)) // copies
        if self.index:
            earlier = max(self.index)
            places, alive = self.index[earlier], self.alive[earlier]
        else:
            places, alive = torch.arange(self.cells.shape[1]).expand(len(hidden), -1), self.real[rows]
        here = torch.where(alive, self.cells[rows].gather(1, places), -1)  # [B', T]
        stay = alive.clone()
        for b in range(len(hidden)):
            if b % copies == 0:  # beams and sequences of one row start from the same prompt
                real = alive[b].nonzero()[:, 0]
                kept = self._select(b // copies, b, number, hidden, here[b, real], real.to(hidden.device))
                self.kept.setdefault(number, []).append(kept)
            stay[b] &= (here[b] < 0) | torch.isin(here[b], kept)
        if torch.equal(stay, alive):  # nothing to drop here
            return hidden
        length = int(stay.sum(1).max())
        order = stay.int().argsort(dim=1, stable=True)[:, -length:]
        self.index[number], self.alive[number] = places.gather(1, order), stay.gather(1, order)
        return hidden.gather(1, order.to(hidden.device)[..., None].expand(-1, -1, hidden.shape[-1]))

    def _select(
        self, row: int, b: int, number: int, hidden: torch.Tensor, cells: torch.Tensor, real: torch.Tensor
    ) -> torch.Tensor:
        """The cells that a row keeps of `cells` `[T']`, those of its tokens `real` `[T']` that are not padding.

        Where the selector fails: evenly spaced cells, and a warning.
        """
        present = cells[cells >= 0]
        bound = self.limits[row]
        if bound.everything or len(present) == 0:
            return present
        state = LayerState(
            depth=self.layers[number], layer=number, hidden=hidden[b, real], cells=cells,
            attend=lambda queries: self._attention(number, b, real, queries), k=bound.k, seed=self.request.seed,
            project_keys=lambda: self._keys(number, b, real),
            attend_next=lambda queries: self._next_attention(number, hidden[b, real], b, real, queries), row=row,
        )  # fmt: skip
        selector = self.request.selector
        try:
            answer = selector.at_layer(state)
            choice = answer if isinstance(answer, Choice) else Choice(answer)
            keep = check_cells(choice.keep, Grid(1, 1, self.totals[row]), "kept cells")
            if not torch.isin(keep, present).all():
                raise AllocationError("expected cells that are still there")
            if number == max(self.layers) and bound.k is not None and len(keep) > bound.k:
                raise AllocationError(f"expected at most {bound.k} cells, got {len(keep)}")
            self._store_relevance(row, number, present, choice.relevance)
            self.choices[row] = choice
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

    def _store_relevance(self, row: int, number: int, present: torch.Tensor, relevance: torch.Tensor | None) -> None:
        """Store the scores `[V]` of the cells present; cells that reach a later layer rank above those dropped before."""
        if relevance is None:
            return
        if tuple(relevance.shape) != tuple(present.shape) or not torch.isfinite(relevance).all():
            raise AllocationError(
                f"expected {len(present)} finite values as relevance, got shape {list(relevance.shape)}"
            )
        stage = sorted(self.layers).index(number)
        scores = self.relevance.setdefault(row, torch.zeros(self.totals[row]))
        scores[present] = (stage + unit_range(relevance.detach().float().cpu())) / len(self.layers)

    def _attention(self, number: int, b: int, real: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """Row `b`'s attention in the layer before `number`: `[heads, Q, T]`."""
        return causal_attention(self.adapter.text_model.layers[number - 1], *self._previous_input(b, real), queries)

    def _next_attention(
        self, number: int, hidden: torch.Tensor, b: int, real: torch.Tensor, queries: torch.Tensor
    ) -> torch.Tensor:
        """Row `b`'s attention in layer `number` with input `hidden` `[T, D]`: `[heads, Q, T]`."""
        _, cos, sin = self._previous_input(b, real)
        return causal_attention(self.adapter.text_model.layers[number], hidden, cos, sin, queries)

    def _keys(self, number: int, b: int, real: torch.Tensor) -> torch.Tensor:
        """Row `b`'s keys in the layer before `number`: `[T, heads * d]`."""
        return layer_keys(self.adapter.text_model.layers[number - 1], *self._previous_input(b, real)).flatten(1)

    def _previous_input(self, b: int, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row `b`'s input `[T, D]` of the layer that ran last, and its rotary tables `[T, d]`."""
        assert self.previous is not None
        hidden, given = self.previous
        cos, sin = (table[b if len(table) > 1 else 0, real.to(table.device)] for table in given["position_embeddings"])
        return hidden[b, real.to(hidden.device)], cos, sin

    def mean_cells_read(self, cells: torch.Tensor, row: int) -> float:
        """The number of a row's `cells` that a language layer reads, averaged over all layers."""
        count = len(self.adapter.text_model.layers)
        stages = sorted(self.kept)
        spans = zip([0, *stages], [*stages, count], strict=True)
        still = [cells, *(cells[torch.isin(cells, self.kept[stage][row])] for stage in stages)]
        return sum(len(some) * (stop - start) for some, (start, stop) in zip(still, spans, strict=True)) / count

    def allocations(self, prepared: Prepared) -> tuple[Allocation, ...]:
        """The cells kept in the end, picture by picture."""
        name = self.request.selector.name
        starts = [0] * prepared.rows  # each row's cells in the pictures before
        out = []
        for allocation in prepared.allocations:
            row, start, end = allocation.row, starts[allocation.row], starts[allocation.row] + allocation.n
            starts[row] = end
            kept = self.kept[max(self.layers)][row]
            kept = kept[(kept >= start) & (kept < end)] - start
            if self.request.partial and len(kept) == len(allocation.keep):  # chosen before the language model
                out.append(allocation)
                continue
            scores = None if row in self.reasons else self.relevance.get(row)
            choice = self.choices.get(row) if allocation.n == self.totals[row] and row not in self.reasons else None
            where = f"before layer {', '.join(map(str, sorted(self.layers)))}"
            out.append(
                replace(
                    allocation,
                    keep=kept,
                    read=self.mean_cells_read(start + allocation.keep, row),
                    selector=name,
                    strategy=f"{choice.strategy if choice is not None and choice.strategy else name} {where}",
                    relevance=None if scores is None else scores[start:end],
                    scores={} if choice is None else choice.scores,
                    tensions={} if choice is None else choice.tensions,
                    confidence=1.0 if len(kept) == allocation.n else None if choice is None else choice.confidence,
                    fallback="; ".join(filter(None, [allocation.fallback, self.reasons.get(row)])),
                    notes=(*allocation.notes, *filter(None, [self.limits[row].note])),
                )
            )
        return tuple(out)


def check_options(adapter: Adapter, selector: Selector, options: Mapping[str, Any]) -> None:
    """Raise for options of `generate` that cannot be combined with dropping inside the model."""
    for name in ("assistant_model", "prompt_lookup_num_tokens", "prefill_chunk_size"):
        if adapter.generation_option(options, name) is not None:
            raise SelectorError(f"selector {selector.name!r} works inside the language model: leave {name} out")
    if adapter.generation_option(options, "use_cache") is False:
        raise SelectorError(
            f"selector {selector.name!r} works inside the language model: it needs the cache, leave use_cache on"
        )
    kind = adapter.generation_option(options, "cache_implementation")
    if kind not in (None, "dynamic"):
        raise SelectorError(
            f"selector {selector.name!r} works inside the language model: it needs a dynamic cache, got "
            f"cache_implementation={kind!r}"
        )


@contextmanager
def prune_layers(adapter: Adapter, prepared: Prepared, request: PruningRequest | None) -> Iterator[LayerPruner | None]:
    """Inside the `with`, `request`'s selector drops tokens inside the model; without a request, nothing happens."""
    if request is None or not prepared.allocations:
        yield None
        return
    pruner = _build_pruner(adapter, prepared, request)

    def hook(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, given = pruner.before(number, args[0] if args else kwargs["hidden_states"], dict(kwargs))
        given.pop("hidden_states", None)
        return (hidden, *args[1:]), given

    first = min(pruner.layers) - 1  # the attention before a drop is that of the layer before
    with pre_hooks({n: layer for n, layer in enumerate(adapter.text_model.layers) if n >= first}, hook):
        yield pruner


def _build_pruner(adapter: Adapter, prepared: Prepared, request: PruningRequest) -> LayerPruner:
    layers = layers_at(request.selector.depths, len(adapter.text_model.layers), max(1, adapter.deep_layers))
    cells = torch.full(prepared.source.shape, -1)
    totals = [0] * prepared.rows
    for allocation, places in zip(prepared.allocations, prepared.places, strict=True):
        row = allocation.row
        if len(allocation.keep) < allocation.n and not request.partial:
            raise SelectorError(
                f"selector {request.selector.name!r} starts from every visual token: leave glance and allocation out"
            )
        cells[row, torch.searchsorted(prepared.source[row].contiguous(), places)] = totals[row] + allocation.keep
        totals[row] += allocation.n
    for row in range(prepared.rows):
        if cells[row, -1] >= 0:
            raise SelectorError(
                f"selector {request.selector.name!r} could drop the token that the answer starts from: expected text "
                "after the last picture, got a prompt that ends in it"
            )
    limits = _row_limits(request, prepared, totals)
    return LayerPruner(adapter, request, cells, totals, limits, prepared.source >= 0, layers)


def layers_at(depths: Sequence[float], count: int, earliest: int = 1) -> dict[int, float]:
    """The layer of `count` before which each depth drops; depths share a layer only where there are too few.

    >>> layers_at((2 / 32, 6 / 32, 15 / 32), 6)
    {1: 0.0625, 2: 0.1875, 3: 0.46875}
    """
    found: dict[int, float] = {}
    for depth in sorted(depths):
        after = max(found, default=earliest - 1) + 1
        found[min(max(round(depth * count), after), count - 1)] = depth
    return found


def _row_limits(request: PruningRequest, prepared: Prepared, totals: list[int]) -> list[Limit]:
    """Each row's limit: the sum over its pictures; `auto` if any of them is."""
    by_row: list[list[Limit]] = [[] for _ in totals]
    bounds = limits(request.budget, prepared.allocations, "budget", request.shared)
    for bound, allocation in zip(bounds, prepared.allocations, strict=True):
        by_row[allocation.row].append(bound)
    found = []
    for total, mine in zip(totals, by_row, strict=True):
        ks = [bound.k for bound in mine if bound.k is not None]
        note = next((bound.note for bound in mine if bound.note), "")
        found.append(Limit(total, sum(ks) if len(ks) == len(mine) else None, note))
    return found


def shorten_kwargs(
    given: dict[str, Any], index: torch.Tensor, alive: torch.Tensor, length: int, prefill: bool, flash: bool = False
) -> dict[str, Any]:
    """A layer's keyword arguments for a prompt of `length` tokens, cut to the tokens `index` `[B, L']` that are left.

    `alive` `[B, L']`: those that are not padding. `prefill`: the layer reads the prompt, not a generated token. `flash`:
    the attention takes a mask `[B, T]` of what is not padding.
    """
    made = dict(given)
    cache = given.get("past_key_values")
    if cache is not None and type(cache).__name__ != "DynamicCache":
        raise SelectorError(
            f"dropping tokens inside the language model needs a dynamic cache, got {type(cache).__name__}"
        )
    device = given["position_embeddings"][0].device
    index, alive = index.to(device), alive.to(device)
    if prefill:
        made["position_embeddings"] = tuple(
            table.expand(len(index), -1, -1).gather(1, index[..., None].expand(-1, -1, table.shape[-1]))
            for table in given["position_embeddings"]
        )
        if isinstance(given.get("position_ids"), torch.Tensor) and given["position_ids"].ndim == 2:
            made["position_ids"] = given["position_ids"].expand(len(index), -1).gather(1, index)
    mask = given.get("attention_mask")
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise SelectorError(
            "dropping tokens inside the language model needs attn_implementation='sdpa', 'eager' or FlashAttention, got "
            f"one whose mask is a {type(mask).__name__}"
        )
    if mask is None and flash and not bool(alive.all()):
        mask = torch.ones(len(alive), length + (0 if prefill else _generated(cache, length)), device=device).long()
    made["attention_mask"] = _shorten_mask(mask, index, alive, length, prefill, cache)
    return made


def _shorten_mask(
    mask: torch.Tensor | None, index: torch.Tensor, alive: torch.Tensor, length: int, prefill: bool, cache: Any
) -> torch.Tensor | None:
    if mask is None and bool(alive.all()):
        return None
    if mask is None:  # no padding before, but rows differ in length now
        if prefill:
            square = torch.ones(index.shape[1], index.shape[1], dtype=torch.bool, device=index.device).tril()
            return _open_diagonal(square & alive[:, None, None])
        new = torch.ones(len(alive), _generated(cache, length), dtype=torch.bool, device=index.device)
        return torch.cat([alive, new], 1)[:, None, None]
    if mask.ndim == 2:
        return torch.cat([mask.gather(1, index) * alive, mask[:, length:]], 1)
    old, new = mask[..., :length].expand(len(index), -1, -1, -1), mask[..., length:]
    columns = old.gather(3, index[:, None, None].expand(-1, 1, old.shape[2], -1))
    dead = ~alive[:, None, None]
    columns = columns & ~dead if mask.dtype == torch.bool else columns.masked_fill(dead, torch.finfo(mask.dtype).min)
    if not prefill:
        return torch.cat([columns, new.expand(len(index), -1, -1, -1)], 3)
    rows = columns.gather(2, index[:, None, :, None].expand(-1, 1, -1, columns.shape[3]))
    return _open_diagonal(rows) if mask.dtype == torch.bool else rows


def _generated(cache: Any, length: int) -> int:
    """Tokens generated after a prompt of `length`, the current one included: the first layer has cached it."""
    return int(cache.get_seq_length()) - length


def _open_diagonal(mask: torch.Tensor) -> torch.Tensor:
    """Let a padded query attend to itself: a softmax over nothing is NaN."""
    return mask | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
