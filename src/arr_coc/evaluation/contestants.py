"""Who takes part: selectors by name, from a module of the user's, or as objects; each watched while it chooses."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc import selectors
from arr_coc.errors import SelectorError
from arr_coc.evaluation.data import Evidence, Picture
from arr_coc.selectors import Choice, Inside, Oracle, Selector, SelectorLike, Sight, Smaller
from arr_coc.selectors.uniform import Uniform

DENSE = "all"
ORACLE = "oracle"
RANDOM = "random"
USUAL = (DENSE, RANDOM, "uniform", "ink", "divprune", "arr-coc")  # of these, whichever are there


@dataclass(frozen=True)
class Contestant:
    """One selector under its name; `make` gives it for one picture."""

    name: str
    make: Callable[[Picture], Selector]
    sample: Selector  # one of its kind, to read its attributes from
    source: str = ""  # the file it is written in
    settings: str = ""  # how it was made, to tell two of a kind apart

    @property
    def reencodes(self) -> bool:
        return self.sample.early

    @property
    def glances(self) -> bool:
        """Whether it can choose before the encoder has run."""
        return type(self.sample).before_encoding is not Selector.before_encoding


def contestants(which: Sequence[SelectorLike] | None = None) -> list[Contestant]:
    """Selectors as users name them: a known name, `module:name`, an object or a function. None: the usual ones."""
    if which is None:
        which = [name for name in USUAL if name in selectors.names()]
    if isinstance(which, str):
        which = [which]
    found = [_contestant(one) for one in which]
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SelectorError(f"expected every selector once, got {', '.join(twice)} twice: give them names of their own")
    if not found:
        raise SelectorError(f"expected at least one selector, such as {', '.join(selectors.names())}")
    return found


def _contestant(which: SelectorLike) -> Contestant:
    if which == ORACLE:
        somewhere = Oracle([[(0, 0, 1, 1)]])
        return Contestant(ORACLE, PerQuestion.oracle, somewhere, _file(somewhere))
    chosen = selectors.selector(which() if isinstance(which, type) and issubclass(which, Selector) else which)
    name = which if isinstance(which, str) and ":" not in which else chosen.name or type(chosen).__name__
    return Contestant(name, lambda picture: chosen, chosen, _file(chosen), settings_of(chosen))


def _file(chosen: Selector) -> str:
    thing: Any = getattr(chosen, "function", None) or type(chosen)
    try:
        return inspect.getsourcefile(thing) or ""
    except TypeError:
        return ""


def settings_of(chosen: Selector) -> str:
    """What an object holds, or a function closes over. Where that shows no more than an address, no other run is like it."""
    function = getattr(chosen, "function", None)
    held = {name: value for name, value in vars(chosen).items() if value is not function}
    if inspect.isfunction(function):
        held |= inspect.getclosurevars(function).nonlocals
        held["code"] = (function.__code__.co_code, function.__code__.co_consts, function.__defaults__)
    elif function is not None:
        held["function"] = function
    return repr(held)


class PerQuestion(Selector):
    """Another selector for each question: what knows the answer is made for one question."""

    def __init__(self, by_text: dict[str, Selector], name: str) -> None:
        self.by_text = by_text
        self.name = name
        kind = next(iter(by_text.values()))
        self.attention_at, self.early, self.depths = kind.attention_at, kind.early, kind.depths

    @classmethod
    def oracle(cls, picture: Picture) -> PerQuestion:
        """An oracle for each question; where nobody knows where the answer stands, evenly spaced cells."""
        groups: dict[str, Evidence] = {}
        for sample in picture.samples:  # the same words twice: the evidence of either answers them
            groups[sample.question] = groups.get(sample.question, ()) + sample.evidence
        size, frames = picture.size, len(picture.frames)
        return cls(
            {text: Oracle(known, size, frames) if known else Uniform() for text, known in groups.items()}, ORACLE
        )

    def select(self, sight: Sight) -> Choice | torch.Tensor:
        return self.by_text[sight.words.text].select(sight)

    def before_encoding(self, sight: Sight) -> Choice | Smaller | torch.Tensor:
        return self.by_text[sight.words.text].before_encoding(sight)


class Witness(Selector):
    """A selector with a stopwatch: milliseconds of every call, the device's work included."""

    def __init__(self, inner: Selector, device: torch.device) -> None:
        self.inner, self.device = inner, device
        self.name, self.attention_at = inner.name, inner.attention_at
        self.early, self.depths = inner.early, inner.depths
        self.outside: list[float] = []  # calls of `select` or `before_encoding`
        self.inside: list[float] = []  # calls of `at_layer`

    def select(self, sight: Sight) -> Choice | torch.Tensor:
        return self._timed(self.inner.select, sight, self.outside)

    def before_encoding(self, sight: Sight) -> Choice | Smaller | torch.Tensor:
        return self._timed(self.inner.before_encoding, sight, self.outside)

    def at_layer(self, inside: Inside) -> Choice | torch.Tensor:
        return self._timed(self.inner.at_layer, inside, self.inside)

    def relevance(self, sight: Sight) -> torch.Tensor | None:
        return self.inner.relevance(sight)

    def _timed(self, call: Callable[[Any], Any], sight: Any, into: list[float]) -> Any:
        start = self._now()
        try:
            return call(sight)
        finally:
            into.append((self._now() - start) * 1e3)

    def _now(self) -> float:
        if self.device.type == "cuda":  # what was started before must not be counted, and what the call started must
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
