"""What a caller wants of the pictures: how much to encode and keep, who decides, or the cells themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from arr_coc.errors import AllocationError, BudgetError, SelectorError
from arr_coc.selectors import Selector
from arr_coc.types.allocation import Allocation, checked
from arr_coc.types.budget import Budget, Limit, divide, limit
from arr_coc.types.grid import Cells


class Picture(Protocol):
    """Anything with cells in a row of a batch."""

    @property
    def row(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def grid(self) -> Cells: ...


@dataclass(frozen=True)
class Wish:
    """One call's wishes, checked for what can be checked without pictures."""

    selector: Selector
    glance_selector: Selector
    budget: Budget | Sequence[Budget] = "all"
    glance: Budget | Sequence[Budget] = "all"
    allocation: Any = None  # cells decided beforehand, one entry per picture
    shared: bool = False  # one budget for all pictures of a row
    seed: int = 0

    def __post_init__(self) -> None:
        for what, budget in (("budget", self.budget), ("glance", self.glance)):
            several = budget if isinstance(budget, list | tuple) else [budget]
            for one in several:
                limit(one, 1, what)  # type: ignore[arg-type]
        if self.shared and isinstance(self.budget, list | tuple):
            raise BudgetError("expected one budget for all pictures beside shared=True, got a list")
        if self.allocation is not None and (self.budget != "all" or self.glance != "all"):
            raise AllocationError("an allocation says what is kept and encoded: leave budget and glance out beside it")
        if self.selector.early and self.glance != "all":
            raise SelectorError(f"selector {self.selector.name!r} spends its budget before encoding: leave glance out")
        for one in (self.selector, self.glance_selector):
            for depth in (*one.attention_at, *one.depths):
                if not isinstance(depth, int | float) or not math.isfinite(depth) or not 0 <= depth <= 1:
                    raise SelectorError(f"expected depths between 0 and 1 of selector {one.name!r}, got {depth!r}")


def limits(budget: Budget | Sequence[Budget], pictures: Sequence[Picture], what: str, shared: bool) -> list[Limit]:
    """Each picture's limit; with `shared`, its part of its row's by size."""
    if isinstance(budget, list | tuple):
        if len(budget) != len(pictures):
            raise BudgetError(f"expected one {what} for each of the {len(pictures)} pictures, got {len(budget)}")
        return [limit(one, picture.n, what) for one, picture in zip(budget, pictures, strict=True)]
    if not shared:
        return [limit(budget, picture.n, what) for picture in pictures]  # type: ignore[arg-type]
    found: dict[int, Limit] = {}
    for members in rows(pictures):
        whole = limit(budget, sum(pictures[i].n for i in members), what)  # type: ignore[arg-type]
        if whole.k is None:
            raise BudgetError(f"expected a count or a share for a shared budget, got {budget!r}")
        for i, part in zip(members, divide(whole.k, [pictures[i].n for i in members]), strict=True):
            found[i] = Limit(pictures[i].n, part, whole.note)
    return [found[i] for i in range(len(pictures))]


def rows(pictures: Sequence[Picture]) -> list[list[int]]:
    """The places in the list of each row's pictures."""
    return [
        [i for i, picture in enumerate(pictures) if picture.row == row]
        for row in sorted({picture.row for picture in pictures})
    ]


def given(allocation: Any, pictures: Sequence[Picture]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Cells to keep and to encode that the caller decided, checked against the pictures they are for."""
    if allocation is None:
        return None
    entries = list(allocation) if _is_list(allocation) or len(pictures) != 1 else [allocation]
    if len(entries) != len(pictures):
        raise AllocationError(f"expected one allocation for each of the {len(pictures)} pictures, got {len(entries)}")
    cells = []
    for entry, picture in zip(entries, pictures, strict=True):
        if not isinstance(entry, Allocation):
            cells.append((checked(entry, picture.grid, "kept cells"), torch.arange(picture.n)))
            continue
        if not _same_cells(entry.grid, picture.grid):
            raise AllocationError(
                f"this allocation is for a grid of {entry.grid} cells, but the picture has {picture.grid}"
            )
        cells.append((entry.keep, entry.encoded))
    return cells


def _same_cells(one: Cells, other: Cells) -> bool:
    """Which part of the picture they cover may be known for one of them only."""
    return [(v.t, v.h, v.w) for v in one.views] == [(v.t, v.h, v.w) for v in other.views]


def _is_list(allocation: Any) -> bool:
    """Whether there are several entries, rather than the cell numbers of one."""
    if isinstance(allocation, Allocation | torch.Tensor | np.ndarray):
        return False
    if not isinstance(allocation, list | tuple):
        raise AllocationError(
            f"expected cells or a list of them, one for each picture, got {type(allocation).__name__}"
        )
    return any(isinstance(entry, Allocation | torch.Tensor | np.ndarray | list | tuple) for entry in allocation)
