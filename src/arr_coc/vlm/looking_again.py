"""Looking again: `ask(..., sure=...)` reads more cells where it is not sure, and stops where more cells would not help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from arr_coc.adapters.base import Adapter
from arr_coc.errors import PromptError
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer, Attempt
from arr_coc.types.budget import Budget
from arr_coc.vlm.confidence import CALIBRATED
from arr_coc.vlm.request import Request, SelectionRequest

WELL_CHOSEN = 0.9  # confidence of the choice from which more cells are not worth their cost (benchmarks/doubt.py)
WIDER = (2, 4)  # times the cells, one after the other, where an answer is not sure; then all


def check_sure(sure: float, adapter: Adapter, options: Mapping[str, Any]) -> None:
    """Raise for a threshold that is no probability, and for generation without token probabilities."""
    if isinstance(sure, bool) or not isinstance(sure, int | float) or not 0 <= sure <= 1:
        raise PromptError(f"expected sure as a probability between 0 and 1, got {sure!r}")
    plain = {"num_beams": 1, "num_return_sequences": 1, "assistant_model": None, "prompt_lookup_num_tokens": None}
    for name, value in plain.items():
        if (given := adapter.generation_option(options, name)) is not None and given != value:
            raise PromptError(
                f"expected one plain sequence with sure, which needs its probabilities, got {name}={given!r}"
            )


def is_sure(answer: Answer, sure: float) -> bool:
    """Whether the confidence is enough, that in the choice of the cells included. An unknown one is not."""
    found = [answer.confidence]
    if answer.confidence_source != CALIBRATED:  # a calibrated confidence includes the doubt about the choice
        found += [one.confidence for one in answer.allocations if one.confidence is not None]
    return all(one is not None and one >= sure for one in found)


def is_enough(attempts: Sequence[Answer], sure: float) -> bool:
    """Whether to stop: the last attempt is sure; or its cells very probably show what was asked for; or it read more cells than
    the one before and says the same.

    In the last two cases more cells would hardly change it: the doubt is about the reading, not about what was read.
    """
    last = attempts[-1]
    shown = [one.confidence for one in last.allocations]
    well_chosen = bool(shown) and all(one is not None and one >= WELL_CHOSEN for one in shown)
    return is_sure(last, sure) or well_chosen or (len(attempts) > 1 and last.text == attempts[-2].text)


def wider_budgets(answer: Answer, shared: bool) -> Iterator[Budget | list[Budget]]:
    """What to read where an answer is not sure: twice its cells, four times, then all. Nothing if it read all."""
    images: dict[tuple[str, int], list[Allocation]] = {}  # views of one image share its budget
    for number, one in enumerate(answer.allocations):
        images.setdefault(("visual", number) if one.view is None else ("image", one.view.image), []).append(one)
    kept, cells = ([sum(getattr(a, size) for a in some) for some in images.values()] for size in ("k", "n"))
    if kept == cells:
        return
    for times in WIDER:
        more = [min(n, times * max(1, k)) for k, n in zip(kept, cells, strict=True)]
        if more == cells:
            break
        yield sum(more) if shared else list(more)
    yield "all"


def surest(attempts: Sequence[Answer]) -> Answer:
    """The attempt with the highest confidence, which lists all of them and has the time of all of them."""
    best = max(attempts, key=lambda one: one.confidence or 0.0)
    timings: dict[str, float] = {}
    for one in attempts:
        for stage, milliseconds in one.timings.items():
            timings[stage] = timings.get(stage, 0.0) + milliseconds
    tried = tuple(Attempt(one.text, one.confidence, one.tokens["kept"]) for one in attempts)
    return replace(best, timings=timings, tried=tried)


def look_again(
    answer: Answer,
    sure: float,
    shared: bool,
    asked: SelectionRequest | None,
    read: Callable[[Budget | list[Budget]], Answer],
) -> Answer:
    """An answer read again from more cells as long as it is not sure: `read(budget)` answers once more.

    `asked`: what the caller asked for, which follow-ups inherit. `shared`: one budget for all pictures.
    """
    attempts = [answer]
    for budget in wider_budgets(answer, shared):
        if is_enough(attempts, sure):
            break
        attempts.append(read(budget))
    found = surest(attempts)
    if found.turn is None or asked is None:
        return found
    return replace(found, turn=replace(found.turn, shown=replace(found.turn.shown, request=asked)))


def widened(request: Request, row: int, budget: Budget | list[Budget]) -> Request:
    """One row of a request about a look, with another budget."""
    assert request.questions is not None
    everything = budget == "all"
    selection = replace(
        request.selection,
        budget=budget,
        glance="all" if everything else request.selection.glance,
        shared=request.selection.shared and not everything,
    )
    return replace(
        request,
        selection=selection,
        questions=(request.questions[row],),
        conversations=(request.conversations[row],),
    )
