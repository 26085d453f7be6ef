"""Controls: all, random, uniform, centre and resize."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.errors import SelectorError
from arr_coc.selectors import Downscale, Question, SelectionInput, selector
from arr_coc.selectors.controls import distance_from_centre, even_cells
from arr_coc.types.grid import Cells, Grid, Mosaic
from tests.selectors.selections import TILES, choice, selection

SIZES = st.integers(1, 12)
GRIDS = [Grid(1, 5, 7), Grid(2, 4, 3), Grid(1, 3, 4, (0.1, 0.25, 0.9, 0.75)), TILES]


def grid_only(grid: Cells, k: int | None, candidates: torch.Tensor | None = None, seed: int = 0) -> SelectionInput:
    """A selection without tokens, attention or pixels."""
    cells = torch.arange(grid.n) if candidates is None else candidates
    return SelectionInput(grid, k, cells, Question("What?", torch.arange(5)), seed=seed)


@pytest.mark.parametrize("name", ["all", "random", "uniform"])
@given(t=st.integers(1, 3), h=SIZES, w=SIZES, share=st.floats(0, 1), some=st.booleans(), seed=st.integers(0, 99))
def test_exactly_k_sorted_candidates(name: str, t: int, h: int, w: int, share: float, some: bool, seed: int) -> None:
    grid = Grid(t, h, w)
    k = round(share * grid.n)
    candidates = torch.arange(0, grid.n, 2) if some else None
    chosen = selector(name).select(grid_only(grid, k, candidates, seed))
    assert isinstance(chosen, torch.Tensor)
    assert len(chosen) == min(k, grid.n if candidates is None else len(candidates))
    assert (chosen[1:] > chosen[:-1]).all()
    if candidates is not None:
        assert torch.isin(chosen, candidates).all()


def test_random_depends_on_its_seed_alone() -> None:
    grid = Grid(1, 20, 20)
    draw = [selector("random").select(grid_only(grid, 40, seed=seed)).tolist() for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]


def test_uniform_covers_every_part_of_the_image() -> None:
    grid = Grid(1, 40, 20)
    chosen = grid.thw(even_cells(grid, 50))
    blocks = {(row // 10, column // 10) for _, row, column in chosen.tolist()}
    assert blocks == {(row, column) for row in range(4) for column in range(2)}
    gaps = torch.tensor(sorted({row for _, row, _ in chosen.tolist()})).diff()
    assert gaps.max() - gaps.min() <= 1


def test_uniform_divides_its_budget_over_views_by_size() -> None:
    mosaic = Mosaic((Grid(1, 4, 4), Grid(1, 8, 8)))
    chosen = selector("uniform").select(grid_only(mosaic, 20))
    assert [int((chosen < 16).sum()), int((chosen >= 16).sum())] == [4, 16]


def test_auto_needs_scores() -> None:
    for name in ("random", "uniform"):
        with pytest.raises(SelectorError, match="give a count or a share"):
            selector(name).select(grid_only(Grid(1, 3, 3), None))
    assert len(selector("all").select(grid_only(Grid(1, 3, 3), None))) == 9


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("k", [1, 4, 9])
def test_centre_keeps_the_cells_with_the_nearest_midpoints(grid: Cells, k: int) -> None:
    finest = max(grid.views, key=lambda v: v.w * v.h / ((v.area[2] - v.area[0]) * (v.area[3] - v.area[1])))
    width = finest.w / (finest.area[2] - finest.area[0])
    height = finest.h / (finest.area[3] - finest.area[1])
    distances = []
    for view in grid.views:
        left, top, right, bottom = view.area
        for _ in range(view.t):
            for row in range(view.h):
                for column in range(view.w):
                    x = (left + (right - left) * (column + 0.5) / view.w - 0.5) * width
                    y = (top + (bottom - top) * (row + 0.5) / view.h - 0.5) * height
                    distances.append(round(math.hypot(x, y), 3))
    nearest = sorted(range(grid.n), key=lambda i: distances[i])[:k]
    assert choice(selector("centre").select(selection(grid, k))).keep.tolist() == sorted(nearest)


def test_centre_distance_is_euclidean_on_wide_images() -> None:
    far = distance_from_centre(Grid(1, 3, 9), torch.arange(27))
    assert far[13] == 0
    assert far[12] == far[14] == far[4] == far[22]
    assert float(far.max()) < 1


def test_centre_measures_from_the_image_not_the_candidates() -> None:
    assert choice(selector("centre").select(selection(Grid(1, 3, 3), 1, torch.tensor([0, 5, 8])))).keep.tolist() == [5]


def test_resize_downscales_before_encoding() -> None:
    made = selector("resize")
    assert made.early
    assert made.before_encoding(selection(Grid(1, 6, 6), 9)) == Downscale(9)
    assert made.before_encoding(selection(Grid(1, 6, 6), 99)) == Downscale(36)
    seen = selection(Grid(2, 3, 3), 9)
    with pytest.raises(SelectorError, match="images smaller, not videos"):
        made.before_encoding(replace(seen, kind="video"))
