"""oracle: the answer's evidence first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Oracle, selector
from arr_coc.types.grid import Cells, Grid
from tests.selectors.selections import EVIDENCE, TILES, choice, selection

SIZE = (90, 60)


def touched(grid: Cells, group: list[list[int]]) -> list[int]:
    cells = []
    for number, (x0, y0, x1, y1) in enumerate(grid.boxes(torch.arange(grid.n), SIZE).tolist()):
        if any(min(x1, b[2]) > max(x0, b[0]) and min(y1, b[3]) > max(y0, b[1]) for b in group):
            cells.append(number)
    return cells


@pytest.mark.parametrize("grid", [Grid(1, 6, 9), Grid(2, 3, 4), TILES], ids=str)
def test_the_group_of_fewest_cells_is_kept_whole(grid: Cells) -> None:
    groups = [touched(grid, group) for group in EVIDENCE]
    if grid == Grid(2, 3, 4):  # boxes that name no frame: any moment suffices, and the first is taken
        groups = [[cell for cell in group if cell < 12] for group in groups]
    fewest = min(groups, key=len)
    kept = choice(Oracle(EVIDENCE).select(selection(grid, len(fewest) + 3))).keep.tolist()
    assert set(fewest) <= set(kept)
    assert len(kept) == len(fewest) + 3
    assert choice(Oracle(EVIDENCE).select(selection(grid, len(fewest)))).keep.tolist() == fewest


def test_boxes_at_frames_of_a_video() -> None:
    grid = Grid(3, 2, 2)  # of five frames: two to a moment, the last alone
    left, right = [0, 0, 40, 25], [50, 0, 90, 25]

    def kept(*groups: list[list[int]], k: int = 1) -> list[int]:
        return choice(Oracle(groups, SIZE, frames=5).select(selection(grid, k, kind="video"))).keep.tolist()

    assert kept([[*left, 4]]) == [8]
    assert kept([[*left, 3]]) == [4]
    assert kept([[*left, 0], [*right, 2]], k=2) == [0, 5]
    assert kept([[*left, 2], right], k=2) == [1, 4]  # whenever it is


def test_all_boxes_of_a_group_are_needed() -> None:
    grid = Grid(1, 6, 9)
    only = Oracle(EVIDENCE[:1])
    assert choice(only.select(selection(grid, len(touched(grid, EVIDENCE[0]))))).keep.tolist() == touched(
        grid, EVIDENCE[0]
    )


def test_a_small_budget_keeps_the_most_covered_cells() -> None:
    kept = choice(Oracle([[[12, 12, 40, 18]]], SIZE).select(selection(Grid(1, 6, 9), 2))).keep.tolist()
    assert kept == [11, 12]  # of cells 10 to 12, the first is covered by 80%


def test_of_two_groups_the_one_that_was_encoded_counts() -> None:
    grid = Grid(1, 6, 9)
    small, large = touched(grid, [[60, 40, 70, 50]]), touched(grid, [[10, 10, 30, 30]])
    assert len(small) < len(large)
    candidates = torch.tensor([cell for cell in range(grid.n) if cell not in small])
    kept = choice(Oracle([[[60, 40, 70, 50]], [[10, 10, 30, 30]]]).select(selection(grid, 6, candidates))).keep.tolist()
    assert set(large) <= set(kept)


def test_evidence_beside_the_picture_leaves_evenly_spaced_cells() -> None:
    grid = Grid(1, 6, 9)
    chosen = choice(Oracle([[[500, 500, 600, 600]]]).select(selection(grid, 8)))
    assert chosen.keep.tolist() == selector("uniform").select(selection(grid, 8)).tolist()  # type: ignore[union-attr]
    assert chosen.strategy == "0 cells of evidence, 8 evenly spaced"


def test_the_size_may_be_given_where_the_picture_is_gone() -> None:
    seen = selection(Grid(1, 6, 9), 5)
    gone = replace(seen, source=None)
    assert torch.equal(choice(Oracle(EVIDENCE, SIZE).select(gone)).keep, choice(Oracle(EVIDENCE).select(seen)).keep)
    with pytest.raises(SelectorError, match="no texture"):
        Oracle(EVIDENCE).select(gone)


@pytest.mark.parametrize("evidence", [[[]], [[[1, 2, 3]]], [[[5, 0, 1, 9]]], [[[0, 0, float("nan"), 9]]]])
def test_broken_evidence_is_one_sentence(evidence: Any) -> None:
    with pytest.raises(SelectorError, match="groups of boxes"):
        Oracle(evidence)


def test_by_name_it_asks_for_evidence() -> None:
    with pytest.raises(SelectorError, match=r"pass Oracle\(evidence\)"):
        selector("oracle")
