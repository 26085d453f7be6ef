"""Cells, budgets and allocations."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arr_coc.errors import AllocationError, BudgetError
from arr_coc.types.allocation import Allocation, check_cells
from arr_coc.types.budget import divide, limit
from arr_coc.types.grid import Grid, Mosaic


def test_a_cell_s_place_and_box() -> None:
    grid = Grid(2, 3, 4)
    cells = torch.tensor([0, 5, 23])
    assert grid.thw(cells).tolist() == [[0, 0, 0], [0, 1, 1], [1, 2, 3]]
    assert grid.boxes(cells, (40, 60)).tolist() == [[0, 0, 10, 20], [10, 20, 20, 40], [30, 40, 40, 60]]


def test_a_grid_over_a_part_of_the_picture() -> None:
    grid = Grid(1, 2, 2, area=(0.5, 0.0, 1.0, 1.0))
    assert grid.boxes(torch.tensor([3]), (100, 100)).tolist() == [[75, 50, 100, 100]]


def test_a_mosaic_numbers_its_views_one_after_another() -> None:
    mosaic = Mosaic((Grid(1, 2, 2), Grid(1, 2, 4, area=(0.0, 0.0, 0.5, 1.0))))
    cells = torch.tensor([1, 3, 4, 11])
    assert mosaic.n == 12
    assert mosaic.thw(cells).tolist() == [[0, 0, 1], [0, 1, 1], [1, 0, 0], [1, 1, 3]]
    assert mosaic.boxes(cells, (80, 40))[2:].tolist() == [[0, 0, 10, 20], [30, 20, 40, 40]]


@pytest.mark.parametrize(
    ("budget", "k"), [(0, 0), (1, 1), ("12.5%", 13), ("0%", 0), ("0.1%", 1), ("100%", 100), ("all", 100), ("64", 64), (np.int64(7), 7)]
)  # fmt: skip
def test_a_budget_is_a_count_or_a_share(budget: object, k: int) -> None:
    assert limit(budget, 100).k == k  # type: ignore[arg-type]


def test_a_budget_by_mass_leaves_the_count_to_the_relevance() -> None:
    bound = limit(" Mass 90% ", 100)
    assert (bound.k, bound.mass, bound.everything) == (None, 0.9, False)
    assert limit("mass100%", 100).mass == 1
    assert limit("12.5%", 100).mass is None


def test_a_budget_above_the_number_of_cells_is_clamped_and_said() -> None:
    assert limit(101, 100).k == 100
    assert "101 cells is more than the 100" in limit(101, 100).note


@pytest.mark.parametrize(
    "budget",
    [
        -1,
        0.5,
        "x%",
        "-3%",
        "mass",
        "mass 90",
        "mass x%",
        "mass 101%",
        "mass -1%",
        "mass nan%",
        "90% mass",
        "101%",
        "nan%",
        None,
        True,
        "3.5",
        [1],
        float("nan"),
    ],
)
def test_a_bad_budget_is_one_sentence(budget: object) -> None:
    with pytest.raises(BudgetError, match="expected budget as a count"):
        limit(budget, 100)  # type: ignore[arg-type]


@given(total=st.integers(0, 200), sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_a_total_is_divided_without_remainder(total: int, sizes: list[int]) -> None:
    parts = divide(total, sizes)
    assert sum(parts) == min(total, sum(sizes))
    assert all(0 <= part <= size for part, size in zip(parts, sizes, strict=True))


def test_cells_may_come_as_a_list_an_array_or_a_mask() -> None:
    grid = Grid(1, 2, 3)
    assert check_cells([0, 4], grid).tolist() == [0, 4]
    assert check_cells(np.array([0, 4], np.int32), grid).tolist() == [0, 4]
    assert check_cells(torch.tensor([[True, False, False], [False, True, False]]), grid).tolist() == [0, 4]
    assert check_cells([], grid).tolist() == []


def test_kept_cells_are_among_the_encoded_ones() -> None:
    with pytest.raises(AllocationError, match="to be an encoded one"):
        Allocation(Grid(1, 2, 2), torch.tensor([1]), torch.tensor([0, 2]), "mine")


def test_an_overlay_shows_kept_cells_and_darkens_the_others() -> None:
    white = Image.new("RGB", (40, 40), "white")
    found = Allocation(Grid(1, 2, 2), torch.tensor([0]), torch.tensor([0, 1]), "mine", size=(40, 40))
    shown = np.asarray(found.overlay(white))[..., 0]
    kept, seen, unseen = shown[10, 10], shown[10, 30], shown[30, 10]
    assert kept == 255 > seen > unseen > 0


def test_an_allocation_as_json() -> None:
    found = Allocation(Grid(1, 2, 2), torch.tensor([0, 3]), torch.arange(4), "mine", notes=("so",))
    assert json.loads(found.to_json()) == {
        "kind": "image", "row": 0, "grid": [1, 2, 2], "tokens": {"all": 4, "encoded": 4, "kept": 2}, "keep": [0, 3],
        "selector": "mine", "semantics": "masked", "strategy": "", "confidence": None, "fallback": "", "tensions": {}, "notes": ["so"],
    }  # fmt: skip
    with pytest.raises(AllocationError, match="size is unknown"):
        _ = found.boxes
