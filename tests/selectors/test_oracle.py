"""The oracle keeps the cells of the answer's evidence first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Oracle, selector
from arr_coc.types.grid import Cells, Grid
from tests.adapters.tiny_vlm import GREEDY, picture, wrapped
from tests.selectors.selections import EVIDENCE, TILES, choice, selection

SIZE = (90, 60)


def touched(grid: Cells, group: list[list[int]]) -> list[int]:
    cells = []
    for number, (x0, y0, x1, y1) in enumerate(grid.boxes(torch.arange(grid.n), SIZE).tolist()):
        if any(min(x1, b[2]) > max(x0, b[0]) and min(y1, b[3]) > max(y0, b[1]) for b in group):
            cells.append(number)
    return cells


@pytest.mark.parametrize("grid", [Grid(1, 6, 9), Grid(2, 3, 4), TILES], ids=str)
def test_the_group_with_the_fewest_cells_is_kept_whole(grid: Cells) -> None:
    groups = [touched(grid, group) for group in EVIDENCE]
    if grid == Grid(2, 3, 4):  # boxes without a frame number: the first time step is used
        groups = [[cell for cell in group if cell < 12] for group in groups]
    fewest = min(groups, key=len)
    kept = choice(Oracle(EVIDENCE).select(selection(grid, len(fewest) + 3))).keep.tolist()
    assert set(fewest) <= set(kept)
    assert len(kept) == len(fewest) + 3
    assert choice(Oracle(EVIDENCE).select(selection(grid, len(fewest)))).keep.tolist() == fewest


def test_boxes_with_frame_numbers() -> None:
    grid = Grid(3, 2, 2)  # five frames: two per time step, the last alone
    left, right = [0, 0, 40, 25], [50, 0, 90, 25]

    def kept(*groups: list[list[int]], k: int = 1) -> list[int]:
        return choice(Oracle(groups, SIZE, frames=5).select(selection(grid, k, kind="video"))).keep.tolist()

    assert kept([[*left, 4]]) == [8]
    assert kept([[*left, 3]]) == [4]
    assert kept([[*left, 0], [*right, 2]], k=2) == [0, 5]
    assert kept([[*left, 2], right], k=2) == [1, 4]  # a box without a frame number matches every frame


def test_all_boxes_of_a_group_are_needed() -> None:
    grid = Grid(1, 6, 9)
    only = Oracle(EVIDENCE[:1])
    assert choice(only.select(selection(grid, len(touched(grid, EVIDENCE[0]))))).keep.tolist() == touched(
        grid, EVIDENCE[0]
    )


def test_a_small_budget_keeps_the_most_covered_cells() -> None:
    kept = choice(Oracle([[[12, 12, 40, 18]]], SIZE).select(selection(Grid(1, 6, 9), 2))).keep.tolist()
    assert kept == [11, 12]  # of cells 10 to 12, the first is covered by 80%


def test_the_encoded_group_is_preferred() -> None:
    grid = Grid(1, 6, 9)
    small, large = touched(grid, [[60, 40, 70, 50]]), touched(grid, [[10, 10, 30, 30]])
    assert len(small) < len(large)
    candidates = torch.tensor([cell for cell in range(grid.n) if cell not in small])
    kept = choice(Oracle([[[60, 40, 70, 50]], [[10, 10, 30, 30]]]).select(selection(grid, 6, candidates))).keep.tolist()
    assert set(large) <= set(kept)


def test_evidence_outside_the_image_leaves_evenly_spaced_cells() -> None:
    grid = Grid(1, 6, 9)
    chosen = choice(Oracle([[[500, 500, 600, 600]]]).select(selection(grid, 8)))
    assert chosen.keep.tolist() == selector("uniform").select(selection(grid, 8)).tolist()  # type: ignore[union-attr]
    assert chosen.strategy == "0 cells of evidence, 8 evenly spaced"


def test_the_image_size_can_be_passed_without_the_image() -> None:
    seen = selection(Grid(1, 6, 9), 5)
    without_source = replace(seen, source=None)
    assert torch.equal(
        choice(Oracle(EVIDENCE, SIZE).select(without_source)).keep, choice(Oracle(EVIDENCE).select(seen)).keep
    )
    with pytest.raises(SelectorError, match="no texture"):
        Oracle(EVIDENCE).select(without_source)


@pytest.mark.parametrize("evidence", [[[]], [[[1, 2, 3]]], [[[5, 0, 1, 9]]], [[[0, 0, float("nan"), 9]]]])
def test_malformed_evidence_raises(evidence: Any) -> None:
    with pytest.raises(SelectorError, match="groups of boxes"):
        Oracle(evidence)


def test_the_name_alone_raises() -> None:
    with pytest.raises(SelectorError, match=r"pass Oracle\(evidence\)"):
        selector("oracle")


def test_the_oracle_through_a_model() -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What?", budget=12, selector=Oracle([[[10, 10, 30, 25]]]), **GREEDY)
    assert not answer.fallback
    boxes = answer.allocation.boxes
    inside = (boxes[:, 0] < 30) & (boxes[:, 2] > 10) & (boxes[:, 1] < 25) & (boxes[:, 3] > 10)
    assert (
        answer.allocation.strategy == f"{int(inside.sum())} cells of evidence, {12 - int(inside.sum())} evenly spaced"
    )
    with pytest.raises(SelectorError, match=r"pass Oracle\(evidence\)"):
        wrapped("qwen2_vl").ask(picture(), "What?", budget=12, selector="oracle", **GREEDY)
