"""From pictures and a question to kept cells: glance, encode, gaze, for every picture of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from arr_coc import choosing
from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual
from arr_coc.allocation import Allocation, checked
from arr_coc.budgets import Budget, Limit, divide, limit
from arr_coc.errors import AllocationError, BudgetError, SelectorError
from arr_coc.look import Encoding, Look, Source
from arr_coc.selectors import Choice, Selector, Sight, Smaller, Words
from arr_coc.stopwatch import Stopwatch

CACHED_ENCODINGS = 4  # of one look


@dataclass(frozen=True)
class Wish:
    """What the caller wants: how much to encode and to keep, and who decides."""

    selector: Selector
    glance_selector: Selector
    budget: Budget | Sequence[Budget] = "all"
    glance: Budget | Sequence[Budget] = "all"
    allocation: Any = None  # cells decided beforehand, one entry per picture
    shared: bool = False  # one budget for all pictures of a row
    seed: int = 0


@dataclass(eq=False)
class Looked:
    """Every picture's kept cells, and the encoder's tokens for them."""

    visuals: list[Visual]
    encoded: list[Encoded]
    allocations: list[Allocation]
    replaced: list[torch.Tensor | None]

    @property
    def keeps(self) -> list[torch.Tensor]:
        return [allocation.keep for allocation in self.allocations]


@dataclass(eq=False)
class Shrink:
    """A selector wants some pictures smaller: visual number to cells."""

    cells: dict[int, int] = field(default_factory=dict)


def look_at(
    adapter: Adapter, inputs: Inputs, visuals: list[Visual], sources: Sequence[Source | None], words: Sequence[Words],
    wish: Wish, watch: Stopwatch, seen: Look | None = None, shrunk: Sequence[str] | None = None,
) -> Looked | Shrink:  # fmt: skip
    """All stages for all pictures of a batch; `words` are each row's question.

    `shrunk`: the pictures were made smaller as a selector wished; all of their cells are kept, with these notes.
    """
    limits = (
        _limits(wish.budget, visuals, "budget", wish.shared)
        if shrunk is None
        else [Limit(visual.n, visual.n, note) for visual, note in zip(visuals, shrunk, strict=True)]
    )
    sights = [
        _sight(visual, source, words[visual.row], wish.seed, watch)
        for visual, source in zip(visuals, sources, strict=True)
    ]
    given = _given(wish.allocation, visuals)
    selector, reasons = wish.selector, [""] * len(visuals)
    choices: list[Choice] | None = None  # once the cells to keep are known
    cells: list[torch.Tensor] | None = None  # to encode; None: all
    if given is not None:
        choices = [Choice(keep) for keep, _ in given]
        cells = [encode for _, encode in given]
    elif shrunk is None:
        with watch.stage("glance"):
            answer = _glance(adapter, sights, visuals, limits, wish, reasons)
        if isinstance(answer, Shrink):
            return answer
        if answer is not None:
            cells = [choice.keep for choice in answer]
            choices = answer if selector.early else None
    gazing = choices is None and shrunk is None and not all(bound.everything for bound in limits)
    with watch.stage("encode"):
        encoded = _encode(adapter, inputs, visuals, cells, selector.attention_at if gazing else (), seen)
    if gazing:
        with watch.stage("gaze"):
            choices = _gaze(sights, encoded, visuals, limits, wish, reasons)
    elif choices is None:
        choices = [Choice(seen.cells) for seen in encoded]
    allocations = [
        _allocation(visual, source, choice, seen, "given" if given is not None else selector.name, why, bound)
        for visual, source, choice, seen, why, bound in zip(
            visuals, sources, choices, encoded, reasons, limits, strict=True
        )
    ]
    return Looked(visuals, encoded, allocations, [choice.features for choice in choices])


def _glance(
    adapter: Adapter, sights: list[Callable[..., Sight]], visuals: list[Visual], limits: list[Limit], wish: Wish,
    reasons: list[str],
) -> list[Choice] | Shrink | None:  # fmt: skip
    """What to encode of each picture; None: everything."""
    if wish.selector.early:  # it re-encodes: its budget decides before the encoder
        bounds, selector = limits, wish.selector
    else:
        bounds, selector = _limits(wish.glance, visuals, "glance", False), wish.glance_selector
    if all(bound.everything for bound in bounds):
        return None
    if not adapter.glances and not wish.selector.early:
        raise SelectorError(f"{adapter.family} encodes whole pictures only: leave glance at 'all' and set a budget")
    shrink, choices = Shrink(), []
    for number, (sight, bound) in enumerate(zip(sights, bounds, strict=True)):
        answer, reasons[number] = choosing.glance(selector, sight(bound.k))
        if isinstance(answer, Smaller):
            if visuals[number].kind != "image":
                raise SelectorError(f"selector {selector.name!r} re-encodes images, not videos")
            shrink.cells[number] = answer.cells
        else:
            choices.append(answer)
    if shrink.cells and choices:
        raise SelectorError(
            f"selector {selector.name!r} wants some pictures smaller and cells of others: expected one of both"
        )
    return shrink if shrink.cells else choices


def _gaze(
    sights: list[Callable[..., Sight]], encoded: list[Encoded], visuals: list[Visual], limits: list[Limit], wish: Wish,
    reasons: list[str],
) -> list[Choice]:  # fmt: skip
    seen = [
        sight(bound.k, candidates=answer.cells, tokens=answer.tokens, attention=answer.attention)
        for sight, bound, answer in zip(sights, limits, encoded, strict=True)
    ]
    if wish.shared:
        seen = _shared(seen, visuals, limits, wish.selector, sights, encoded)
    choices = []
    for number, view in enumerate(seen):
        choice, why = choosing.gaze(wish.selector, view)
        reasons[number] = "; ".join(part for part in (reasons[number], why) if part)
        choices.append(choice)
    return choices


def _shared(
    seen: list[Sight], visuals: list[Visual], limits: list[Limit], selector: Selector, sights: list[Callable[..., Sight]],
    encoded: list[Encoded],
) -> list[Sight]:  # fmt: skip
    """Each row's budget divided among its pictures: by relevance where the selector has one, else by their sizes."""
    out = list(seen)
    for row in sorted({visual.row for visual in visuals}):
        members = [i for i, visual in enumerate(visuals) if visual.row == row]
        total = sum(limits[i].k or 0 for i in members)
        sizes = [len(seen[i].candidates) for i in members]
        with torch.no_grad():
            worth = [selector.relevance(seen[i]) for i in members]
        if all(values is not None and bool(torch.isfinite(values).all()) for values in worth):
            flat = torch.cat([values.detach().float().flatten().cpu() for values in worth if values is not None])
            owner = torch.repeat_interleave(torch.arange(len(members)), torch.tensor(sizes))
            best = flat.argsort(descending=True, stable=True)[:total]
            quotas = torch.bincount(owner[best], minlength=len(members)).tolist()
        else:
            quotas = divide(total, sizes)
        for i, quota in zip(members, quotas, strict=True):
            answer = encoded[i]
            out[i] = sights[i](quota, candidates=answer.cells, tokens=answer.tokens, attention=answer.attention)
    return out


def _encode(
    adapter: Adapter, inputs: Inputs, visuals: list[Visual], cells: list[torch.Tensor] | None, depths: Sequence[float],
    seen: Look | None,
) -> list[Encoded]:  # fmt: skip
    if seen is None:
        return adapter.encode(inputs, visuals, cells, depths) if visuals else []
    key = None if cells is None else tuple(chosen.numpy().tobytes() for chosen in cells)
    known = seen.encoded.get(key)
    if known is None or not set(depths) <= known.depths:
        wanted = set(depths) | set(seen.attention_at) | (known.depths if known is not None else set())
        while len(seen.encoded) >= CACHED_ENCODINGS:
            seen.encoded.pop(next(iter(seen.encoded)))
        encoded = adapter.encode(inputs, visuals, cells, tuple(sorted(wanted))) if visuals else []
        known = seen.encoded[key] = Encoding(encoded, frozenset(wanted))
    return list(known.tokens)


def _sight(visual: Visual, source: Source | None, words: Words, seed: int, watch: Stopwatch) -> Callable[..., Sight]:
    """Everything of a sight but its stage."""
    whole = torch.arange(visual.n)

    def at(k: int | None, candidates: torch.Tensor = whole, **known: Any) -> Sight:
        picture = None if source is None else lambda: source.texture(watch)
        return Sight(visual.grid, k, candidates, words, picture=picture, kind=visual.kind, seed=seed, **known)

    return at


def _limits(budget: Budget | Sequence[Budget], visuals: list[Visual], what: str, shared: bool) -> list[Limit]:
    if isinstance(budget, list | tuple):
        if len(budget) != len(visuals):
            raise BudgetError(f"expected one {what} for each of the {len(visuals)} pictures, got {len(budget)}")
        return [limit(one, visual.n, what) for one, visual in zip(budget, visuals, strict=True)]
    if not shared:
        return [limit(budget, visual.n, what) for visual in visuals]  # type: ignore[arg-type]
    limits: dict[int, Limit] = {}
    for row in sorted({visual.row for visual in visuals}):
        members = [i for i, visual in enumerate(visuals) if visual.row == row]
        whole = limit(budget, sum(visuals[i].n for i in members), what)  # type: ignore[arg-type]
        if whole.k is None:
            raise BudgetError('expected a count or a share for a shared budget, got "auto"')
        for i, part in zip(members, divide(whole.k, [visuals[i].n for i in members]), strict=True):
            limits[i] = Limit(visuals[i].n, part, whole.note)
    return [limits[i] for i in range(len(visuals))]


def _given(allocation: Any, visuals: list[Visual]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Cells to keep and to encode that the caller decided, checked against the pictures they are for."""
    if allocation is None:
        return None
    entries = [allocation] if len(visuals) == 1 and not _is_list_of_choices(allocation) else list(allocation)
    if len(entries) != len(visuals):
        raise AllocationError(f"expected one allocation for each of the {len(visuals)} pictures, got {len(entries)}")
    cells = []
    for entry, visual in zip(entries, visuals, strict=True):
        if isinstance(entry, Allocation):
            if entry.grid != visual.grid:
                raise AllocationError(
                    f"this allocation is for a grid of {entry.grid} cells, but the picture has {visual.grid}"
                )
            cells.append((entry.keep, entry.encoded))
        else:
            cells.append((checked(entry, visual.grid, "kept cells"), torch.arange(visual.n)))
    return cells


def _is_list_of_choices(allocation: Any) -> bool:
    return isinstance(allocation, list | tuple) and any(
        isinstance(e, Allocation | torch.Tensor | list) for e in allocation
    )


def _allocation(
    visual: Visual, source: Source | None, choice: Choice, seen: Encoded, name: str, why: str, bound: Limit
) -> Allocation:
    notes = [bound.note] if bound.note and name != "given" else []
    if name != "given" and bound.k is not None and len(seen.cells) < bound.k < bound.n:
        notes.append(
            f"budget of {bound.k} cells is more than the {len(seen.cells)} encoded ones: all of these are kept"
        )
    return Allocation(
        grid=visual.grid,
        keep=choice.keep,
        encoded=seen.cells,
        selector=name,
        size=None if source is None else source.size,
        kind=visual.kind,
        row=visual.row,
        relevance=choice.relevance,
        scores=choice.scores,
        tensions=choice.tensions,
        strategy=choice.strategy or name,
        fallback=why,
        notes=tuple(notes),
    )
