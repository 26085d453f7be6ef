"""Options of an engine's plugin: the server's defaults, and what a request may change.

    {"arr_coc": {"budget": "12.5%"}}

A request may set how much is kept and by which registered selector. What is loaded from disk is the server's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from arr_coc import selectors
from arr_coc.errors import AllocationError, ArrCocError, BudgetError, SelectorError, whole_number
from arr_coc.relevance.selector import ArrCoc
from arr_coc.types.budget import Budget, limit

KEY = "arr_coc"  # among the engine's processor options
MAX_QUESTION = 2000  # characters: a turn may hold a whole document, and its question is at the end
MANY_CELLS = 10**6  # more than any picture has


@dataclass(frozen=True)
class GlanceOptions:
    """How many cells of each picture are encoded, and which."""

    budget: Budget = "all"
    selector: str = ArrCoc.name
    seed: int = 0
    question: str | None = None  # None: the text of the last user turn
    cells: tuple[tuple[int, ...], ...] | None = None  # of each picture, chosen by the caller

    def __post_init__(self) -> None:
        bound = limit(self.budget, 1)
        if bound.k == 0:
            raise BudgetError(f"expected a budget of at least one cell, got {self.budget!r}")
        if self.selector not in selectors.names():
            names = ", ".join(selectors.names())
            raise SelectorError(f"expected a selector among {names}, got {self.selector!r}")
        if whole_number(self.seed, least=0) is None:
            raise ArrCocError(f"expected a seed of 0 or more, got {self.seed!r}")
        if self.question is not None and not isinstance(self.question, str):
            raise ArrCocError(f"expected the question as text, got {type(self.question).__name__}")
        if len(self.question or "") > MAX_QUESTION:
            raise ArrCocError(f"expected a question of up to {MAX_QUESTION} characters, got {len(self.question or '')}")

    @property
    def fixed(self) -> bool:
        """Whether the cells are known without looking at the picture: all of them, or the caller's."""
        return self.cells is not None or limit(self.budget, MANY_CELLS).everything

    def merge(self, given: object) -> GlanceOptions:
        """These options, changed by a request's."""
        names = tuple(one.name for one in fields(GlanceOptions))
        changed = dict(_mapping(given, names, "of a request"))
        if changed.get("cells") is not None:
            changed["cells"] = _cell_lists(changed["cells"])
        return replace(self, **changed)

    def key(self, picture: int) -> dict[str, Any]:
        """What the choice of one picture depends on, for cache keys."""
        own = None if self.cells is None else self.cells[picture]
        return asdict(self) | {"cells": None if own is None else list(own)}


@dataclass(frozen=True)
class ServerOptions:
    """The server's options: the defaults of all requests, and what may be used to relate cells to a question."""

    defaults: GlanceOptions = GlanceOptions()
    embeddings: str | None = None  # an encoder's name: "labels"
    # "auto": the layer in the model's folder, or the universal one; "universal"; None: none; or a layer's folder
    layer: str | None = "auto"

    @classmethod
    def parse(cls, given: object) -> ServerOptions:
        names = ("budget", "selector", "seed", "embeddings", "layer")
        options = dict(_mapping(given, names, "of the server"))
        loaded = {name: options.pop(name) for name in ("embeddings", "layer") if name in options}
        for name, value in loaded.items():
            if value is not None and not isinstance(value, str):
                raise ArrCocError(f"expected {name} as text or null, got {type(value).__name__}")
        return cls(GlanceOptions().merge(options), **loaded)


def _mapping(given: object, names: tuple[str, ...], whose: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ArrCocError(f'expected the option {KEY} {whose} as {{"budget": "12.5%"}}, got {given!r}')
    for name in given:
        if name not in names:
            raise ArrCocError(f"expected the options {whose} among {', '.join(names)}, got {name!r}")
    return given


def _cell_lists(given: object) -> tuple[tuple[int, ...], ...]:
    """One list of cell numbers for each picture."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, list | tuple) and one for one in given):
        raise AllocationError(f"expected cells as one list of cell numbers for each picture, got {given!r}")
    numbers = [[whole_number(cell, least=0) for cell in one] for one in given]
    if any(cell is None for one in numbers for cell in one):
        raise AllocationError("expected cells as whole numbers from 0 on")
    return tuple(tuple(cell for cell in one if cell is not None) for one in numbers)
