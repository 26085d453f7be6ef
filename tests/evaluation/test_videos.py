"""Questions about videos: frames read from a folder, selected from, answered, judged by frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.evaluation import Report, evaluate
from arr_coc.evaluation.data import read_samples
from arr_coc.evaluation.measure import grid_from_lists, unpack_cells
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.types.grid import Grid
from tests.adapters.tiny_vlm import picture, wrapped
from tests.evaluation.conftest import write

FRAMES = [f"clip/{number}.png" for number in range(6)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "clip").mkdir()
    for number, name in enumerate(FRAMES):
        picture(84, 56, seed=number).save(tmp_path / name)
    picture(84, 56).save(tmp_path / "still.png")
    return tmp_path


def run(data: Path, selectors: Any, family: str = "qwen2_vl", **options: Any) -> Report:
    return evaluate(wrapped(family), data, selectors, ["25%"], **({"tokens": 3, "seeds": 2} | options))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_clip_goes_through_the_whole_harness(place: Path, family: str, tmp_path: Path) -> None:
    late = [[[0, 0, 28, 28, 5], [56, 28, 84, 56, 5]]]
    write(place, [
        {"video": FRAMES, "question": "What happens at the end?", "answer": "x", "evidence": late, "fps": 4},
        {"video": FRAMES, "question": "What is on the left?", "answer": "x", "evidence": [[[0, 0, 28, 56]]], "fps": 4},
        {"video": "clip", "question": "What is it?", "kind": "other"},
    ])  # fmt: skip
    report = run(place, ["all", "evs", "random", "divprune", "ink", "oracle"], family)
    assert [picture.name for picture in report.data.pictures] == ["clip/0.png to clip/5.png", "clip"]
    assert [len(picture.frames) for picture in report.data.pictures] == [6, 6]
    assert report.data.pictures[0].fps == 4
    for record in report.records:
        assert record["fallbacks"] == 0
        assert record["n"] == 3
        assert record["evidence_recall"] is not None
    assert report.record("oracle", "25%")["evidence_recall"] == report.record("oracle", "25%")["pointing"] == 1
    assert report.record("evs", "25%")["evidence_recall"] < 1
    row = next(row for row in report.rows["clip/0.png to clip/5.png"] if row["selector"] == "evs")
    grid = grid_from_lists(row["grid"])
    assert isinstance(grid, Grid)
    assert grid.t in (3, 6)
    assert set(range(row["kept"])) & set(unpack_cells(row["keep"], grid.n).tolist())  # of the first frame
    text = report.page(tmp_path / "page").read_text()
    assert "<summary><b>evs</b>" in text
    assert text.count("data:image/jpeg") > 2  # several moments of a clip


def test_evidence_at_a_frame_or_at_any() -> None:
    grid, size = Grid(3, 1, 2), (20, 10)
    left, right = (0.0, 0.0, 10.0, 10.0), (10.0, 0.0, 20.0, 10.0)
    found = evidence_cells((((*left, 3.0), (*right, 5.0)), (right,)), grid, size, frames=6)
    assert [cells.tolist() for cells in found] == [[2, 5], [1], [3], [5]]
    assert evidence_cells(((left,),), Grid(1, 1, 2), size)[0].tolist() == [0]


def test_stills_and_clips_together(place: Path) -> None:
    write(place, [{"video": "clip", "question": "?"}, {"image": "still.png", "question": "?"}])
    assert [r["images"] for r in run(place, ["uniform", "divprune"]).records] == [2, 2]
    with pytest.raises(SelectorError, match=r"'evs' chooses from videos only, and 'still.png' is a still picture"):
        run(place, ["uniform", "evs"])
    with pytest.raises(SelectorError, match=r"'resize' chooses from images only, and 'clip' is a video"):
        run(place, ["uniform", "resize"])


def test_what_is_wrong_with_a_clip_is_said(place: Path) -> None:
    (place / "film.mp4").write_bytes(b"film")
    (place / "empty").mkdir()
    picture(40, 40).save(place / "other.png")
    fine = {"video": "clip", "question": "?"}
    write(place, [
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
    data = read_samples(place)
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


def test_what_is_new_is_kept(place: Path) -> None:
    """Where nothing moves but one corner of the last frames, that corner is what evs keeps beside the first frame."""
    still = picture(84, 56)
    for number, name in enumerate(FRAMES):
        shown = still.copy()
        if number >= 4:
            shown.paste((255, 255, 255), (56, 28, 84, 56))
        shown.save(place / name)
    write(place, [{"video": "clip", "question": "?", "evidence": [[[56, 28, 84, 56, 4]]]}])
    cells = next(iter(run(place, ["all"], answers=False).rows.values()))[0]["all"]
    first = cells // 3
    report = evaluate(wrapped("qwen2_vl"), place, ["evs", "uniform"], [first + cells // 18], answers=False)
    assert report.records[0]["evidence_recall"] > report.records[1]["evidence_recall"]
    assert torch.equal(unpack_cells(report.rows["clip"][0]["keep"], cells)[:first], torch.arange(first))
