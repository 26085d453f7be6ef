"""The tab Compare: one to four selectors and all tokens on the same question, from the same encoding."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

import arr_coc
from arr_coc import selectors
from arr_coc.demo import cells, markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.markup import macros
from arr_coc.demo.security import hide_paths
from arr_coc.demo.session import REUSABLE_STAGES
from arr_coc.demo.state import MAX_SELECTORS
from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.evaluation.data import Evidence
from arr_coc.evaluation.metrics import evidence_cells, exact, recall
from arr_coc.types.answer import Answer
from arr_coc.types.budget import limit

VIDEO_SELECTORS = ("evs",)
REFERENCE = "all"  # is always compared, in the first column


def selector_names(embeddings: str | None) -> list[str]:
    """Selectors for images; those that need an image-text encoder only if there is one."""
    names = [name for name in selectors.names() if name not in VIDEO_SELECTORS]
    return [name for name in names if name != "coupling" or embeddings is not None]


def check_selector(name: str, embeddings: str | None) -> None:
    """Refuse any other selector: users of the page must not make the server import a module by its name."""
    known = selector_names(embeddings)
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SelectorError(f"expected a selector among {', '.join(known)}, got {name[:80]!r}{hint}")


@dataclass(frozen=True, eq=False)
class ComparedSelector:
    """The result of one selector: an answer, or an error."""

    name: str
    answer: Answer | None
    recall: float | None
    right: bool | None = None  # None where no answer is known
    error: str = ""

    def to_dict(self) -> Output:
        if self.answer is None:
            return {"selector": self.name, "error": self.error}
        return {"selector": self.name, **self.answer.to_dict(), "evidence_recall": self.recall, "right": self.right}


def run(request: PageRequest) -> Iterator[Output]:
    state, image, question = request.state, request.image, request.question
    names = [name for name in state.selectors if name != REFERENCE]
    if not 1 <= len(names) <= MAX_SELECTORS or len(set(names)) != len(names):
        raise ArrCocError(f"expected one to {MAX_SELECTORS} different selectors, got {len(names)}: choose others")
    for name in names:
        check_selector(name, request.app.models.embeddings)
    names = [REFERENCE, *names]
    limit(state.budget, 1000)
    evidence = request.evidence
    yield {"compare_columns": macros.message("encoding the image ..."), "compare_note": ""}
    image.encode(request.vlm)
    budget, note = shared_budget(request)
    done: list[ComparedSelector] = []
    for name in names:
        done.append(_answer(request, name, budget, evidence))
        cards = [_card(one, request) for one in done]
        cards += [macros.figure(macros.message("waiting ..."), _title(other)) for other in names[len(done) :]]
        yield {"compare_columns": macros.row(cards, "cards")}
    if not evidence:
        note += " Draw a box around the answer to see how much of it each selector keeps."
    found = {"image": image.name, "question": question, "budget": budget, "evidence": evidence}
    yield {
        "compare_note": macros.message(note.strip()),
        "compare_python": snippets.compare(request, {name: _own_budget(name, budget) for name in names}, evidence),
        "compare_json": json.dumps({**found, "selectors": [one.to_dict() for one in done]}, indent=1),
        "compare_link": state.to_query(),
    }


def shared_budget(request: PageRequest) -> tuple[str | int, str]:
    """One budget for all selectors, and a note. For `auto` and `mass` it is the number of cells that ARR-COC keeps."""
    state = request.state
    text = state.budget.strip().lower()
    if text != "auto" and not text.startswith("mass"):
        return state.budget, ""
    image, vlm = request.image, request.vlm
    allocation = arr_coc.realize(
        image.texture(), request.question, budget=state.budget, using=vlm, look=image.look(vlm)
    )
    return allocation.k, f"All selectors keep as many cells as arr-coc finds enough: {allocation.k} of {allocation.n}."


def _own_budget(name: str, budget: str | int) -> str | int:
    return "all" if name == "all" else budget


def _answer(request: PageRequest, name: str, budget: str | int, evidence: Evidence) -> ComparedSelector:
    """One selector's answer. An error is shown in its own column, and the other selectors go on."""
    try:
        if name == "oracle" and not evidence:
            raise ArrCocError("the oracle needs to know where the answer is: draw a box around it")
        selector: Any = selectors.Oracle(evidence) if name == "oracle" else name
        answer = request.vlm.ask(
            request.image.look(request.vlm),
            request.question,
            budget=_own_budget(name, budget),
            selector=selector,
            max_new_tokens=request.app.limits.tokens,
        )
    except ArrCocError as error:
        return ComparedSelector(name, None, None, error=str(error))
    allocation = answer.allocation
    found = evidence_cells(evidence, allocation.grid, request.image.image.size) if evidence else []
    known = request.known_answers
    return ComparedSelector(
        name, answer, recall(allocation.keep, found), bool(exact(answer.text, known)) if known else None
    )


def _title(name: str) -> str:
    return "all tokens" if name == REFERENCE else name


def _card(result: ComparedSelector, request: PageRequest) -> Markup:
    answer, title = result.answer, _title(result.name)
    if answer is None:
        return macros.figure(macros.message(hide_paths(result.error), "alert"), title)
    milliseconds = sum(ms for stage, ms in answer.timings.items() if stage not in REUSABLE_STAGES)
    facts: list[list[object]] = [
        ["read", f"{answer.tokens['kept']} of {answer.tokens['all']} tokens"],
        ["selection and answer", f"{milliseconds:.0f} ms"],
    ]
    if result.recall is not None:
        facts.append(["evidence kept", f"{result.recall:.0%}"])
    if answer.fallback:
        facts.append(["fallback", answer.fallback])
    known = request.known_answers
    mark = macros.verdict(result.right, known[0] if known else "")
    panel = ("kept", "", f"cells kept by {result.name}")
    shown = markup.viewer(request.image.image, cells.viewer_data(request, answer.allocation), [panel])
    return macros.figure(macros.card(answer.text, mark, facts, shown), title)
