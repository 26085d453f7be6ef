"""Scanned receipts: read from a folder, split by name, placed on a canvas."""

import random
from pathlib import Path

import pytest

from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.receipts import Placement, Receipt, find_evidence, read_receipts, scan, split
from tests.recipes.reader.conftest import SHOPS


def test_a_folder_is_read(receipts: list[Receipt]) -> None:
    assert [receipt.fields["company"] for receipt in receipts] == list(SHOPS)
    assert receipts[0].lines[2] == ("TOTAL", (40, 300, 120, 330))
    assert receipts[0].text_box() == (40, 30, 340, 330)


def test_a_folder_without_labels_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"recs\.json"):
        read_receipts(tmp_path)


def test_the_split_depends_on_the_name_alone(receipts: list[Receipt]) -> None:
    training, validation = split(receipts, 2)
    assert {receipt.name for receipt in training} | {receipt.name for receipt in validation} == {"0", "1", "2"}
    for receipt in receipts:
        assert split([receipt], 2) == (([receipt], []) if receipt in training else ([], [receipt]))


@pytest.mark.parametrize("seed", range(8))
def test_boxes_follow_the_picture_onto_the_canvas(receipts: list[Receipt], seed: int) -> None:
    rng = random.Random(seed)
    document = scan(rng, receipts[0], 560, 1260, Placement.varied(rng, receipts[0], 560, 1260))
    for line in document.lines:
        left, top, right, bottom = (round(edge) for edge in line.box)
        assert document.image[max(0, top) : bottom, max(0, left) : right].min() < 120
    asked = {question.kind: question for question in document.questions}
    assert asked["address"].answer == NOT_FOUND
    assert [document.lines[index].text for index in asked["total"].evidence] == ["17.50"]


def test_a_field_that_no_line_shows_needs_all_lines() -> None:
    assert find_evidence("total", "9.00", ["TOTAL", "9.OO"]) == (0, 1)
    assert find_evidence("address", "1 LONG ROAD, TOWN", ["SHOP", "1 LONG ROAD,", "TOWN"]) == (1, 2)
