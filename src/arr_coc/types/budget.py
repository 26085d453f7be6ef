"""Budgets: how many cells to keep, as a user writes it, and how one budget is split among images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from arr_coc.errors import BudgetError, whole_number

Budget = int | float | str


class Sized(Protocol):
    """Anything with `n` cells in a row of a batch."""

    @property
    def row(self) -> int: ...

    @property
    def n(self) -> int: ...


@dataclass(frozen=True)
class Limit:
    """A budget applied to `n` cells. `k` is the count, or None where it follows from the selector's scores.

    `mass`: where `k` is None, the share of the relevance that the kept cells hold; None: the selector decides (`auto`).
    """

    n: int
    k: int | None
    note: str = ""
    mass: float | None = None

    @property
    def everything(self) -> bool:
        return self.k == self.n


def limit(budget: Budget, n: int, what: str = "budget") -> Limit:
    """`128`, `"12.5%"`, `"mass 90%"`, `"auto"` or `"all"` of `n` cells. A share above 0 keeps at least one cell.

    >>> limit("12.5%", 900).k, limit(64, 900).k, limit("all", 900).k, limit("mass 90%", 900).mass
    (113, 64, 900, 0.9)
    """
    expected = (
        f'expected {what} as a count (128), a share ("12.5%"), a share of the relevance ("mass 90%"), "auto" or "all", '
        f"got {budget!r}"
    )
    if isinstance(budget, str):
        text = budget.strip().lower()
        if text == "auto":
            return Limit(n, None)
        if text == "all":
            return Limit(n, n)
        if text.startswith("mass"):
            mass = _share(text.removeprefix("mass"), expected)
            return Limit(n, None, mass=mass) if mass > 0 else _nothing(n, budget, what)
        if text.endswith("%"):
            part = math.ceil(_share(text, expected) * n - 1e-9)
            return Limit(n, part) if part else _nothing(n, budget, what)
        try:
            budget = int(text)
        except ValueError:
            raise BudgetError(expected) from None
    if isinstance(budget, float):
        hint = f', so write "{100 * budget:g}%"' if 0 < budget < 1 else ""
        raise BudgetError(f"{expected}: a number must be whole{hint}")
    count = whole_number(budget, least=0)
    if count is None:
        raise BudgetError(expected)
    if count > n:
        return Limit(n, n, f"{what} of {count} cells is more than the {n} there are: all are kept")
    return Limit(n, count) if count else _nothing(n, budget, what)


def _nothing(n: int, budget: Budget, what: str) -> Limit:
    """The answer is then a guess, so the result says so."""
    return Limit(n, 0, f"{what} of {budget}: nothing of this picture was read")


def limits(budget: Budget | Sequence[Budget], images: Sequence[Sized], what: str, shared: bool) -> list[Limit]:
    """Each image's limit. With `shared`, the images of a row split one limit in proportion to their cells."""
    if isinstance(budget, list | tuple):
        if len(budget) != len(images):
            raise BudgetError(f"expected one {what} for each of the {len(images)} pictures, got {len(budget)}")
        return [limit(one, image.n, what) for one, image in zip(budget, images, strict=True)]
    if not shared:
        return [limit(budget, image.n, what) for image in images]  # type: ignore[arg-type]
    found: dict[int, Limit] = {}
    for members in rows(images):
        whole = limit(budget, sum(images[i].n for i in members), what)  # type: ignore[arg-type]
        if whole.k is None:
            raise BudgetError(f"expected a count or a share for a shared budget, got {budget!r}")
        for i, part in zip(members, divide(whole.k, [images[i].n for i in members]), strict=True):
            found[i] = Limit(images[i].n, part, whole.note)
    return [found[i] for i in range(len(images))]


def rows(images: Sequence[Sized]) -> list[list[int]]:
    """Indices of the images of each row."""
    numbers = sorted({image.row for image in images})
    return [[i for i, image in enumerate(images) if image.row == row] for row in numbers]


def divide(total: int, sizes: list[int]) -> list[int]:
    """Split `total` in proportion to `sizes`, none above its size; largest remainders first.

    >>> divide(10, [30, 10])
    [8, 2]
    """
    whole = sum(sizes)
    exact = [min(total, whole) * size / whole if whole else 0.0 for size in sizes]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: parts[i] - exact[i])
    for i in by_remainder[: min(total, whole) - sum(parts)]:
        parts[i] += 1
    return parts


def count_for_mass(relevance: torch.Tensor, mass: float) -> int:
    """The fewest of the cells `[M]` that hold the share `mass` of the relevance above its median.

    >>> count_for_mass(torch.tensor([0.0, 0, 0, 0, 1, 3]), 0.75), count_for_mass(torch.ones(8), 0.75)
    (1, 6)
    """
    values = relevance.detach().double().cpu()
    if not bool(torch.isfinite(values).all()):
        raise BudgetError("expected finite relevance for a budget by mass, got NaN or infinity")
    above = (values - values.median()).clamp(min=0) if len(values) else values
    if not bool(above.sum() > 0):
        above = torch.ones_like(above)  # a flat map: all cells count the same
    held = above.sort(descending=True).values.cumsum(0)
    return int((held < mass * held[-1] * (1 - 1e-12)).sum()) + 1 if len(held) and mass > 0 else 0


def _share(text: str, expected: str) -> float:
    try:
        share = float(text.strip().removesuffix("%")) / 100 if text.endswith("%") else math.nan
    except ValueError:
        raise BudgetError(expected) from None
    if math.isnan(share):
        raise BudgetError(expected)
    if not 0 <= share <= 1:
        raise BudgetError(f"{expected}: a share lies between 0% and 100%")
    return share
