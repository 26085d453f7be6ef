"""Metrics against cases worked out by hand."""

from __future__ import annotations

import pytest
import torch

from arr_coc.evaluation import metrics
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.types.grid import Grid, Mosaic


def test_answers() -> None:
    assert metrics.exact(" 12.50 ", ["12.50"]) == 1
    assert metrics.exact("12.5", ["12.50"]) == 0
    assert metrics.anls("12.50", ["12.80", "99"]) == pytest.approx(0.8)
    assert metrics.anls("Total", ["total"]) == 1
    assert metrics.anls("abcd", ["abxy"]) == 0.5
    assert metrics.anls("abcd", ["axyz"]) == 0  # below one half
    assert metrics.anls("anything", []) == 0
    assert metrics.similarity("", "") == 1


def test_vqa_accuracy_leaves_each_annotator_out() -> None:
    assert metrics.vqa("yes", ["yes"] * 10) == 1
    # Three of ten agree: left out one of them, two are left, 2/3; left out another, three are left, 1.
    assert metrics.vqa("yes", ["yes"] * 3 + ["no"] * 7) == pytest.approx((3 * 2 / 3 + 7) / 10)
    assert metrics.vqa("yes", ["yes"] + ["no"] * 9) == pytest.approx((0 + 9 / 3) / 10)
    assert metrics.vqa("The two dogs.", ["2 dogs"]) == 1
    assert metrics.vqa("3.50", ["350"]) == 0
    for said, answer in (
        ("1,000", "1000"),
        ("U.S.A", "USA"),
        ("4 p.m.", "4 pm"),
        ("black/white", "black white"),
        ("5.", "5"),
    ):
        assert metrics.vqa(said, [answer] * 10) == 1, said
    assert metrics.vqa("x", []) == 0


def test_yes_or_no_from_a_sentence() -> None:
    assert metrics.yes_no("Yes, there is a dog.", ["yes"]) == 1
    assert metrics.yes_no("There is no dog", ["no"]) == 1
    assert metrics.yes_no("Yes. There is no doubt.", ["yes"]) == 1
    assert metrics.yes_no("", ["yes"]) == metrics.yes_no("", ["no"]) == 0


def cells(box: tuple[float, float, float, float], grid: Grid | Mosaic = Grid(1, 4, 4)) -> list[int]:  # noqa: B008
    return metrics.evidence_cells(((box,),), grid, (40, 40))[0].tolist()


def test_a_sliver_is_no_evidence() -> None:
    assert cells((0, 0, 10, 10)) == [0]
    assert cells((0, 0, 11, 10)) == [0]  # a tenth of the next cell
    assert cells((0, 0, 11.25, 10)) == [0, 1]  # an eighth
    assert cells((5, 5, 15, 15)) == [0, 1, 4, 5]
    assert cells((3, 3, 4, 4)) == [0]  # small, but it has its cell
    assert cells((9.5, 3, 10.5, 4)) == [0, 1]  # cut in halves: both
    assert cells((9.8, 3, 10.8, 4)) == [1]  # most of it lies there
    assert cells((0, 0, 40, 40)) == list(range(16))
    both = Mosaic((Grid(1, 1, 1), Grid(1, 2, 2)))
    assert cells((0, 0, 10, 10), both) == [0, 1]


def test_every_box_has_a_cell() -> None:
    dice = torch.Generator().manual_seed(0)
    for _ in range(200):
        corner, side = torch.rand(2, generator=dice) * 38, torch.rand(2, generator=dice) ** 3 * 10 + 0.01
        low, high = corner.tolist(), torch.minimum(corner + side, torch.tensor(40.0)).tolist()
        assert cells((low[0], low[1], high[0], high[1]), Grid(1, 7, 3))


def test_evidence_at_one_frame_or_in_the_whole_clip() -> None:
    grid, size = Grid(3, 1, 2), (20, 10)
    left, right = (0.0, 0.0, 10.0, 10.0), (10.0, 0.0, 20.0, 10.0)
    found = evidence_cells((((*left, 3.0), (*right, 5.0)), (right,)), grid, size, frames=6)
    assert [cells.tolist() for cells in found] == [[2, 5], [1], [3], [5]]
    assert evidence_cells(((left,),), Grid(1, 1, 2), size)[0].tolist() == [0]


def test_recall_of_the_best_group() -> None:
    groups = [torch.tensor([0, 1, 2, 3]), torch.tensor([8, 9])]
    assert metrics.recall(torch.tensor([0, 9]), groups) == 0.5
    assert metrics.recall(torch.tensor([8, 9]), groups) == 1
    assert metrics.recall(torch.tensor([5]), groups) == 0
    assert metrics.recall(torch.tensor([5]), []) is None
    assert metrics.any_hit(torch.tensor([3, 5]), groups) == 1
    assert metrics.any_hit(torch.tensor([5]), groups) == 0
    assert metrics.any_hit(torch.zeros(0, dtype=torch.long), groups) == 0


def test_pointing_game() -> None:
    groups = [torch.tensor([1])]
    assert metrics.pointing(torch.tensor([0.0, 2.0, 1.0]), groups) == 1
    assert metrics.pointing(torch.tensor([3.0, 2.0, 1.0]), groups) == 0
    assert metrics.pointing(torch.ones(3), groups) == 0
    assert metrics.pointing(None, groups) is None
    assert metrics.pointing(torch.ones(3), []) is None


def test_chance_at_equal_k() -> None:
    one = [torch.tensor([0, 1, 2])]
    assert metrics.chance(5, 20, one) == 0.25
    assert metrics.chance(5, 20, []) is None
    # Two groups of one cell each: either is enough, 1 - C(18, 5) / C(20, 5).
    two = [torch.tensor([0]), torch.tensor([7])]
    expected = 1 - (15 / 20) * (14 / 19)
    assert metrics.chance(5, 20, two) == pytest.approx(expected, abs=0.15)
    assert metrics.chance(5, 20, two) == metrics.chance(5, 20, two)


def test_sensitivity_is_one_minus_jaccard() -> None:
    a, b, c = torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([0, 1])
    assert metrics.sensitivity([a, b]) == pytest.approx(1 - 1 / 3)
    assert metrics.sensitivity([a, b, c]) == pytest.approx(1 - (1 / 3 + 1 + 1 / 3) / 3)
    assert metrics.sensitivity([a]) is None


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("B", 1), ("b", 1), ("B.", 1), ("(B)", 1), ("B) a dog runs", 1), ("The answer is B.", 1), ("Answer: (B)", 1),
        ("a dog runs", 1), ("A dog runs.", 1), ("A", 0), ("A. a dog runs", 0), ("", 0), ("C, not B", 0), ("a cat", 0),
    ],
)  # fmt: skip
def test_multiple_choice_reads_the_letter_or_the_text(said: str, right: int) -> None:
    assert metrics.choice(said, ["B", "a dog runs"]) == right
