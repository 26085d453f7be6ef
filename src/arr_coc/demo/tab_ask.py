"""The tab Ask: the answer while it is generated, what it was read from, its cost, and the answer from all tokens."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from arr_coc.demo import cells, markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.markup import macros
from arr_coc.demo.session import Talk
from arr_coc.demo.state import STRIP_BUDGETS
from arr_coc.demo.tab_compare import check_selector
from arr_coc.devices import STAGES
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.metrics import exact
from arr_coc.relevance import explanation as why
from arr_coc.relevance.selector import explained
from arr_coc.selectors import selector as selector_of
from arr_coc.types.answer import Answer
from arr_coc.vlm.confidence import BOUNDED, CALIBRATED
from arr_coc.vlm.conversation import MAX_TURNS
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM, AskOptions

WAITING = "The answer from all tokens, and the time of both, follow here; another budget cancels them."
ROUNDS = 2  # of timing; each runs both once, and the order alternates


def run(request: PageRequest) -> Iterator[Output]:
    """The answer, and for an example the answer at each budget. `run_timing` continues with the answer from all tokens."""
    state, image, question = request.state, request.image, request.question
    vlm = request.vlm
    check_selector(state.selector, request.app.models.embeddings)
    yield {
        "ask_answer": macros.answer("", "reading ..."),
        "ask_dense": "",
        "ask_strip": "",
        "ask_facts": "",
        "ask_live": "",
    }
    text = ""
    talk = find_talk(request)
    if state.follow:
        yield {"ask_turns": macros.turns(talk.turns if talk else ())}
    # Under `auto` a look is encoded whole, for many questions; this answer shows what one question costs.
    shown: Any = image.image if state.glance == "auto" else _look(request)
    options = _options(request) | {"selector": explained(state.selector)}
    if shown is not image.image:
        del options["detail"], options["straighten"]  # the look has its views
    if state.follow:
        options |= {"remember": True}
    if talk is not None:
        shown, options = None, options | {"after": talk.answer}
        options.pop("detail", None)  # the look is kept
        options.pop("straighten", None)
    with vlm.stream(shown, question, **options) as stream:
        for piece in stream:
            text += piece
            yield {"ask_answer": macros.answer(text, "")}
        answer = stream.answer
    if state.follow:
        added = answer.tokens.get("added", answer.tokens["kept"])
        turn = question, answer.text, f"{added} tokens added, {answer.tokens['kept']} of {answer.tokens['all']} read"
        turns = (*(talk.turns if talk else ()), turn)
        request.session.talk = Talk(_about(request), turns[-MAX_TURNS:], answer)
    reused = image.find_reused(vlm, answer.timings, int(answer.tokens["encoded"]))
    yield {
        "ask_answer": _answer(request, answer),
        "ask_pictures": _pictures(request, answer),
        "ask_facts": _facts(answer, reused=reused),
        "ask_python": snippets.ask(request),
        "ask_json": _to_json(request, answer, None),
        "ask_link": state.to_query(),
        "ask_dense": macros.message(WAITING) if state.dense and not state.follow else "",
        "ask_turns": macros.turns(talk.turns) if talk else "",
    }
    if request.known_answers and not state.follow:
        yield from _strip(request)


def run_timing(request: PageRequest) -> Iterator[Output]:
    """The answer from all tokens, and both timed in the same way: in turns, not streamed, with nothing reused.

    The user's next request interrupts it between two runs.
    """
    if not request.state.dense or request.state.follow:  # a turn is read after others: nothing to compare it with
        return
    rounds, interrupts = Rounds(), request.session.interrupts
    for number in range(ROUNDS):
        for dense in (True, False) if number % 2 == 0 else (False, True):
            if request.session.interrupts != interrupts:
                return
            rounds.add(request, dense)
            if rounds.dense is not None:
                yield {"ask_dense": _answer(request, rounds.dense, "dense")}
            if rounds.sparse is not None and rounds.dense is not None:
                yield {"ask_facts": _facts(rounds.sparse, rounds)}
    assert rounds.sparse is not None
    yield {"ask_json": _to_json(request, rounds.sparse, rounds)}


def run_preview(request: PageRequest) -> Iterator[Output]:
    """The cells that the present budget keeps, without an answer."""
    state, vlm = request.state, request.vlm
    check_selector(state.selector, request.app.models.embeddings)
    if selector_of(state.selector).depths:
        note = f"{state.selector} chooses inside the language model: press Ask to see what it keeps."
        yield {"ask_live": "", "ask_message": macros.message(note)}
        return
    prepared = vlm.prepare(
        look=_look(request),
        text=request.question,
        budget=state.budget,
        glance=state.glance,
        selector=explained(state.selector),
        gaze=request.gaze,
    )
    yield {"ask_live": macros.live(cells.live_data(request, prepared.allocations[-1])), "ask_message": ""}


@dataclass(eq=False)
class Rounds:
    """Timings of the sparse and the dense answer, taken in turns; the last answer of each."""

    sparse: Answer | None = None
    dense: Answer | None = None
    stages: dict[bool, list[dict[str, float]]] = field(default_factory=lambda: {False: [], True: []})
    totals: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    def add(self, request: PageRequest, dense: bool) -> None:
        """Answer once from the plain image: everything is computed."""
        start = time.perf_counter()
        answer = request.vlm.ask(request.image.image, request.question, **_options(request, dense))
        self.totals[dense].append(1e3 * (time.perf_counter() - start))
        self.stages[dense].append(dict(answer.timings))
        if dense:
            self.dense = answer
        else:
            self.sparse = answer

    def median(self, stage: str, dense: bool) -> float | None:
        """Median milliseconds of a stage; None where it did not run."""
        found = [one[stage] for one in self.stages[dense] if stage in one]
        return statistics.median(found) if found else None

    def total(self, dense: bool) -> float:
        return statistics.median(self.totals[dense])

    @property
    def speed_up(self) -> float:
        return self.total(True) / max(1e-9, self.total(False))

    def to_dict(self) -> Output:
        return {
            "rounds": len(self.totals[True]),
            "milliseconds": round(self.total(False), 1),
            "milliseconds_from_all_tokens": round(self.total(True), 1),
            "speed_up": round(self.speed_up, 3),
        }


def _options(request: PageRequest, dense: bool = False) -> AskOptions:
    """The options of the answer that the page's settings ask for, or of the one from all tokens."""
    state = request.state
    found: AskOptions = {"max_new_tokens": request.app.limits.tokens, "detail": "off", "straighten": state.straighten}
    if dense:
        return found | {"budget": "all", "glance": "all"}
    found |= {"budget": state.budget, "glance": state.glance, "selector": state.selector, "detail": state.detail}
    return found if request.gaze is None else found | {"gaze": request.gaze}


def _look(request: PageRequest) -> Look:
    """The look that a gaze or a budget is chosen on: with a gaze, at the image as it is."""
    state = request.state
    if request.gaze is not None:
        return request.image.look(request.vlm)
    return request.image.look(request.vlm, state.detail, state.straighten)


def find_talk(request: PageRequest) -> Talk | None:
    """The conversation that the question continues: about the same image, with the same model."""
    talk = request.session.talk
    return talk if request.state.follow and talk is not None and talk.about == _about(request) else None


def _about(request: PageRequest) -> tuple[str, int]:
    return request.image.key, id(request.vlm.model)


def is_right(request: PageRequest, text: str) -> bool | None:
    """Whether an answer is the known one; None where no answer is known."""
    known = request.known_answers
    return bool(exact(text, known)) if known else None


def token_probabilities(vlm: VLM, answer: Answer) -> list[tuple[str, float]]:
    """The answer in pieces, each with the probability of its token. A token inside a character has an empty piece."""
    if answer.token_probabilities is None:
        return []
    pieces, before = [], ""
    for number, probability in enumerate(answer.token_probabilities.tolist(), 1):
        text = vlm.prompter.decode(answer.ids[:number])
        pieces.append((text.removeprefix(before), probability))
        before = text
    return pieces


def _answer(request: PageRequest, answer: Answer, kind: str = "") -> Markup:
    known, counts = request.known_answers, answer.tokens
    sure = token_probabilities(request.vlm, answer)
    least = min(sure, key=lambda one: one[1], default=None)
    about = (
        f"from all {counts['all']} tokens"
        if kind == "dense"
        else f"from {counts['kept']} of {counts['all']} tokens, {counts['encoded']} encoded"
        + (f", {counts['added']} added by this turn" if "added" in counts else "")
    )
    if answer.refused:
        about = f"{answer.refused}; the model wrote “{answer.raw_text}” {about}"
    if answer.confidence is not None:
        sources = {CALIBRATED: "confidence", BOUNDED: f"confidence, {BOUNDED}"}
        about += f"; {answer.confidence:.0%} {sources.get(answer.confidence_source, answer.confidence_source)}"
    if least is not None:
        about += "; every token above 99%" if least[1] > 0.99 else f"; least certain: “{least[0]}” with {least[1]:.0%}"
    mark = macros.verdict(is_right(request, answer.text), known[0] if known else "")
    return macros.answer(
        answer.text, about, kind, mark, sure, "all tokens" if kind == "dense" else request.state.selector
    )


def _strip(request: PageRequest) -> Iterator[Output]:
    """The answer at each budget, right or wrong, as they come."""
    state, vlm, look = request.state, request.vlm, _look(request)
    found: list[Output] = []
    for number, budget in enumerate(STRIP_BUDGETS):
        try:
            answer = vlm.ask(
                look,
                request.question,
                budget=budget,
                glance=state.glance,
                selector=state.selector,
                max_new_tokens=request.app.limits.tokens,
            )
        except ArrCocError as error:
            yield {"ask_strip": macros.message(f"There are no answers at other budgets: {error}.")}
            return
        about = f"{answer.tokens['kept']} tokens"
        found.append({"budget": budget, "text": answer.text, "right": is_right(request, answer.text), "about": about})
        waiting = [{"budget": one, "text": "...", "right": None, "about": ""} for one in STRIP_BUDGETS[number + 1 :]]
        yield {"ask_strip": macros.strip([*found, *waiting], request.known_answers[0])}


def _pictures(request: PageRequest, answer: Answer) -> Markup:
    """The relevance over the image, and the kept cells."""
    allocation = answer.allocations[-1]  # the region, where an image is shown as an overview and a region
    first = (
        ("picture", "Image", "this selector does not score the cells")
        if allocation.relevance is None
        else ("relevance", "Relevance", "warm: relevant to the question")
    )
    kept = ("kept", "Kept cells", f"{allocation.k} of {allocation.n}; dark: not read, darkest: not encoded")
    picture = cells.shown(request, allocation)
    return markup.viewer(picture, cells.viewer_data(request, allocation), [first, kept], choose=True)


def _facts(answer: Answer, rounds: Rounds | None = None, reused: Sequence[str] = ()) -> Markup:
    tokens = answer.tokens
    rows: list[list[object]] = [
        ["visual tokens", f"{tokens['all']} in total, {tokens['encoded']} encoded, {tokens['kept']} read"]
    ]
    if reused:
        rows.append(["reused", f"{', '.join(reused)}: computed for an earlier question"])
    if rounds is not None:
        count = len(rounds.totals[False])
        way = f"{'one round' if count == 1 else f'median of {count} rounds'} in turns, nothing reused"
        rows.append(["speed-up", f"{rounds.speed_up:.1f}x over all tokens ({way})"])
        head = ["milliseconds", "this answer", "all tokens"]
        times = [
            [stage, *("–" if (ms := rounds.median(stage, dense)) is None else f"{ms:.0f}" for dense in (False, True))]
            for stage in STAGES
            if any(rounds.median(stage, dense) is not None for dense in (False, True))
        ]
        times.append(["total", *(f"{rounds.total(dense):.0f}" for dense in (False, True))])
    else:
        head = ["milliseconds", "this answer"]
        times = [[stage, f"{answer.timings[stage]:.0f}"] for stage in STAGES if stage in answer.timings]
        times.append(["total", f"{sum(answer.timings.values()):.0f}"])
    facts: Markup = macros.table(rows, (), True) + macros.bullets(why.describe(answer.allocations[-1]))
    return facts + macros.table(times, head, True)


def _to_json(request: PageRequest, answer: Answer, rounds: Rounds | None) -> str:
    state = request.state
    found: Output = {
        "image": request.image.name,
        "question": request.question,
        "model": state.model or request.app.models.names[0],
        "budget": state.budget,
        "glance": state.glance,
        "selector": state.selector,
        "gaze": request.gaze,
        **answer.to_dict(),
        "tensions": dict(answer.allocation.tensions),
        "right": is_right(request, answer.text),
        "token_probabilities": token_probabilities(request.vlm, answer),
    }
    if rounds is not None and rounds.dense is not None:
        found["dense"] = {key: rounds.dense.to_dict()[key] for key in ("answer", "tokens", "timings_ms")}
        found["timing"] = rounds.to_dict()
    return json.dumps(found, indent=1)
