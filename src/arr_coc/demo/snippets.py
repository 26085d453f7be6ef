"""The Python code that the page shows: the arguments for the macros of `page/snippets.jinja`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from arr_coc.demo.app import PageRequest
from arr_coc.evaluation.data import Evidence

_environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_source = files("arr_coc.demo.page").joinpath("snippets.jinja").read_text(encoding="utf-8")
_macros: Any = _environment.from_string(_source).module


def ask(request: PageRequest) -> str:
    state, tokens = request.state, request.app.limits.tokens
    options = _arguments(
        budget=state.budget, glance=state.glance, selector=state.selector, gaze=request.gaze, max_new_tokens=tokens,
        detail=None if state.detail == "auto" else state.detail,
        straighten=None if state.straighten == "auto" else state.straighten,
    )  # fmt: skip
    talk = request.session.talk if state.follow else None  # this question is its last turn
    questions = [repr(question) for question, *_ in talk.turns] if talk else [repr(request.question)]
    dense = state.dense and not state.follow
    return str(_macros.ask(_load_arguments(request), questions, options, dense, tokens, state.follow))


def compare(request: PageRequest, budgets: Mapping[str, str | int], evidence: Evidence) -> str:
    boxes = repr([[tuple(round(side, 1) for side in box) for box in group] for group in evidence]) if evidence else ""
    names = {name: f"arr_coc.selectors.Oracle({boxes})" if name == "oracle" else repr(name) for name in budgets}
    pairs = ", ".join(f"({names[name]}, {budget!r})" for name, budget in budgets.items())
    tokens, size = request.app.limits.tokens, request.image.image.size
    return str(_macros.compare(_load_arguments(request), repr(request.question), pairs, tokens, boxes, size))


def channels(request: PageRequest, point: Sequence[float]) -> str:
    state = request.state
    return str(_macros.channels(request.image.code, repr(state.channel), state.level, tuple(point)))


def knowing(request: PageRequest) -> str:
    state = request.state
    options = _arguments(
        budget=state.budget,
        learned=None if state.learned else False,
        exploit=state.exploit,
        weights=state.parse_weights() or None,
    )
    return str(_macros.knowing(_load_arguments(request), repr(request.question), options))


def report(folder: str, against: str = "") -> str:
    return str(_macros.compare_reports(repr(folder), repr(against)) if against else _macros.report(repr(folder)))


def find(folder: str, query: str, count: int) -> str:
    return str(_macros.find(repr(folder), repr(query), count))


def _load_arguments(request: PageRequest) -> tuple[str, str]:
    """The code of the image, and the arguments of `arr_coc.load`."""
    state, models = request.state, request.app.models
    options: dict[str, Any] = {} if models.embeddings is None else {"embeddings": models.embeddings}
    if state.layer not in ("", "auto"):
        options["layer"] = None if state.layer == "none" else str(request.app.root / state.layer)
    named = [f"{key}={value!r}" for key, value in options.items()]
    return request.image.code, ", ".join([repr(state.model or models.names[0]), *named])


def _arguments(**options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
