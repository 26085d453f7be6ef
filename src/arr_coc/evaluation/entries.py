"""The selectors of a comparison: by name, from a user's module, or as objects; each timed while it selects."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc import selectors
from arr_coc.errors import SelectorError
from arr_coc.evaluation.data import Evidence, PictureQuestions
from arr_coc.selectors import Choice, Downscale, LayerState, Oracle, SelectionInput, Selector, SelectorLike
from arr_coc.selectors.controls import Uniform

DENSE = "all"
ORACLE = "oracle"
RANDOM = "random"
DEFAULTS = (DENSE, RANDOM, "uniform", "ink", "divprune", "arr-coc")  # those of them that are registered


@dataclass(frozen=True)
class Entry:
    """One selector under its name; `make` returns it for one picture."""

    name: str
    make: Callable[[PictureQuestions], Selector]
    selector: Selector  # an instance to read attributes from
    source: str = ""  # the file that defines it
    settings: str = ""  # its parameters, to tell two of a class apart

    @property
    def glances(self) -> bool:
        """Whether it can select before the encoder has run."""
        return type(self.selector).before_encoding is not Selector.before_encoding


def make_entries(which: Sequence[SelectorLike] | None = None) -> list[Entry]:
    """Entries of registered names, `module:name`, objects or functions. None: the default selectors."""
    if which is None:
        which = [name for name in DEFAULTS if name in selectors.names()]
    if isinstance(which, str):
        which = [which]
    entries = [_make_entry(one) for one in which]
    names = [entry.name for entry in entries]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise SelectorError(
            f"expected every selector once, got {', '.join(duplicates)} twice: give them different names"
        )
    if not entries:
        raise SelectorError(f"expected at least one selector, such as {', '.join(selectors.names())}")
    return entries


def _make_entry(which: SelectorLike) -> Entry:
    if which == ORACLE:
        placeholder = Oracle([[(0, 0, 1, 1)]])
        return Entry(ORACLE, OraclePerQuestion, placeholder, _source_file(placeholder))
    chosen = selectors.selector(which() if isinstance(which, type) and issubclass(which, Selector) else which)
    name = which if isinstance(which, str) and ":" not in which else chosen.name or type(chosen).__name__
    return Entry(name, lambda picture: chosen, chosen, _source_file(chosen), _describe_settings(chosen))


def _source_file(chosen: Selector) -> str:
    definition: Any = getattr(chosen, "function", None) or type(chosen)
    try:
        return inspect.getsourcefile(definition) or ""
    except TypeError:
        return ""


def _describe_settings(chosen: Selector) -> str:
    """The attributes of an object, or what a function closes over. An object without a repr matches no other run."""
    function = getattr(chosen, "function", None)
    values = {name: value for name, value in vars(chosen).items() if value is not function}
    if inspect.isfunction(function):
        values |= inspect.getclosurevars(function).nonlocals
        values["code"] = (function.__code__.co_code, function.__code__.co_consts, function.__defaults__)
    elif function is not None:
        values["function"] = function
    return repr(values)


class OraclePerQuestion(Selector):
    """An oracle for each question about a picture; evenly spaced cells where the evidence is unknown."""

    name = ORACLE

    def __init__(self, picture: PictureQuestions) -> None:
        groups: dict[str, Evidence] = {}
        for sample in picture.samples:  # the same question twice: the evidence of either one answers it
            groups[sample.question] = groups.get(sample.question, ()) + sample.evidence
        size, frames = picture.size, len(picture.frames)
        self.by_text = {text: Oracle(found, size, frames) if found else Uniform() for text, found in groups.items()}

    def select(self, selection: SelectionInput) -> Choice | torch.Tensor:
        return self.by_text[selection.question.text].select(selection)

    def before_encoding(self, selection: SelectionInput) -> Choice | Downscale | torch.Tensor:
        return self.by_text[selection.question.text].before_encoding(selection)


class TimedSelector(Selector):
    """A selector with the milliseconds of every call, device work included."""

    def __init__(self, inner: Selector, device: torch.device) -> None:
        self.inner, self.device = inner, device
        self.name, self.attention_at = inner.name, inner.attention_at
        self.early, self.depths = inner.early, inner.depths
        self.continues, self.continues_up_to = inner.continues, inner.continues_up_to
        self.select_ms: list[float] = []  # calls of `select` or `before_encoding`
        self.layer_ms: list[float] = []  # calls of `at_layer`

    def select(self, selection: SelectionInput) -> Choice | torch.Tensor:
        return self._time(self.inner.select, selection, self.select_ms)

    def before_encoding(self, selection: SelectionInput) -> Choice | Downscale | torch.Tensor:
        return self._time(self.inner.before_encoding, selection, self.select_ms)

    def at_layer(self, inside: LayerState) -> Choice | torch.Tensor:
        return self._time(self.inner.at_layer, inside, self.layer_ms)

    def relevance(self, selection: SelectionInput) -> torch.Tensor | None:
        return self.inner.relevance(selection)

    def _time(self, call: Callable[[Any], Any], argument: Any, times: list[float]) -> Any:
        start = self._now()
        try:
            return call(argument)
        finally:
            times.append((self._now() - start) * 1e3)

    def _now(self) -> float:
        if self.device.type == "cuda":  # earlier kernels must not count, and those of the call must
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
