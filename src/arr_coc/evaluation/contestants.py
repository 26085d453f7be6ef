"""Who takes part: selectors by name, from a module of the user's, or as objects; each watched while it chooses."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc import selectors
from arr_coc.errors import SelectorError, first_line
from arr_coc.evaluation.data import Evidence, Picture
from arr_coc.selectors import Choice, Inside, Selector, SelectorLike, Sight, Smaller

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
        oracle = _oracle()
        return Contestant(ORACLE, lambda picture: PerQuestion.about(picture, oracle), oracle(()))
    thing = _imported(which) if isinstance(which, str) and ":" in which else which
    if isinstance(thing, str) and thing not in selectors.names():
        near = difflib.get_close_matches(thing.lower(), [*selectors.names(), ORACLE], 1, 0.5)
        raise SelectorError(
            f"there is no selector {thing!r}{f'; did you mean {near[0]!r}?' if near else ''} "
            f"(known: {', '.join(selectors.names())}; your own: module:name)"
        )
    chosen = selectors.selector(thing() if isinstance(thing, type) and issubclass(thing, Selector) else thing)
    name = thing if isinstance(thing, str) else chosen.name or type(chosen).__name__
    return Contestant(name, lambda picture: chosen, chosen, _file(chosen))


def _oracle() -> Any:
    try:
        module = importlib.import_module("arr_coc.selectors.oracle")
        return module.Oracle
    except (ImportError, AttributeError):
        raise SelectorError("the selector 'oracle' is not part of this version: leave it out") from None


def _imported(path: str) -> Any:
    """`module:name` from the working folder or an installed package."""
    module, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())  # a command's path does not hold it, and users write their selectors there
    try:
        there = importlib.import_module(module)
    except Exception as error:  # the user's module may raise anything
        raise SelectorError(
            f"cannot import {module!r} for {path!r}: {type(error).__name__}: {first_line(error)}"
        ) from None
    finally:
        sys.path.remove(os.getcwd())
    if not hasattr(there, name):
        near = difflib.get_close_matches(name, dir(there), 1, 0.5)
        raise SelectorError(f"there is no {name!r} in {module!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    return getattr(there, name)


def _file(chosen: Selector) -> str:
    thing: Any = getattr(chosen, "function", None) or type(chosen)
    try:
        return inspect.getsourcefile(thing) or ""
    except TypeError:
        return ""


class PerQuestion(Selector):
    """Another selector for each question: what knows the answer is made for one question."""

    def __init__(self, by_text: dict[str, Selector], name: str) -> None:
        self.by_text = by_text
        self.name = name
        kind = next(iter(by_text.values()))
        self.attention_at, self.early, self.depths = kind.attention_at, kind.early, kind.depths

    @classmethod
    def about(cls, picture: Picture, oracle: Callable[[Evidence], Selector]) -> PerQuestion:
        groups: dict[str, Evidence] = {}
        for sample in picture.samples:  # the same words twice: the evidence of either answers them
            groups[sample.question] = groups.get(sample.question, ()) + sample.evidence
        return cls({text: oracle(evidence) for text, evidence in groups.items()}, ORACLE)

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

    def at_layer(self, inside: Inside) -> torch.Tensor:
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
