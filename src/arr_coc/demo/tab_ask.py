"""The tab Ask: the answer while it is generated, what it was read from, its cost, and the answer from all tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from arr_coc.demo import markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.markup import macros
from arr_coc.demo.session import REUSABLE_STAGES, SessionImage
from arr_coc.demo.tab_compare import check_selector
from arr_coc.devices import STAGES
from arr_coc.relevance import explanation as why
from arr_coc.types.answer import Answer
from arr_coc.vlm.model import VLM

TEXTURE_SELECTORS = ("arr-coc", "arr-coc-untrained", "saliency", "ink", "coupling")  # selectors that use the texture
MAX_LOOKUP_MS = 4.0  # a reusable stage that took less was a cache hit


def run(request: PageRequest) -> Iterator[Output]:
    state, image, question = request.state, request.image, request.question
    vlm, tokens = request.vlm, request.app.limits.tokens
    check_selector(state.selector, request.app.models.embeddings)
    yield {"ask_answer": macros.answer("", "reading ..."), "ask_dense": "", "ask_facts": ""}
    look = image.look(vlm)
    text = ""
    with vlm.stream(
        look, question, budget=state.budget, glance=state.glance, selector=state.selector, max_new_tokens=tokens
    ) as stream:
        for piece in stream:
            text += piece
            yield {"ask_answer": macros.answer(text, "")}
        answer = stream.answer
    stages = REUSABLE_STAGES if state.selector in TEXTURE_SELECTORS else ("preprocess", "encode")
    cost = StageTimes.of(image, vlm, answer, stages)
    counts = answer.tokens
    summary = f"from {counts['kept']} of {counts['all']} tokens, {counts['encoded']} encoded"
    yield {
        "ask_answer": macros.answer(answer.text, summary),
        "ask_pictures": _pictures(answer, image),
        "ask_facts": _facts(answer, cost, None),
        "ask_python": snippets.ask(request),
        "ask_json": _to_json(request, answer, None),
        "ask_link": state.to_query(),
        "ask_dense": macros.message("reading all tokens for comparison ...") if state.dense else "",
    }
    if not state.dense:
        return
    key = (id(vlm.model), question)
    if key not in image.dense_answers:
        image.dense_answers[key] = vlm.ask(look, question, budget="all", glance="all", max_new_tokens=tokens)
    dense = image.dense_answers[key]
    dense_cost = StageTimes.of(image, vlm, dense, ("preprocess", "encode"))
    yield {
        "ask_dense": macros.answer(dense.text, f"from all {dense.tokens['all']} tokens", "dense"),
        "ask_facts": _facts(answer, cost, dense_cost),
        "ask_json": _to_json(request, answer, dense),
    }


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds by stage: as measured, and from scratch, where a reused stage counts with the time it once took."""

    measured: Mapping[str, float]
    from_scratch: Mapping[str, float]
    reused: tuple[str, ...]

    @classmethod
    def of(cls, image: SessionImage, vlm: VLM, answer: Answer, needed: Sequence[str]) -> StageTimes:
        """`needed`: the reusable stages that this answer depends on, whichever request computed them."""
        measured, cells = dict(answer.timings), int(answer.tokens["encoded"])
        recorded = {stage: image.recorded_time(vlm, stage, cells) for stage in needed}
        reused = {
            stage: ms
            for stage, ms in recorded.items()
            if ms is not None and measured.get(stage, 0.0) < min(MAX_LOOKUP_MS, 0.5 * ms)
        }
        image.record_times(vlm, measured, cells)
        return cls(measured, measured | reused, tuple(reused))

    def cell(self, stage: str) -> str:
        if stage in self.reused:
            return f"reused ({self.from_scratch[stage]:.0f} when computed)"
        return f"{self.measured[stage]:.0f}" if stage in self.measured else "–"


def _pictures(answer: Answer, image: SessionImage) -> str:
    """The relevance over the image, and the kept cells."""
    allocation = answer.allocation
    small = markup.shrink(image.image)
    if allocation.relevance is None:
        shown, caption = markup.picture(small, "the image"), "this selector does not score the cells"
    else:
        heat = markup.heat_layer(allocation, allocation.relevance, image.image.size)
        shown = markup.picture(small, "relevance as warm colours over the image", over=heat)
        caption = "warm: relevant to the question"
    kept = markup.picture(allocation.overlay(small), f"{allocation.k} of {allocation.n} cells kept")
    about = f"{allocation.k} of {allocation.n}; dark: not read, darkest: not encoded"
    return macros.row([macros.figure(shown, "Relevance", caption), macros.figure(kept, "Kept cells", about)])


def _facts(answer: Answer, cost: StageTimes, dense: StageTimes | None) -> str:
    tokens = answer.tokens
    counts = [["visual tokens", f"{tokens['all']} in total, {tokens['encoded']} encoded, {tokens['kept']} read"]]
    if cost.reused:
        counts.append(["reused", f"{', '.join(cost.reused)}: computed for an earlier question"])
    if dense is not None:
        ratio = sum(dense.from_scratch.values()) / max(1e-9, sum(cost.from_scratch.values()))
        counts.append(["speed-up", f"{ratio:.1f}x over all tokens, both from scratch"])
    columns = {"this answer": cost} if dense is None else {"this answer": cost, "all tokens": dense}
    stages = [stage for stage in STAGES if any(stage in one.from_scratch for one in columns.values())]
    rows: list[list[object]] = [[stage, *(one.cell(stage) for one in columns.values())] for stage in stages]
    rows.append(["total now", *(f"{sum(one.measured.values()):.0f}" for one in columns.values())])
    rows.append(["total from scratch", *(f"{sum(one.from_scratch.values()):.0f}" for one in columns.values())])
    reasons = macros.bullets(why.describe(answer.allocation))
    return macros.table(counts) + reasons + macros.table(rows, ["milliseconds", *columns])


def _to_json(request: PageRequest, answer: Answer, dense: Answer | None) -> str:
    state = request.state
    found: Output = {
        "image": request.image.name,
        "question": request.question,
        "model": state.model or request.app.models.names[0],
        "budget": state.budget,
        "glance": state.glance,
        "selector": state.selector,
        **answer.to_dict(),
        "tensions": dict(answer.allocation.tensions),
    }
    if dense is not None:
        found["dense"] = {key: dense.to_dict()[key] for key in ("answer", "tokens", "timings_ms")}
    return json.dumps(found, indent=1)
