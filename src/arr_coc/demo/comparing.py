"""The tab Compare: two to four selectors on the same question, from the same encoding."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arr_coc import selectors
from arr_coc.demo import drawing, snippets
from arr_coc.demo.views import MOST_SELECTORS
from arr_coc.demo.visit import Visit
from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.evaluation.data import Evidence
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.types.budget import limit

if TYPE_CHECKING:
    from arr_coc.types.answer import Answer

Output = dict[str, Any]
VIDEO_ONLY = ("evs",)


def choices(embeddings: str | None) -> list[str]:
    """Selectors that can be compared here: those of pictures; such as ask an encoder only where there is one."""
    known = [name for name in selectors.names() if name not in VIDEO_ONLY]
    return [name for name in known if name != "coupling" or embeddings is not None]


def check_selector(name: str, embeddings: str | None) -> None:
    """One sentence where a selector is not among the choices; a visitor names no module to be imported here."""
    known = choices(embeddings)
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SelectorError(f"expected a selector among {', '.join(known)}, got {name[:80]!r}{hint}")


@dataclass(frozen=True, eq=False)
class Column:
    """What came of one selector: an answer, or why there is none."""

    name: str
    answer: Answer | None
    recall: float | None
    wrong: str = ""

    def to_dict(self) -> Output:
        if self.answer is None:
            return {"selector": self.name, "error": self.wrong}
        return {"selector": self.name, **self.answer.to_dict(), "evidence_recall": self.recall}


def compare(visit: Visit) -> Iterator[Output]:
    """Outputs by name, a column more each time."""
    view, subject, question = visit.view, visit.subject, visit.question
    chosen = view.selectors
    if not 2 <= len(chosen) <= MOST_SELECTORS or len(set(chosen)) != len(chosen):
        raise ArrCocError(f"expected two to {MOST_SELECTORS} different selectors, got {len(chosen)}: choose others")
    for name in chosen:
        check_selector(name, visit.house.shelf.embeddings)
    limit(view.budget, 1000)
    evidence = visit.evidence
    yield {"compare_columns": drawing.told("encoding the picture ..."), "compare_note": ""}
    subject.encoded(visit.vlm)
    budget, note = shared_budget(visit)
    done: list[Column] = []
    for name in chosen:
        done.append(_column(visit, name, budget, evidence))
        waiting = chosen[len(done) :]
        cards = [_card(one, visit) for one in done]
        cards += [drawing.figure(drawing.told("waiting ..."), other) for other in waiting]
        yield {"compare_columns": f"<div class='cards'>{''.join(cards)}</div>"}
    found = {"image": subject.name, "question": question, "budget": budget, "evidence": evidence}
    told = note + ("" if evidence else " Draw a box around the answer, and each column says how much of it was kept.")
    yield {
        "compare_note": drawing.told(told.strip()),
        "compare_python": snippets.compare(visit, {name: own_budget(name, budget) for name in chosen}, evidence),
        "compare_json": json.dumps({**found, "selectors": [one.to_dict() for one in done]}, indent=1),
        "compare_link": view.query(),
    }


def shared_budget(visit: Visit) -> tuple[str | int, str]:
    """One budget for all: where ARR-COC is to say how much is enough, the others get as many cells as it keeps."""
    import arr_coc

    view = visit.view
    words = view.budget.strip().lower()
    if words != "auto" and not words.startswith("mass"):
        return view.budget, ""
    found = arr_coc.realize(
        visit.subject.texture(), visit.question, budget=view.budget, using=visit.vlm, look=visit.subject.look(visit.vlm)
    )
    return found.k, f"Everybody keeps as many cells as arr-coc finds enough: {found.k} of {found.n}."


def own_budget(name: str, budget: str | int) -> str | int:
    """Who keeps everything has no budget."""
    return "all" if name == "all" else budget


def _column(visit: Visit, name: str, budget: str | int, evidence: Evidence) -> Column:
    """One selector's answer; what it cannot do is its own column's sentence, and the others go on."""
    try:
        if name == "oracle" and not evidence:
            raise ArrCocError("the oracle needs to know where the answer stands: draw a box around it")
        which: Any = selectors.Oracle(evidence) if name == "oracle" else name
        answer = visit.vlm.ask(
            visit.subject.look(visit.vlm), visit.question, budget=own_budget(name, budget), selector=which,
            max_new_tokens=visit.house.limits.tokens,
        )  # fmt: skip
    except ArrCocError as error:
        return Column(name, None, None, str(error))
    allocation = answer.allocation
    cells = evidence_cells(evidence, allocation.grid, visit.subject.image.size) if evidence else []
    return Column(name, answer, recall(allocation.keep, cells))


def _card(column: Column, visit: Visit) -> str:
    if column.answer is None:
        return drawing.figure(drawing.told(column.wrong, "alert"), column.name)
    answer, image = column.answer, drawing.shrunk(visit.subject.image)
    spent = {stage: ms for stage, ms in answer.timings.items() if stage not in ("encode", "preprocess", "texture")}
    facts: list[list[object]] = [
        ["read", f"{answer.tokens['kept']} of {answer.tokens['all']} tokens"],
        ["choosing and answering", f"{sum(spent.values()):.0f} ms"],
    ]
    if column.recall is not None:
        facts.append(["evidence kept", f"{column.recall:.0%}"])
    if answer.fallback:
        facts.append(["fell back", answer.fallback])
    shown = answer.allocation.overlay(image)
    words = f"<output class='short'>{drawing.text(answer.text) or '(nothing)'}</output>"
    return drawing.figure(
        words + drawing.picture(shown, f"cells kept by {column.name}") + drawing.table(facts), column.name
    )
