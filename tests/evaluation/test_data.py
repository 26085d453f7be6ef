"""Folders with samples.jsonl: what is read, what is put right, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from arr_coc.errors import DataError
from arr_coc.evaluation.data import read_samples
from tests.evaluation.conftest import write


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Image.new("RGB", (100, 50)).save(tmp_path / "a.png")
    Image.new("RGB", (60, 60)).save(tmp_path / "b.png")
    return tmp_path


def test_questions_are_grouped_by_picture_in_order(place: Path) -> None:
    write(place, [
        {"image": "b.png", "question": "One?", "answer": "1", "store_seen": True},
        {"image": "a.png", "question": "Two?", "answers": ["2", "two"], "kind": "count"},
        {"image": "b.png", "question": "Three?"},
    ])  # fmt: skip
    data = read_samples(place)
    assert [(p.name, p.size, len(p.samples)) for p in data.pictures] == [
        ("b.png", (60, 60), 2),
        ("a.png", (100, 50), 1),
    ]
    assert data.pictures[0].samples[0].extra == {"store_seen": True}
    assert data.pictures[0].samples[1].answers == ()
    assert data.pictures[1].samples[0].answers == ("2", "two")
    assert data.problems == data.notes == ()
    assert data.only(["count"]).questions == 1
    assert len(read_samples(place, limit=1).pictures) == 1


def test_a_number_stays_as_it_was_written(place: Path) -> None:
    (place / "samples.jsonl").write_text('{"image": "a.png", "question": "How much?", "answer": 80.90, "cost": 1.50}\n')
    sample = read_samples(place).pictures[0].samples[0]
    assert sample.answers == ("80.90",)
    assert sample.extra == {"cost": 1.5}


def test_broken_lines_are_named_and_the_rest_is_kept(place: Path) -> None:
    (place / "torn.png").write_bytes(b"\x89PNG and no more")
    write(place, [
        {"image": "a.png", "question": "Good?"},
        "{not json",
        "[1, 2]",
        {"question": "No picture?"},
        {"image": "a.png"},
        {"image": "gone.png", "question": "Where?"},
        {"image": "torn.png", "question": "Where?"},
        {"image": "a.png", "question": "Boxes?", "evidence": [[1, 2, 3, 4]]},
        {"image": "a.png", "question": "Boxes?", "evidence": [[[1, 2, 3]]]},
        "",
        {"image": "a.png", "question": "Good too?"},
    ])  # fmt: skip
    data = read_samples(place)
    assert data.questions == 2
    assert [problem.split(":")[0] for problem in data.problems] == [f"samples.jsonl, line {n}" for n in range(2, 10)]
    for words, problem in zip(
        ("not JSON", "braces", "'image'", "'question'", "gone.png", "torn.png", "groups", "four numbers"),
        data.problems,
        strict=True,
    ):
        assert words in problem


def test_boxes_are_clipped_to_the_picture_and_it_is_said(place: Path) -> None:
    boxes = [[[-10, 10, 30, 70]], [[200, 0, 220, 20]], [[5, 5, 5, 9], [1, 1, 9, 9]]]
    write(place, [{"image": "a.png", "question": "?", "evidence": boxes, "width": 100, "height": 51}])
    data = read_samples(place)
    assert data.pictures[0].samples[0].evidence == (((0.0, 10.0, 30.0, 50.0),), ((1.0, 1.0, 9.0, 9.0),))
    assert len(data.notes) == 1
    for words in ("clipped", "outside", "100 x 51"):
        assert words in data.notes[0]
    assert not data.problems


def test_a_picture_lying_on_its_side_is_measured_upright(place: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (100, 50)).save(place / "side.jpg", exif=exif)
    write(place, [{"image": "side.jpg", "question": "?"}])
    assert read_samples(place).pictures[0].size == (50, 100)


def test_nothing_usable_is_an_error(place: Path) -> None:
    with pytest.raises(DataError, match="--format"):
        read_samples(place)
    write(place, ["{"])
    with pytest.raises(DataError, match="line 1: this is not JSON"):
        read_samples(place)
