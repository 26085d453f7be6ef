"""Budgets: how many cells may be kept, as a user writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arr_coc.errors import BudgetError, whole_number

Budget = int | float | str


@dataclass(frozen=True)
class Limit:
    """A budget applied to `n` cells: `k` of them, or None where the selector decides (`auto`)."""

    n: int
    k: int | None
    note: str = ""

    @property
    def everything(self) -> bool:
        return self.k == self.n


def limit(budget: Budget, n: int, what: str = "budget") -> Limit:
    """`128`, `"12.5%"`, `"auto"` or `"all"` for `n` cells. A share of at least one cell keeps at least one.

    >>> limit("12.5%", 900).k, limit(64, 900).k, limit("all", 900).k
    (113, 64, 900)
    """
    expected = f'expected {what} as a count (128), a share ("12.5%"), "auto" or "all", got {budget!r}'
    if isinstance(budget, str):
        text = budget.strip().lower()
        if text == "auto":
            return Limit(n, None)
        if text == "all":
            return Limit(n, n)
        if text.endswith("%"):
            return Limit(n, _share(text[:-1], n, expected))
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
    return Limit(n, count)


def divide(total: int, sizes: list[int]) -> list[int]:
    """`total` split in proportion to `sizes`, none above its size; largest remainders first.

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


def _share(text: str, n: int, expected: str) -> int:
    try:
        share = float(text) / 100
    except ValueError:
        raise BudgetError(expected) from None
    if not 0 <= share <= 1:
        raise BudgetError(f"{expected}: a share lies between 0% and 100%")
    return math.ceil(share * n - 1e-9)
