"""The tab Ask: an answer as it is written, what it was read from, what it cost, and what all tokens would have said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arr_coc.demo import drawing, snippets
from arr_coc.demo.comparing import check_selector
from arr_coc.demo.desks import BUILT, Subject
from arr_coc.demo.visit import Visit
from arr_coc.relevance import explanation as why
from arr_coc.timing import STAGES

if TYPE_CHECKING:
    from arr_coc.types.answer import Answer
    from arr_coc.vlm.model import VLM

DENSE, SPARSE = "all tokens", "this answer"
LOOKING = ("arr-coc", "arr-coc-untrained", "saliency", "ink", "coupling")  # selectors that need the texture
WORTH = 4.0  # ms; what takes less of a stage that was there before is looking it up

Output = dict[str, Any]


def ask(visit: Visit) -> Iterator[Output]:
    """Outputs by name, as they come."""
    view, subject, question = visit.view, visit.subject, visit.question
    vlm = visit.vlm
    check_selector(view.selector, visit.house.shelf.embeddings)
    yield {"ask_answer": _answer("", "reading ..."), "ask_dense": "", "ask_facts": ""}
    said = ""
    look = subject.look(vlm)
    tokens = visit.house.limits.tokens
    with vlm.stream(
        look, question, budget=view.budget, glance=view.glance, selector=view.selector, max_new_tokens=tokens
    ) as stream:  # fmt: skip
        for piece in stream:
            said += piece
            yield {"ask_answer": _answer(said, "")}
        answer = stream.answer
    sparse = Cost.of(subject, vlm, answer, BUILT if view.selector in LOOKING else ("preprocess", "encode"))
    yield {
        "ask_answer": _answer(answer.text, _read(answer)),
        "ask_pictures": pictures(answer, subject),
        "ask_facts": _facts(answer, sparse, None),
        "ask_python": snippets.ask(visit),
        "ask_json": _json(visit, answer, None),
        "ask_link": view.query(),
        "ask_dense": drawing.told("reading all tokens, to compare ...") if view.dense else "",
    }
    if not view.dense:
        return
    key = (id(vlm.model), question)
    dense = subject.dense.get(key)
    if dense is None:
        dense = subject.dense[key] = vlm.ask(look, question, max_new_tokens=tokens)
    cost = Cost.of(subject, vlm, dense, ("preprocess", "encode"))
    yield {
        "ask_dense": _answer(dense.text, f"from all {dense.tokens['all']} tokens", "dense"),
        "ask_facts": _facts(answer, sparse, cost),
        "ask_json": _json(visit, answer, dense),
    }


class Cost:
    """Milliseconds by stage, now; and from scratch, where what was found ready counts as much as building it did."""

    def __init__(self, now: Mapping[str, float], whole: Mapping[str, float], ready: tuple[str, ...]) -> None:
        self.now, self.whole, self.ready = now, whole, ready

    @classmethod
    def of(cls, subject: Subject, vlm: VLM, answer: Answer, needed: Sequence[str]) -> Cost:
        """`needed`: which of the stages that are built once this answer cannot do without, whoever built them."""
        now, cells = dict(answer.timings), int(answer.tokens["encoded"])
        spent = {stage: subject.spent.get(subject.built(vlm, stage, cells)) for stage in needed}
        ready = {
            stage: ms for stage, ms in spent.items()
            if ms is not None and now.get(stage, 0.0) < min(WORTH, 0.5 * ms)
        }  # fmt: skip
        subject.note(vlm, now, cells)
        return cls(now, now | ready, tuple(ready))

    def cell(self, stage: str) -> str:
        if stage in self.ready:
            return f"ready ({self.whole[stage]:.0f} when built)"
        return f"{self.now[stage]:.0f}" if stage in self.now else "–"


def pictures(answer: Answer, subject: Subject) -> str:
    """The heat over the picture, and the cells that were kept."""
    image, found = subject.image, answer.allocation
    small = drawing.shrunk(image)
    if found.relevance is None:
        warm = drawing.figure(
            drawing.picture(small, "the picture"), "Relevance", "this selector gives its cells no scores"
        )
    else:
        over = drawing.heat(found, found.relevance, image.size)
        warm = drawing.figure(
            drawing.picture(small, "relevance as warm colours over the picture", over=over),
            "Relevance",
            "warm: what matters",
        )
    kept = drawing.figure(
        drawing.picture(found.overlay(small), f"{found.k} of {found.n} cells kept"), "Kept cells",
        f"{found.k} of {found.n}; dark: not read, darkest: not even encoded",
    )  # fmt: skip
    return drawing.row([warm, kept])


def _answer(words: str, about: str, kind: str = "") -> str:
    shown = drawing.text(words) or "&nbsp;"
    return f"<div class='answer {kind}' role='status' aria-live='polite'><output>{shown}</output><small>{drawing.text(about)}</small></div>"


def _read(answer: Answer) -> str:
    tokens = answer.tokens
    return f"from {tokens['kept']} of {tokens['all']} tokens, {tokens['encoded']} encoded"


def _facts(answer: Answer, sparse: Cost, dense: Cost | None) -> str:
    tokens = answer.tokens
    counts = [["visual tokens", f"{tokens['all']} in all, {tokens['encoded']} encoded, {tokens['kept']} read"]]
    if sparse.ready:
        counts.append(["found ready", f"{', '.join(sparse.ready)}: built for an earlier question"])
    if dense is not None:
        faster = sum(dense.whole.values()) / max(1e-9, sum(sparse.whole.values()))
        counts.append(["speed-up, from scratch", f"{faster:.1f} x against reading all tokens"])
    columns = [sparse] if dense is None else [sparse, dense]
    head = ["milliseconds", SPARSE] if dense is None else ["milliseconds", SPARSE, DENSE]
    stages = [s for s in STAGES if any(s in one.now or s in one.whole for one in columns)]
    rows: list[list[object]] = [[stage, *(one.cell(stage) for one in columns)] for stage in stages]
    rows.append(["now", *(f"{sum(one.now.values()):.0f}" for one in columns)])
    rows.append(["from scratch", *(f"{sum(one.whole.values()):.0f}" for one in columns)])
    words = drawing.sentences(why.said(answer.allocation))
    return drawing.table(counts) + words + drawing.table(rows, head)


def _json(visit: Visit, answer: Answer, dense: Answer | None) -> str:
    view = visit.view
    found = {"image": visit.subject.name, "question": visit.question, "model": view.model or visit.house.shelf.names[0]}
    found |= {"budget": view.budget, "glance": view.glance, "selector": view.selector}
    made: Output = {**found, **answer.to_dict(), "tensions": dict(answer.allocation.tensions)}
    if dense is not None:
        made["dense"] = {key: dense.to_dict()[key] for key in ("answer", "tokens", "timings_ms")}
    return json.dumps(made, indent=1)
