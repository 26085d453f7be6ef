"""Tilings show every place once, within the budget, and as well as the best tiling that there is."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from arr_coc.relevance.tiling import CONTEXT, SEEN, _cut, _Trees, tile
from arr_coc.types.levels import Levels

PAGE = Levels.make(30, 22, (8, 8, 14, 10), 3, 1.0)
WHOLE = Levels.make(7, 9, (0, 0, 7, 9), 2, 1.0)


def relevance(levels: Levels, seed: int = 0, peaked: int = 8) -> torch.Tensor:
    page = levels.views[0]
    return torch.rand(page.h, page.w, generator=torch.Generator().manual_seed(seed)) ** peaked


def everywhere(levels: Levels) -> torch.Tensor:
    return torch.ones(levels.height, levels.width, dtype=torch.bool)


def cover(levels: Levels, cells: torch.Tensor) -> torch.Tensor:
    """How many of the cells cover each of the finest ones."""
    side = 2**levels.coarser
    found = torch.zeros(levels.height + side, levels.width + side)
    for top, left, bottom, right in levels.spans(cells).tolist():
        found[top:bottom, left:right] += 1
    return found[: levels.height, : levels.width]


@pytest.mark.parametrize("levels", [PAGE, WHOLE], ids=["page", "whole"])
@pytest.mark.parametrize("budget", [0, 1, 7, 20, 60, 1000])
@pytest.mark.parametrize("holes", [None, True, False])
def test_every_place_is_shown_at_most_once_within_the_budget(levels: Levels, budget: int, holes: bool | None) -> None:
    inside = everywhere(levels)
    inside[:3, :4] = False  # a corner that is not on the image
    found = tile(levels, relevance(levels), inside, budget, holes)
    count = cover(levels, found.cells)
    assert len(found.cells) <= budget
    assert count.max() <= 1
    assert found.holes == pytest.approx(float((count[inside] == 0).float().mean()), abs=1e-6)
    roots = int((torch.nn.functional.max_pool2d(inside[None].float(), 2**levels.coarser, ceil_mode=True) > 0).sum())
    if holes is False and roots <= budget:
        assert found.complete
    most = int((cover(levels, torch.arange(levels.views[0].n)) > 0).logical_and(inside).sum())
    if budget <= most // 2:
        assert len(found.cells) > budget - 3  # a cell is split into four: at most two are left over


def test_cells_are_small_where_it_matters() -> None:
    values = torch.zeros(14, 10)
    values[4:6, 2:8] = 1.0
    for holes, least in ((True, 12), (False, 12)):
        cells = tile(PAGE, values, everywhere(PAGE), 60, holes).cells
        fine = torch.zeros(PAGE.views[0].n, dtype=torch.bool)
        fine[cells[cells < PAGE.views[0].n]] = True
        assert int(fine.view(14, 10)[4:6, 2:8].sum()) >= least
    assert (
        tile(PAGE, values, everywhere(PAGE), 12, True).cells.tolist() == (values.flatten() > 0).nonzero()[:, 0].tolist()
    )


def test_a_budget_for_everything_is_everything_at_the_finest_scale() -> None:
    assert tile(WHOLE, relevance(WHOLE), everywhere(WHOLE), 63).cells.tolist() == list(range(63))


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("price", [1e-4, 3e-3, 0.05, 0.4])
def test_the_cut_for_a_price_is_the_best_there_is(price: float, holes: bool) -> None:
    """Against all cuts of small trees, tried one by one."""
    levels = Levels.make(4, 8, (0, 0, 4, 8), 2, 1.0)
    values = relevance(levels, seed=3, peaked=4)
    trees = _Trees(levels, values, everywhere(levels), SEEN)
    chosen = _cut(trees, price, holes)
    found = sum(float((trees.worth[level][one] - price).sum()) for level, one in enumerate(chosen))
    worth = values.double() / values.max() + CONTEXT

    @cache
    def best(level: int, row: int, column: int) -> float:
        side = 2**level
        shown = float(worth[row * side : (row + 1) * side, column * side : (column + 1) * side].sum())
        options = [shown * SEEN**level - price] + [0.0] * holes
        if level:
            options.append(sum(best(level - 1, 2 * row + i, 2 * column + j) for i in (0, 1) for j in (0, 1)))
        return max(options)

    assert found == pytest.approx(best(2, 0, 0) + best(2, 0, 1), abs=1e-9)


def test_positions_are_centres_on_one_common_grid() -> None:
    """By adding up how wide every one of the finest rows and columns is."""
    for levels, step in ((PAGE, 1.0), (Levels.make(30, 22, (8, 8, 14, 10), 3, 0.5), 0.5)):
        page = levels.views[0]
        borders = []
        for length, start, count in ((32, levels.top, page.h), (32, levels.left, page.w)):
            wide = torch.full((length,), 1 / 8)
            wide[start : start + count] = step
            borders.append(torch.cat([torch.zeros(1), wide.cumsum(0)]))
        cells = torch.arange(levels.n)
        top, left, bottom, right = levels.spans(cells).unbind(-1)
        rows = (borders[0][top] + borders[0][bottom]) / 2 - 0.5
        columns = (borders[1][left] + borders[1][right]) / 2 - 0.5
        assert torch.allclose(levels.positions(cells).float(), torch.stack([rows, columns], -1))
    assert PAGE.positions(torch.arange(page.n)).dtype == torch.int64
    assert PAGE.extent == (
        14 + 2,
        10 + 2,
    )  # 16 rows around the page in two rows of the coarsest cells, 12 columns in two


@pytest.mark.parametrize("budget", [13, 20, 30, 40, 70, 200])
def test_an_even_tiling_has_one_scale_and_splits_the_most_relevant_cells_once(budget: int) -> None:
    """Also at the borders, where cells that lie half outside of the image would cost less."""
    levels = Levels.make(21, 13, (0, 0, 21, 13), 3, 1.0)
    values = torch.full((21, 13), 0.01)
    values[4:12, 4:8] = 1.0
    found = tile(levels, values, everywhere(levels), budget, holes=False, even=True)
    assert found.complete
    assert cover(levels, found.cells).max() == 1
    assert budget - 3 < len(found.cells) <= budget or len(found.cells) == 21 * 13
    level, spans = levels.level(found.cells), levels.spans(found.cells)
    assert int(level.max() - level.min()) <= 1
    if int(level.max() - level.min()):
        middle = ((spans[:, 0] < 12) & (spans[:, 2] > 4) & (spans[:, 1] < 8) & (spans[:, 3] > 4)).bool()
        split = level == level.min()
        beyond = int(
            (split & ~middle).sum()
        )  # where too little is left to split a whole cell, one at the border may be
        assert bool(split[middle].all()) or beyond <= 4


def test_around_a_page_an_even_tiling_stays_as_fine_as_there_are_cells() -> None:
    found = tile(PAGE, relevance(PAGE), everywhere(PAGE), 10_000, holes=False, even=True)
    assert found.complete
    assert int((found.cells < PAGE.views[0].n).sum()) == 140
    assert int(PAGE.level(found.cells).max()) == 1
