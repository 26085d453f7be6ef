"""Records, tables and sentences of a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arr_coc.evaluation.report import classify_outcome, format_share
from arr_coc.selectors import SelectionInput
from tests.adapters.tiny_vlm import wrapped
from tests.evaluation.conftest import Folder, answering, made_up, run


def test_records_as_documented(folder: Folder) -> None:
    report = run(folder(3), ["all", "random", "uniform", "oracle"], ["25%", "all", 8])
    said = json.loads(report.to_json())
    assert {"model", "data", "records"} <= said.keys()
    rows = [(record["selector"], record["budget"]) for record in said["records"]]
    assert rows == [("all", "all")] + [(s, b) for b in ("25%", "8") for s in ("random", "uniform", "oracle")]
    for record in said["records"]:
        assert {
            "kept", "n", "accuracy", "accuracy_ci", "evidence_recall", "any_hit", "fallbacks", "select_ms", "answer_ms",
            "by_kind", "lift", "sensitivity", "peak_mb", "encode_ms", "prefill_ms", "decode_ms", "pointing",
        } <= record.keys()  # fmt: skip
        assert record["n"] == 6
        assert set(record["by_kind"]) == {"kind 0", "kind 1"}
        assert record["by_kind"]["kind 0"]["n"] == 3
        assert record["fallbacks"] == 0
        assert record["valid"]
    dense, oracle = report.record("all", "all"), report.record("oracle", "8")
    assert dense["evidence_recall"] == dense["lift"] == 1
    assert oracle["kept"] == 8
    assert oracle["pointing"] == 1
    assert oracle["versus"] is None
    assert report.record("uniform", 8)["versus"]["peer"] == "random"
    assert report.record("random", "25%")["seeds"] == 2
    assert "| uniform | 25% |" in report.table()
    assert "kind 1, n = 3" in report.table(kinds=True)


def test_without_answers_only_the_cells_are_judged(folder: Folder, tmp_path: Path) -> None:
    report = run(folder(2), ["all", "uniform", "fastv"], answers=False)
    for record in report.records:
        assert record["accuracy"] is None
        assert record["evidence_recall"] is not None
        assert record["answer_ms"] is None
    assert "accuracy" not in report.table()
    assert "answer ms" not in report.table()
    report.plot(tmp_path / "recall.png")  # against tokens alone


def test_fallbacks_are_counted_and_shown(folder: Folder) -> None:
    def shaky(selection: SelectionInput) -> torch.Tensor:
        if selection.question.text == "What?":
            raise RuntimeError("no idea")
        return selection.candidates[: selection.count]

    report = run(folder(2), [shaky, "uniform", "random"])
    record = report.record("shaky", "25%")
    assert record["fallbacks"] == 0.5
    assert not record["valid"]
    assert "50.0%, invalid" in report.table()
    assert "no idea" in report.table()
    assert report.record("uniform", "25%")["versus"]["peer"] == "random"  # an invalid row is no peer


def test_layers_that_read_more_cells_than_are_kept_are_reported(folder: Folder) -> None:
    report = run(folder(2), ["fastv", "uniform"], answers=False)
    inside, plain = report.record("fastv", "25%"), report.record("uniform", "25%")
    layers = len(wrapped("qwen2_vl").adapter.text_model.layers)
    assert inside["read"] == pytest.approx((inside["tokens"]["all"] + (layers - 1) * inside["kept"]) / layers, abs=0.01)
    assert plain["read"] == plain["kept"]
    assert f"{inside['read']:.0f} a layer" in report.table()
    assert "fastv lets language layers read more cells than it keeps" in report.table()


def test_who_leads_and_whether_it_is_decided() -> None:
    found = made_up({
        "all": answering("all", 20, list(range(8))), "good": answering("good", 16, [0, 1]),
        "poor": answering("poor", 2, [6, 7]), "oracle": answering("oracle", 19, [0, 1]),
        "shaky": answering("shaky", 20, [0, 1], fallback="RuntimeError: no"),
    })  # fmt: skip
    assert [record["selector"] for record in found.rank("25%")] == ["good", "poor"]  # none that is invalid
    ((budget, said),) = found.summary()
    assert budget == "25%"
    for words in (
        "good leads with .80 [",
        "80% of the dense model's 1.00",
        "+0.70 [",
        "to poor (p < .001)",
        "reaches .95",
    ):
        assert words in said
    assert "decide" not in said


@pytest.mark.parametrize(
    ("others", "words"), [(15, "which 20 pictures do not decide"), (16, "other is level with it"), (0, "+0.80 [")]
)
def test_an_undecided_lead_is_reported(others: int, words: str) -> None:
    found = made_up({"one": answering("one", 16, [0, 1]), "other": answering("other", others, [0, 1])})
    assert words in found.summary()[0][1]


def test_no_selector_is_right() -> None:
    found = made_up({"one": answering("one", 0, [6]), "other": answering("other", 0, [7])})
    assert found.summary() == [("25%", "no selector gets any right.")]


def test_outcomes_say_why_answers_are_wrong() -> None:
    dense = {"selector": "all", "accuracy": 1.0, "recall": 1.0}
    wrong = {"selector": "x", "accuracy": 0.0, "recall": 0.5}
    assert classify_outcome(wrong, dense) == "lost"
    assert classify_outcome(wrong | {"recall": 0.9}, dense) == "misread"
    assert classify_outcome(wrong | {"recall": None}, dense) == "unknown"
    assert classify_outcome(wrong, dense | {"accuracy": 0.3}) == "dense too"
    assert classify_outcome(wrong | {"accuracy": 0.6}, dense) == "right"
    assert classify_outcome(wrong | {"accuracy": None}, dense) is None


def test_outcomes_add_up(folder: Folder) -> None:
    for record in run(folder(3), budgets=["50%", "25%"]).records:
        assert sum(record["outcomes"].values()) == pytest.approx(1, abs=1e-3)
        assert record["outcomes"]["right"] == record["accuracy"]


def test_format_of_shares() -> None:
    assert format_share(0.5) == ".50"
    assert format_share(0.999, (0.0, 1.0)) == "1.00 [.00, 1.00]"
    assert format_share(None) == ""
