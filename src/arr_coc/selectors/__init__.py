"""Selectors by name, one file each. `register` adds your own, "module:Name" brings one along."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from arr_coc.errors import SelectorError
from arr_coc.relevance.selector import ArrCoc, Untrained
from arr_coc.selectors.all import All
from arr_coc.selectors.base import Choice, Function, Inside, Selector, Sight, Smaller, Words
from arr_coc.selectors.cdpruner import CDPruner
from arr_coc.selectors.centre import Centre
from arr_coc.selectors.coupling import Coupling
from arr_coc.selectors.divprune import DivPrune
from arr_coc.selectors.evs import EVS
from arr_coc.selectors.fastv import FastV
from arr_coc.selectors.hiprune import HiPrune
from arr_coc.selectors.imported import imported
from arr_coc.selectors.ink import Ink
from arr_coc.selectors.mmr import MMR
from arr_coc.selectors.oracle import Oracle
from arr_coc.selectors.random import Random
from arr_coc.selectors.resize import Resize
from arr_coc.selectors.saliency import Saliency
from arr_coc.selectors.scope import Scope
from arr_coc.selectors.sparsevlm import SparseVLM
from arr_coc.selectors.tome import ToMe
from arr_coc.selectors.uniform import Uniform
from arr_coc.selectors.visionzip import VisionZip
from arr_coc.selectors.vispruner import VisPruner

_KNOWN: dict[str, Callable[[], Selector]] = {
    maker.name: maker
    for maker in (
        All, Random, Uniform, Centre, Resize, Saliency, Ink, Coupling, DivPrune, CDPruner, Scope, MMR, VisionZip, VisPruner, HiPrune,
        ToMe, FastV, SparseVLM, EVS, Oracle, ArrCoc, Untrained,
    )
}  # fmt: skip

SelectorLike = str | Selector | Callable[[Sight], object]


def names() -> tuple[str, ...]:
    return tuple(_KNOWN)


def register(maker: Callable[[], Selector], name: str) -> None:
    """Make a selector available by name; `maker` is called once per use."""
    if name in _KNOWN:
        raise SelectorError(f"a selector named {name!r} is there already: choose another name")
    _KNOWN[name] = maker


def selector(which: SelectorLike) -> Selector:
    """A selector by its name, as "module:Name", as an object, or as a function of a sight."""
    if isinstance(which, Selector):
        return which
    if isinstance(which, str):
        if which in _KNOWN:
            return _KNOWN[which]()
        if ":" in which:
            return imported(which)
        near = difflib.get_close_matches(which.lower(), _KNOWN, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SelectorError(f"expected a selector among {', '.join(_KNOWN)}, got {which!r}{hint}")
    if callable(which) and not isinstance(which, type):
        return Function(which)  # type: ignore[arg-type]
    raise SelectorError(f"expected a selector's name, a Selector or a function of a sight, got {which!r}")


__all__ = [
    "Choice", "Function", "Inside", "Oracle", "Selector", "SelectorLike", "Sight", "Smaller", "Words",
    "names", "register", "selector",
]  # fmt: skip
