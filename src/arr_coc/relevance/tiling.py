"""Tiling: one image as cells of different sizes within a budget, small where it matters and large elsewhere.

The cells of all levels form trees: a cell, and the four inside it. Every cut through the trees shows the image once. The best
cut for a price per cell is found from the leaves up (Chou, Lookabaugh and Gray, "Optimal pruning with applications to
tree-structured source coding and modeling", 1989): split where what the parts show beyond the whole is worth their price. The
price is the lowest one at which the cut stays within the budget; what is left of the budget splits further cells.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.types.levels import Levels

SEEN = 0.3  # how much of what a cell shows is still seen in one twice as large
CONTEXT = 1e-3  # worth of a cell without relevance, relative to that of the most relevant one
COVER = 1 / 32  # share of the budget that the coarsest cells of the whole image may cost: beyond it there are holes
STEPS = 60  # of the search for the price


@dataclass(frozen=True, eq=False)
class Tiling:
    """The chosen cells `[K]` of `Levels`, sorted, and the share of the image that none of them covers."""

    cells: torch.Tensor
    holes: float

    @property
    def complete(self) -> bool:
        return self.holes == 0


def tile(
    levels: Levels, relevance: torch.Tensor, inside: torch.Tensor, budget: int, holes: bool | None = None,
    seen: float = SEEN, even: bool = False,
) -> Tiling:  # fmt: skip
    """At most `budget` cells that show most of the relevance.

    Args:
        levels: All cells.
        relevance: `[h, w]` of the cells of level 0, at least 0.
        inside: `[height, width]` bool: which of the finest cells lie on the image; a turned one leaves corners.
        budget: How many cells.
        holes: Whether places may be left out. None: only where the coarsest cells of all of the image cost more than their
            share of the budget.
        seen: See `SEEN`.
        even: Show all of the image at the finest level that the budget allows, and split the most relevant of its cells, once, for
            what is left of the budget.
    """
    trees = _Trees(levels, relevance, inside, seen)
    roots = int(trees.real[-1].sum())
    if holes is None:
        holes = roots > COVER * budget
    budget = min(budget, int(trees.real[0].sum()) + int(trees.real[1].sum()) if len(trees.real) > 1 else budget)
    if not holes and roots > budget:
        holes = True
    if budget <= 0 or roots == 0:
        return Tiling(torch.zeros(0, dtype=torch.long), 1.0 if roots else 0.0)
    if even and not holes:
        chosen, finest = _uniform(trees, budget)
    else:
        chosen, finest = _cut_within(trees, budget, holes), 0
    chosen = _fill(trees, chosen, budget, holes, finest)
    numbers, covered = [], 0
    for level, one in enumerate(chosen):
        numbers.append(trees.number(level, one))
        covered += int(trees.fine[level][one].sum())
    return Tiling(torch.cat(numbers).sort().values, 1 - covered / max(1, int(inside.sum())))


class _Trees:
    """Values of all cells, level by level, as planes over the whole image; level 0 has none outside the page."""

    def __init__(self, levels: Levels, relevance: torch.Tensor, inside: torch.Tensor, seen: float) -> None:
        self.levels = levels
        depth = levels.coarser
        side = 2**depth
        high, wide = -(-levels.height // side) * side, -(-levels.width // side) * side
        page = levels.views[0]
        rows, columns = slice(levels.top, levels.top + page.h), slice(levels.left, levels.left + page.w)
        fine = torch.zeros(high, wide, dtype=torch.double)
        fine[: levels.height, : levels.width] = inside.double()
        top = float(relevance.max()) if relevance.numel() else 0.0
        worth = CONTEXT * fine
        worth[rows, columns] += relevance.double().clamp_min(0) / (top or 1.0)
        worth *= fine > 0
        on_page = torch.zeros(high, wide, dtype=torch.double)
        on_page[rows, columns] = 1
        self.fine: list[torch.Tensor] = []  # number of finest cells on the image, of each cell
        self.worth: list[torch.Tensor] = []  # what each cell shows if it is chosen
        for level in range(depth + 1):
            self.fine.append(_sums(fine, 2**level))
            self.worth.append(_sums(worth, 2**level) * seen**level)
        self.real = [count > 0 for count in self.fine]
        # Level 0 is only on the page: a cell of level 1 can be split where all of its parts are.
        missing = _sums(fine * (1 - on_page), 2) > 0 if depth else None
        self.splits = [torch.zeros_like(self.real[0])]
        self.splits += [real.clone() for real in self.real[1:]]
        if missing is not None:
            self.splits[1] &= ~missing
        self.real[0] &= on_page.bool()

    def number(self, level: int, chosen: torch.Tensor) -> torch.Tensor:
        """The numbers of the chosen cells of a level."""
        rows, columns = chosen.nonzero(as_tuple=True)
        if level == 0:
            rows, columns = rows - self.levels.top, columns - self.levels.left
        return self.levels.starts[level] + rows * self.levels.views[level].w + columns


def _sums(plane: torch.Tensor, side: int) -> torch.Tensor:
    return F.avg_pool2d(plane[None, None], side)[0, 0] * side**2 if side > 1 else plane


def _double(plane: torch.Tensor) -> torch.Tensor:
    return plane.repeat_interleave(2, 0).repeat_interleave(2, 1)


def _cut(trees: _Trees, price: float, holes: bool) -> list[torch.Tensor]:
    """The chosen cells of each level at a price per cell."""
    depth = trees.levels.coarser
    best, splits = [], []
    for level in range(depth + 1):
        own = torch.where(trees.real[level], trees.worth[level] - price, 0.0)
        if holes:
            own = own.clamp_min(0.0)
        if level == 0:
            best.append(own)
            splits.append(torch.zeros_like(trees.real[0]))
            continue
        parts = _sums(best[-1], 2)
        split = trees.splits[level] & (parts > own)
        best.append(torch.where(split, parts, own))
        splits.append(split)
    reached = torch.ones_like(trees.real[depth])
    chosen: list[torch.Tensor] = []
    for level in range(depth, -1, -1):
        leaf = reached & ~splits[level] & trees.real[level]
        if holes:
            leaf &= trees.worth[level] > price
        chosen.append(leaf)
        if level:
            reached = _double(reached & splits[level])
    return chosen[::-1]


def _cut_within(trees: _Trees, budget: int, holes: bool) -> list[torch.Tensor]:
    """The best cut with at most `budget` cells."""
    low, high = (
        0.0,
        float(trees.worth[0].sum()) + 1.0,
    )  # above the highest price, there is a hole, or the coarsest cells
    found = _cut(trees, high, holes)
    for _ in range(STEPS):
        price = (low * high) ** 0.5 if low else high / 16
        cut = _cut(trees, price, holes)
        if sum(int(one.sum()) for one in cut) <= budget:
            high, found = price, cut
            if price < 1e-12:
                break
        else:
            low = price
    return found


def _uniform(trees: _Trees, budget: int) -> tuple[list[torch.Tensor], int]:
    """The whole image at the finest level of at most `budget` cells, and the next finer level.

    Outside the page there are no cells of level 0: those of level 1 stay.
    """
    depth = trees.levels.coarser
    for level in range(depth + 1):
        chosen = [torch.zeros_like(real) for real in trees.real]
        chosen[level] = trees.real[level].clone()
        if level == 0 and depth:
            chosen[1] = trees.real[1] & ~trees.splits[1]
            chosen[0] &= ~_double(chosen[1])
        if sum(int(one.sum()) for one in chosen) <= budget or level == depth:
            return chosen, max(0, level - 1)
    raise AssertionError("unreachable")


def _fill(trees: _Trees, chosen: list[torch.Tensor], budget: int, holes: bool, finest: int = 0) -> list[torch.Tensor]:
    """The cut with what is left of the budget spent: holes are filled by coarse cells, and cells are split, the best first.

    No cell is split beyond the level `finest`.
    """
    left = budget - sum(int(one.sum()) for one in chosen)
    queue: list[tuple[float, int, int, int, bool]] = []

    def offer(level: int, row: int, column: int, fills: bool) -> None:
        if fills:
            if trees.real[level][row, column]:
                heapq.heappush(queue, (-float(trees.worth[level][row, column]), level, row, column, True))
            return
        if level <= finest or not trees.splits[level][row, column]:
            return
        part = slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2)
        cost = int(trees.real[level - 1][part].sum()) - 1
        gain = float(trees.worth[level - 1][part].sum() - trees.worth[level][row, column])
        heapq.heappush(queue, (-gain / max(cost, 0.5), level, row, column, False))

    if left > 0:
        for level, one in enumerate(chosen):
            for row, column in one.nonzero().tolist():
                offer(level, row, column, False)
        if holes:
            for level, row, column in _open(trees, chosen):
                offer(level, row, column, True)
    while left > 0 and queue:
        _, level, row, column, fills = heapq.heappop(queue)
        if fills:
            chosen[level][row, column] = True
            left -= 1
            offer(level, row, column, False)
            continue
        part = slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2)
        parts = trees.real[level - 1][part]
        cost = int(parts.sum()) - 1
        if cost > left:
            continue
        chosen[level][row, column] = False
        chosen[level - 1][part] = parts
        left -= cost
        for down, across in parts.nonzero().tolist():
            offer(level - 1, 2 * row + down, 2 * column + across, False)
    return chosen


def _open(trees: _Trees, chosen: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """The largest cells that no chosen one overlaps, as (level, row, column)."""
    depth = trees.levels.coarser
    covered = [chosen[0]]  # a chosen cell is at or below this one
    for level in range(1, depth + 1):
        covered.append(chosen[level] | (_sums(covered[-1].double(), 2) > 0))
    above = torch.zeros_like(chosen[depth])  # a chosen or an open cell is above this one
    found = []
    for level in range(depth, -1, -1):
        free = ~covered[level] & ~above & trees.real[level]
        found += [(level, row, column) for row, column in free.nonzero().tolist()]
        if level:
            above = _double(above | chosen[level] | free)
    return found
