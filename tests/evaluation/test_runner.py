"""`evaluate` with a tiny random model, on pictures and on clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.evaluation import Data, PictureQuestions, Sample
from arr_coc.evaluation.entries import make_entries
from arr_coc.evaluation.measure import EvalConfig, grid_from_lists, unpack_cells
from arr_coc.evaluation.runner import make_trials, timed_questions
from arr_coc.selectors import SelectionInput
from arr_coc.types.grid import Grid
from tests.adapters.tiny_vlm import picture
from tests.evaluation.conftest import FRAMES, Folder, run, untimed, write


def test_two_runs_are_equal(folder: Folder) -> None:
    data = folder(2)
    assert untimed(run(data)) == untimed(run(data))
    other = run(data, seed=5)
    assert other.record("uniform", "25%")["kept"] == run(data).record("uniform", "25%")["kept"]
    assert untimed(other)[1] != untimed(run(data))[1]


def test_selectors_of_the_user(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last(selection: SelectionInput) -> torch.Tensor:
        return selection.candidates[-selection.count :]

    (tmp_path / "mymodule.py").write_text(
        "from arr_coc.selectors import Selector\n\n\nclass Mine(Selector):\n"
        "    def select(self, selection):\n        return selection.candidates[: selection.count]\n"
    )
    monkeypatch.chdir(tmp_path)
    report = run(folder(1), [last, "mymodule:Mine"])
    assert [record["selector"] for record in report.records] == ["last", "Mine"]
    assert report.record("last", "25%")["evidence_recall"] != report.record("Mine", "25%")["evidence_recall"]


@pytest.mark.parametrize(
    ("selectors", "budgets", "config", "expected", "note"),
    [
        (["all", "ink"], ["25%", "all"], EvalConfig(), ["all all", "ink 25%"], ""),
        (["ink"], ["100%"], EvalConfig(), ["all all"], "ink would keep every cell"),
        (["ink"], ["mass 90%", " 8 "], EvalConfig(), ["ink mass 90%", "ink 8"], ""),
        (["ink", "uniform"], ["all"], EvalConfig(glance="25%"), ["all all", "ink all", "uniform all"], ""),
        (
            ["ink", "divprune", "resize"],
            ["25%", "all"],
            EvalConfig(glance="25%"),
            ["all all", "ink all", "ink 25%", "divprune 25%", "resize 25%"],
            "cannot glance (select before encoding): divprune, resize",
        ),
        (
            ["ink", "divprune"],
            ["all"],
            EvalConfig("exact", "25%", "centre"),
            ["all all", "centre all"],
            "only centre runs",
        ),
        (["random"], ["all"], EvalConfig(glance="25%"), ["all all", "random all", "random all"], ""),
    ],
)
def test_trials(selectors: Any, budgets: Any, config: EvalConfig, expected: list[str], note: str) -> None:
    trials, notes = make_trials(make_entries(selectors), budgets, config, seeds=2)
    assert [f"{trial.entry.name} {trial.budget}" for trial in trials] == expected
    assert note in "".join(notes)
    assert bool(notes) == bool(note)


def test_at_budget_all_selectors_differ_by_their_glance(folder: Folder) -> None:
    report = run(folder(2), ["ink", "uniform", "divprune"], ["all"], glance="25%")
    assert [record["selector"] for record in report.records] == ["all", "ink", "uniform"]
    assert "cannot glance" in report.data.notes[0]
    for name in ("ink", "uniform"):
        record = report.record(name, "all")
        assert record["tokens"]["encoded"] == record["kept"] == pytest.approx(record["tokens"]["all"] / 4, abs=1)
        assert record["fallbacks"] == 0
        assert record["versus"] is not None
    rows = {row["selector"]: row["keep"] for row in report.rows["0.png"]}
    assert rows["ink"] != rows["uniform"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda selection: selection.candidates[: selection.count + 1], "at most"),
        (lambda selection: selection.candidates[[0, 0]], "comes twice"),
        (lambda selection: selection.candidates[: selection.count] + 10_000, "between 0"),
    ],
)
def test_invalid_cells_are_an_error_that_names_the_selector(folder: Folder, wrong: Any, complaint: str) -> None:
    wrong.__name__ = "greedy"
    with pytest.raises(SelectorError, match=f"'greedy'.*{complaint}"):
        run(folder(1), [wrong])


def test_coupling_needs_an_encoder(folder: Folder) -> None:
    with pytest.raises(SelectorError, match=r"'coupling' asks an image-text encoder.*--embeddings labels"):
        run(folder(1), ["coupling"])
    with pytest.raises(ArrCocError, match="wrapped already"):
        run(folder(1), ["uniform"], embeddings="labels")


def test_a_truncated_picture_is_left_out_and_reported(folder: Folder) -> None:
    data = folder(3)
    whole = (data / "0.png").read_bytes()
    (data / "0.png").write_bytes(whole[: len(whole) // 2])
    report = run(data, ["uniform"])
    assert report.record("uniform", "25%")["images"] == 2
    assert [problem.split(":")[0] for problem in report.problems] == ["samples.jsonl, line 1", "samples.jsonl, line 2"]
    for number in range(3):
        (data / f"{number}.png").write_bytes(whole[:200])
    with pytest.raises(ArrCocError, match="can be read"):
        run(data, ["uniform"])


def test_which_questions_are_timed() -> None:
    def data(*counts: int) -> Data:
        asked = [tuple(Sample(f"{n}?") for n in range(count)) for count in counts]
        return Data("x", tuple(PictureQuestions(f"{n}", Path("x"), (1, 1), some) for n, some in enumerate(asked)))

    assert timed_questions(data(3, 3, 3, 3)) == {"0": 0, "1": 1, "2": 2, "3": 0}
    assert timed_questions(data(1, 2, 1, 2)) == {"1": 0, "3": 1, "0": 0, "2": 0}
    many = timed_questions(data(*[2] * 120))
    assert list(many) == [str(10 * n) for n in range(12)]
    assert list(many.values()) == [0, 1] * 6


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_clip_is_evaluated(clips: Path, family: str, tmp_path: Path) -> None:
    late = [[[0, 0, 28, 28, 5], [56, 28, 84, 56, 5]]]
    write(clips, [
        {"video": FRAMES, "question": "What happens at the end?", "answer": "x", "evidence": late, "fps": 4},
        {"video": FRAMES, "question": "What is on the left?", "answer": "x", "evidence": [[[0, 0, 28, 56]]], "fps": 4},
        {"video": "clip", "question": "What is it?", "kind": "other"},
    ])  # fmt: skip
    report = run(clips, ["all", "evs", "random", "divprune", "ink", "oracle"], family=family)
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


def test_stills_and_clips_together(clips: Path) -> None:
    write(clips, [{"video": "clip", "question": "?"}, {"image": "still.png", "question": "?"}])
    assert [r["images"] for r in run(clips, ["uniform", "divprune"]).records] == [2, 2]
    with pytest.raises(SelectorError, match=r"'evs' chooses from videos only, and 'still.png' is a still picture"):
        run(clips, ["uniform", "evs"])
    with pytest.raises(SelectorError, match=r"'resize' chooses from images only, and 'clip' is a video"):
        run(clips, ["uniform", "resize"])


def test_evs_keeps_what_is_new(clips: Path) -> None:
    """Where nothing moves but one corner of the last frames, that corner is what evs keeps after the first frame."""
    still = picture(84, 56)
    for number, name in enumerate(FRAMES):
        shown = still.copy()
        if number >= 4:
            shown.paste((255, 255, 255), (56, 28, 84, 56))
        shown.save(clips / name)
    write(clips, [{"video": "clip", "question": "?", "evidence": [[[56, 28, 84, 56, 4]]]}])
    cells = next(iter(run(clips, ["all"], answers=False).rows.values()))[0]["all"]
    first = cells // 3
    report = run(clips, ["evs", "uniform"], [first + cells // 18], answers=False)
    assert report.records[0]["evidence_recall"] > report.records[1]["evidence_recall"]
    assert torch.equal(unpack_cells(report.rows["clip"][0]["keep"], cells)[:first], torch.arange(first))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"selectors": ["unifrom"]}, "did you mean 'uniform'"),
        ({"selectors": ["uniform", "uniform"]}, "twice"),
        ({"selectors": []}, "at least one"),
        ({"budgets": ["lots"]}, "got 'lots'"),
        ({"budgets": "25%"}, "a list of budgets"),
        ({"limit": 0}, "limit"),
        ({"seeds": 0}, "seeds"),
        ({"glance": "half"}, "glance"),
        ({"kinds": ["none such"]}, "none such"),
        ({"format": "vqa2"}, "did you mean 'vqav2'"),
    ],
)
def test_bad_input_is_an_error(folder: Folder, options: Any, complaint: str) -> None:
    with pytest.raises(ArrCocError, match=complaint):
        run(folder(1), **options)


def test_it_is_exported() -> None:
    assert callable(arr_coc.evaluate)
    with pytest.raises(ArrCocError, match="no folder"):
        arr_coc.evaluate("reader", "/no/such/folder")
