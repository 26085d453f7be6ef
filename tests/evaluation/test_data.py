"""Folders with samples.jsonl: what is read, corrected and left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from arr_coc.errors import DataError
from arr_coc.evaluation.data import read_samples
from tests.adapters.tiny_vlm import picture
from tests.evaluation.conftest import FRAMES, write


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


def test_a_number_keeps_its_spelling(place: Path) -> None:
    (place / "samples.jsonl").write_text('{"image": "a.png", "question": "How much?", "answer": 80.90, "cost": 1.50}\n')
    sample = read_samples(place).pictures[0].samples[0]
    assert sample.answers == ("80.90",)
    assert sample.extra == {"cost": 1.5}


def test_invalid_lines_are_reported_and_the_rest_is_kept(place: Path) -> None:
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


def test_boxes_are_clipped_to_the_picture_with_a_note(place: Path) -> None:
    boxes = [[[-10, 10, 30, 70]], [[200, 0, 220, 20]], [[5, 5, 5, 9], [1, 1, 9, 9]]]
    write(place, [{"image": "a.png", "question": "?", "evidence": boxes, "width": 100, "height": 51}])
    data = read_samples(place)
    assert data.pictures[0].samples[0].evidence == (((0.0, 10.0, 30.0, 50.0),), ((1.0, 1.0, 9.0, 9.0),))
    assert len(data.notes) == 1
    for words in ("clipped", "outside", "100 x 51"):
        assert words in data.notes[0]
    assert not data.problems


def test_size_is_read_after_exif_rotation(place: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (100, 50)).save(place / "side.jpg", exif=exif)
    write(place, [{"image": "side.jpg", "question": "?"}])
    assert read_samples(place).pictures[0].size == (50, 100)


def test_no_usable_question_is_an_error(place: Path) -> None:
    with pytest.raises(DataError, match="--format"):
        read_samples(place)
    write(place, ["{"])
    with pytest.raises(DataError, match="line 1: this is not JSON"):
        read_samples(place)


def test_invalid_clips_are_reported(clips: Path) -> None:
    (clips / "film.mp4").write_bytes(b"film")
    (clips / "empty").mkdir()
    picture(40, 40).save(clips / "other.png")
    fine = {"video": "clip", "question": "?"}
    write(clips, [
        fine,
        {"video": "film.mp4", "question": "?"},
        {"video": "empty", "question": "?"},
        {"video": [*FRAMES[:2], "clip/77.png"], "question": "?"},
        {"video": [FRAMES[0], "other.png"], "question": "?"},
        {"video": [], "question": "?"},
        {"video": "clip", "image": "still.png", "question": "?"},
        fine | {"question": "When?", "evidence": [[[0, 0, 9, 9, 6]]]},
        fine | {"question": "When?", "evidence": [[[0, 0, 9, 9, 0.5]]]},
        fine | {"question": "When?", "fps": 0},
        {"image": "still.png", "question": "When?", "evidence": [[[0, 0, 9, 9, 0]]]},
    ])  # fmt: skip
    data = read_samples(clips)
    assert data.questions == 1
    for number, (words, problem) in enumerate(
        zip(
            (
                "extract its frames", "no frames in the folder", "no picture '77.png'", "of one size", "a list of frames",
                "got both", "between 0 and 5", "between 0 and 5", "positive number", "four numbers",
            ),
            data.problems,
            strict=True,
        ),
        start=2,
    ):  # fmt: skip
        assert problem.startswith(f"samples.jsonl, line {number}: ")
        assert words in problem
