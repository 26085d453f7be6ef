"""Times, memory and batches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from arr_coc.evaluation import measure
from arr_coc.selectors import Choice, Downscale, SelectionInput, Selector
from tests.adapters.tiny_vlm import wrapped
from tests.evaluation.conftest import Folder, lines, run, untimed, write


def test_each_picture_is_encoded_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    count = 0
    real = vlm.adapter.encode

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return real(*args, **options)

    monkeypatch.setattr(vlm.adapter, "encode", counted)
    run(folder(3), ["all", "random", "uniform"], ["25%", "50%"])
    assert count == 3 + 1  # and the warm-up


def test_re_encoding_and_glancing_are_charged_to_the_selector(folder: Folder) -> None:
    class Half(Selector):
        name = "half"
        early = True

        def before_encoding(self, selection: SelectionInput) -> Downscale:
            return Downscale(selection.count)

    report = run(folder(2), ["all", Half(), "uniform"], ["25%"])
    half = report.record("half", "25%")
    assert half["evidence_recall"] is None
    assert half["kept"] <= report.record("uniform", "25%")["kept"]
    assert "shows the whole picture smaller" in report.table()
    glanced = run(folder(2), ["all", "uniform", "divprune"], ["25%"], glance="50%")
    for name in ("uniform", "divprune"):
        assert glanced.record(name, "25%")["tokens"]["encoded"] * 2 == pytest.approx(
            glanced.record(name, "25%")["tokens"]["all"], abs=1
        )
    dense = glanced.record("all", "all")["tokens"]
    assert dense["encoded"] == dense["all"]


def test_attention_is_charged_to_the_selectors_that_read_it(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watcher(Selector):
        name = "watcher"
        attention_at = (1.0,)

        def select(self, selection: SelectionInput) -> Choice:
            worth = selection.attention[1.0]
            return Choice(selection.candidates[worth.topk(selection.count).indices.sort().values])

    charged = {(): (0.0, 0.0), (1.0,): (0.5, 900.0)}
    monkeypatch.setattr("arr_coc.evaluation.runner.measure_attention_cost", lambda *given: charged)
    peaks = itertools.cycle([1000.0, 300.0, 300.0])  # while both share an encoding, then each of them alone
    monkeypatch.setattr(measure.PeakMemory, "peak", lambda meter: next(peaks))
    report = run(folder(2), ["uniform", Watcher()])
    plain, seen = report.record("uniform", "25%")["encode_ms"], report.record("watcher", "25%")["encode_ms"]
    assert seen == pytest.approx(1.5 * plain, abs=0.02)
    assert [report.record(name, "25%")["peak_mb"] for name in ("uniform", "watcher")] == [300, 1000]


def test_batches_give_the_same_answers_as_single_questions(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, cells and scores must not depend on which questions are asked together, nor on which one is timed."""
    data, kinds = folder(3), ["all", "random", "ink", "fastv", "resize", "oracle"]
    together = run(data, kinds, ["50%", "25%"], tokens=6)
    monkeypatch.setattr(measure, "BATCH", 1)
    alone = run(data, kinds, ["50%", "25%"], tokens=6)
    assert {row["said"] for rows in together.rows.values() for row in rows} != {""}
    assert untimed(alone) == untimed(together)
    monkeypatch.undo()
    monkeypatch.setattr("arr_coc.evaluation.runner.TIMED", 1)
    once = run(data, kinds, ["50%", "25%"], tokens=6)
    assert [record.pop("timed") for record in once.records] == [
        2 if r["selector"] == "random" else 1 for r in once.records
    ]
    assert [record.pop("timed") for record in together.records]
    assert untimed(once) == untimed(together)
    assert all(record["answer_ms"] > 0 for record in once.records)


def test_many_questions_about_one_picture_are_asked_in_batches(folder: Folder) -> None:
    data = folder(1)
    write(data, [lines(["0.png"])[0] | {"question": f"What {number}?"} for number in range(measure.BATCH + 2)])
    assert run(data).record("uniform", "25%")["n"] == measure.BATCH + 2
