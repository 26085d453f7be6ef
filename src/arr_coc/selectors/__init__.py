"""Selectors by name, one file each. `register` adds your own."""

from __future__ import annotations

from collections.abc import Callable

from arr_coc.errors import SelectorError
from arr_coc.selectors.all import All
from arr_coc.selectors.base import Choice, Function, Inside, Selector, Sight, Smaller, Words
from arr_coc.selectors.random import Random
from arr_coc.selectors.uniform import Uniform

_KNOWN: dict[str, Callable[[], Selector]] = {maker.name: maker for maker in (All, Random, Uniform)}

SelectorLike = str | Selector | Callable[[Sight], object]


def names() -> tuple[str, ...]:
    return tuple(_KNOWN)


def register(maker: Callable[[], Selector], name: str) -> None:
    """Make a selector available by name; `maker` is called once per use."""
    if name in _KNOWN:
        raise SelectorError(f"a selector named {name!r} is there already: choose another name")
    _KNOWN[name] = maker


def selector(which: SelectorLike) -> Selector:
    """A selector by its name, as an object, or as a function of a sight."""
    if isinstance(which, Selector):
        return which
    if isinstance(which, str):
        if which not in _KNOWN:
            raise SelectorError(f"expected a selector among {', '.join(_KNOWN)}, got {which!r}")
        return _KNOWN[which]()
    if callable(which) and not isinstance(which, type):
        return Function(which)  # type: ignore[arg-type]
    raise SelectorError(f"expected a selector's name, a Selector or a function of a sight, got {which!r}")


__all__ = [
    "Choice", "Function", "Inside", "Selector", "SelectorLike", "Sight", "Smaller", "Words",
    "names", "register", "selector",
]  # fmt: skip
