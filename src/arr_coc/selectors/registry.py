"""Selectors by name. `register` adds your own; "module:Name" imports one from your code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from arr_coc.errors import SelectorError, first_line
from arr_coc.selectors.base import FunctionSelector, SelectionInput, Selector
from arr_coc.selectors.cdpruner import CDPruner
from arr_coc.selectors.controls import All, Centre, Random, Resize, Uniform
from arr_coc.selectors.cues import Coupling, Ink, Saliency
from arr_coc.selectors.dart import DART
from arr_coc.selectors.divprune import DivPrune
from arr_coc.selectors.evs import EVS
from arr_coc.selectors.fastv import FastV
from arr_coc.selectors.hiprune import HiPrune
from arr_coc.selectors.idpruner import IDPruner
from arr_coc.selectors.mmr import MMR
from arr_coc.selectors.oracle import Oracle
from arr_coc.selectors.pixelprune import PixelPrune
from arr_coc.selectors.scope import Scope
from arr_coc.selectors.sparsevlm import SparseVLM
from arr_coc.selectors.tome import ToMe
from arr_coc.selectors.visionzip import VisionZip
from arr_coc.selectors.vispruner import VisPruner


def _deferred(module: str, name: str) -> Callable[[], Selector]:
    """A maker that imports its class on first use: ARR-COC's own selectors lie in a higher layer."""
    return lambda: getattr(importlib.import_module(module), name)()


_KNOWN: dict[str, Callable[[], Selector]] = {
    maker.name: maker
    for maker in (
        All, Random, Uniform, Centre, Resize, Saliency, Ink, Coupling, DivPrune, CDPruner, Scope, MMR, IDPruner, VisionZip,
        VisPruner, HiPrune, ToMe, PixelPrune, DART, FastV, SparseVLM, EVS, Oracle,
    )
}  # fmt: skip
_KNOWN |= {
    "arr-coc": _deferred("arr_coc.relevance.selector", "ArrCoc"),
    "arr-coc-universal": _deferred("arr_coc.relevance.selector", "Universal"),
    "arr-coc-untrained": _deferred("arr_coc.relevance.selector", "Untrained"),
}

SelectorLike = str | Selector | Callable[[SelectionInput], object]


def names() -> tuple[str, ...]:
    return tuple(_KNOWN)


def register(maker: Callable[[], Selector], name: str) -> None:
    """Make a selector available by name. `maker` is called once per use."""
    if name in _KNOWN:
        raise SelectorError(f"a selector named {name!r} exists already: choose another name")
    _KNOWN[name] = maker


def selector(which: SelectorLike) -> Selector:
    """A selector from its name, "module:Name", a `Selector`, or a function of a `SelectionInput`."""
    if isinstance(which, Selector):
        return which
    if isinstance(which, str):
        if which in _KNOWN:
            return _KNOWN[which]()
        if ":" in which:
            return _imported(which)
        near = difflib.get_close_matches(which.lower(), _KNOWN, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SelectorError(f"expected a selector among {', '.join(_KNOWN)}, got {which!r}{hint}")
    if callable(which) and not isinstance(which, type):
        return FunctionSelector(which)  # type: ignore[arg-type]
    raise SelectorError(f"expected a selector's name, a Selector or a function of a SelectionInput, got {which!r}")


def _imported(path: str) -> Selector:
    """The Selector class (called without arguments), Selector or function at `path`.

    As with `python -m`, modules of the working directory are found, too.
    """
    module, _, name = path.partition(":")
    found = _attribute(module, name, path)
    if isinstance(found, type) and issubclass(found, Selector):
        try:
            made = found()
        except SelectorError:
            raise
        except Exception as error:
            raise SelectorError(
                f"selector {path!r} cannot be made without arguments ({type(error).__name__}: {first_line(error)})"
            ) from error
        return _named(made, name)
    if isinstance(found, Selector):
        return _named(found, name)
    if callable(found) and not isinstance(found, type):
        return FunctionSelector(found)
    raise SelectorError(
        f"expected {path!r} to be a Selector or a function of a SelectionInput, got {_kind(found)}: derive it from arr_coc's Selector"
    )


def _attribute(module: str, name: str, path: str) -> Any:
    if not module or not name:
        raise SelectorError(f'expected a selector of your own as "module:Name", got {path!r}')
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        if module in sys.modules:
            raise SelectorError(f"module {module!r} has no {name!r}: check the name in {path!r}") from error
        raise SelectorError(f"module {module!r} cannot be imported (AttributeError: {first_line(error)})") from error
    except Exception as error:
        raise SelectorError(
            f"module {module!r} cannot be imported ({type(error).__name__}: {first_line(error)})"
        ) from error
    finally:
        sys.path.remove(here)


def _named(made: Selector, name: str) -> Selector:
    """Results name their selector: one without a name gets the name it was requested by."""
    if not made.name:
        made.name = name
    return made


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
