"""Running comparisons with a tiny random model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.evaluation import Data, Interrupted, PictureQuestions, Report, Sample, evaluate, measure
from arr_coc.evaluation.runner import timed_questions
from arr_coc.selectors import Choice, Selector, Sight, Smaller
from arr_coc.selectors.scope import Scope
from tests.adapters.tiny_vlm import wrapped
from tests.evaluation.conftest import lines, write

Folder = Callable[[int], Path]


def run(data: Any, selectors: Any = ("all", "random", "uniform"), budgets: Any = ("25%",), **options: Any) -> Report:
    return evaluate(wrapped("qwen2_vl"), data, selectors, budgets, **({"tokens": 3, "seeds": 2} | options))


def untimed(report: Report) -> Any:
    """All that must be the same in every run."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items() if not k.endswith("ms") and k != "peak_mb"}
        return [clean(one) for one in value] if isinstance(value, list | tuple) else value

    return clean(report.to_dict()), clean(dict(report.rows))


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


def test_two_runs_are_equal(folder: Folder) -> None:
    data = folder(2)
    assert untimed(run(data)) == untimed(run(data))
    other = run(data, seed=5)
    assert other.record("uniform", "25%")["kept"] == run(data).record("uniform", "25%")["kept"]
    assert untimed(other)[1] != untimed(run(data))[1]


def test_an_interrupted_run_goes_on_and_ends_as_an_uninterrupted_one(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(3), tmp_path / "run"
    whole = run(data)

    def stop(done: int, total: int, what: str) -> None:
        if done == 5:  # in the middle of the second picture
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"after 1 of 3 pictures.*goes on") as stopped:
        run(data, run=place, tick=stop)
    assert (stopped.value.done, stopped.value.total) == (1, 3)
    with (place / "records.jsonl").open("a") as file:
        file.write('{"picture": "1.png", "ro')  # killed while writing
    starts: list[int] = []
    again = run(data, run=place, tick=lambda done, total, what: starts.append(done))
    assert again.resumed == 1
    assert starts[0] == 4
    assert untimed(again) == untimed(whole)
    assert not (place / "records.jsonl").exists()  # done: the next run starts anew


def stop(done: int, total: int, what: str) -> None:
    if done == 5:
        raise KeyboardInterrupt


def test_another_question_neither_goes_on_from_it_nor_writes_over_it(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(2), tmp_path / "run"
    with pytest.raises(Interrupted):
        run(data, run=place, tick=stop)
    kept = (place / "records.jsonl").read_text()
    with pytest.raises(ArrCocError, match=r"holds 1 pictures of a run with other settings.*--fresh"):
        run(data, run=place, budgets=["50%"])
    assert (place / "records.jsonl").read_text() == kept
    assert run(data, run=place, budgets=["50%"], fresh=True).resumed == 0
    assert list(place.iterdir()) == []
    with pytest.raises(Interrupted):
        run(data, run=place, tick=stop)
    assert run(data, run=place, fresh=True).resumed == 0


@pytest.mark.parametrize("change", ["the object", "the closure", "the kinds"])
def test_nor_does_the_same_name_with_other_contents(folder: Folder, tmp_path: Path, change: str) -> None:
    data, place = folder(2), tmp_path / "run"

    def first_cells(skip: int) -> Callable[[Sight], torch.Tensor]:
        def first(sight: Sight) -> torch.Tensor:
            return sight.candidates[skip : skip + sight.count]

        return first

    makers: dict[str, Callable[[int], Any]] = {"the object": lambda n: Scope(float(n)), "the closure": first_cells}
    make = makers.get(change, lambda n: "uniform")
    with pytest.raises(Interrupted):
        run(data, [make(0)], ["25%", "50%", "12.5%"], run=place, tick=stop)
    if change == "the kinds":
        written = (data / "samples.jsonl").read_text()
        (data / "samples.jsonl").write_text(written.replace("kind 0", "other"))
    with pytest.raises(ArrCocError, match="a run with other settings"):
        run(data, [make(1)], ["25%", "50%", "12.5%"], run=place)
    if change != "the kinds":
        assert run(data, [make(0)], ["25%", "50%", "12.5%"], run=place).resumed == 1


def test_coupling_needs_an_encoder(folder: Folder) -> None:
    with pytest.raises(SelectorError, match=r"'coupling' asks an image-text encoder.*--embeddings labels"):
        run(folder(1), ["coupling"])
    with pytest.raises(ArrCocError, match="wrapped already"):
        run(folder(1), ["uniform"], embeddings="labels")


def test_layers_that_read_more_than_is_kept_are_said(folder: Folder) -> None:
    report = run(folder(2), ["fastv", "uniform"], answers=False)
    inside, plain = report.record("fastv", "25%"), report.record("uniform", "25%")
    layers = len(wrapped("qwen2_vl").adapter.text_model.layers)
    assert inside["read"] == pytest.approx((inside["tokens"]["all"] + (layers - 1) * inside["kept"]) / layers, abs=0.01)
    assert plain["read"] == plain["kept"]
    assert f"{inside['read']:.0f} a layer" in report.table()
    assert "fastv lets language layers read more cells than it keeps" in report.table()


def test_two_runs_do_not_share_a_folder(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(1), tmp_path / "run"

    def second(done: int, total: int, what: str) -> None:
        if done == 1:
            with pytest.raises(ArrCocError, match="another run is writing"):
                run(data, run=place)
            seen.append(done)

    seen: list[int] = []
    assert run(data, run=place, tick=second).resumed == 0
    assert seen == [1]
    assert not place.exists()


def test_what_was_measured_is_kept_until_it_is_written_down(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(2), tmp_path / "run"

    def full(report: Report) -> None:
        raise ArrCocError("no space left")

    with pytest.raises(ArrCocError, match="no space left"):
        run(data, run=place, then=full)
    again = run(data, run=place)
    assert again.resumed == 2
    assert untimed(again) == untimed(run(data))


def test_a_full_disk_is_one_sentence(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode == "a":
            raise OSError(28, "No space left on device")
        return real(self, mode, *rest, **options)

    real = Path.open
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ArrCocError, match=r"cannot keep the run in .*No space left"):
        run(folder(1), run=tmp_path / "run")


def test_a_selector_of_the_users(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last(sight: Sight) -> torch.Tensor:
        return sight.candidates[-sight.count :]

    (tmp_path / "mymodule.py").write_text(
        "from arr_coc.selectors import Selector\n\n\nclass Mine(Selector):\n"
        "    def select(self, sight):\n        return sight.candidates[: sight.count]\n"
    )
    monkeypatch.chdir(tmp_path)
    report = run(folder(1), [last, "mymodule:Mine"])
    assert [record["selector"] for record in report.records] == ["last", "Mine"]
    assert report.record("last", "25%")["evidence_recall"] != report.record("Mine", "25%")["evidence_recall"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda sight: sight.candidates[: sight.count + 1], "at most"),
        (lambda sight: sight.candidates[[0, 0]], "comes twice"),
        (lambda sight: sight.candidates[: sight.count] + 10_000, "between 0"),
    ],
)
def test_wrong_cells_are_an_error_that_names_the_selector(folder: Folder, wrong: Any, complaint: str) -> None:
    wrong.__name__ = "greedy"
    with pytest.raises(SelectorError, match=f"'greedy'.*{complaint}"):
        run(folder(1), [wrong])


def test_fallbacks_are_counted_and_shown(folder: Folder) -> None:
    def shaky(sight: Sight) -> torch.Tensor:
        if sight.words.text == "What?":
            raise RuntimeError("no idea")
        return sight.candidates[: sight.count]

    report = run(folder(2), [shaky, "uniform", "random"])
    record = report.record("shaky", "25%")
    assert record["fallbacks"] == 0.5
    assert not record["valid"]
    assert "50.0%, invalid" in report.table()
    assert "no idea" in report.table()
    assert report.record("uniform", "25%")["versus"]["peer"] == "random"  # nobody is compared with an invalid row


def test_re_encoding_and_glancing_pay_for_themselves(folder: Folder) -> None:
    class Half(Selector):
        name = "half"
        early = True

        def before_encoding(self, sight: Sight) -> Smaller:
            return Smaller(sight.count)

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


def test_attention_is_charged_to_those_who_want_it(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watcher(Selector):
        name = "watcher"
        attention_at = (1.0,)

        def select(self, sight: Sight) -> Choice:
            worth = sight.attention[1.0]
            return Choice(sight.candidates[worth.topk(sight.count).indices.sort().values])

    charged = measure.AttentionCost({(): 0.0, (1.0,): 0.5}, {(): 0.0, (1.0,): 900.0})
    monkeypatch.setattr("arr_coc.evaluation.runner.measure_attention_cost", lambda *given: charged)
    peaks = itertools.cycle([1000.0, 300.0, 300.0])  # while both share an encoding, then each of them alone
    monkeypatch.setattr(measure.PeakMemory, "peak", lambda meter: next(peaks))
    report = run(folder(2), ["uniform", Watcher()])
    plain, seen = report.record("uniform", "25%")["encode_ms"], report.record("watcher", "25%")["encode_ms"]
    assert seen == pytest.approx(1.5 * plain, abs=0.02)
    assert [report.record(name, "25%")["peak_mb"] for name in ("uniform", "watcher")] == [300, 1000]


def test_only_the_cells(folder: Folder, tmp_path: Path) -> None:
    report = run(folder(2), ["all", "uniform", "fastv"], answers=False)
    for record in report.records:
        assert record["accuracy"] is None
        assert record["evidence_recall"] is not None
        assert record["answer_ms"] is None
    assert "accuracy" not in report.table()
    assert "answer ms" not in report.table()
    report.plot(tmp_path / "recall.png")  # against tokens alone


def test_a_torn_picture_is_left_out_and_said(folder: Folder) -> None:
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


def test_batches_say_what_single_questions_say(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, cells and scores must not depend on which questions are asked together, nor on who is timed."""
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


def test_which_questions_are_timed() -> None:
    def data(*counts: int) -> Data:
        asked = [tuple(Sample(f"{n}?") for n in range(count)) for count in counts]
        return Data("x", tuple(PictureQuestions(f"{n}", Path("x"), (1, 1), some) for n, some in enumerate(asked)))

    assert timed_questions(data(3, 3, 3, 3)) == {"0": 0, "1": 1, "2": 2, "3": 0}
    assert timed_questions(data(1, 2, 1, 2)) == {"1": 0, "3": 1, "0": 0, "2": 0}
    many = timed_questions(data(*[2] * 120))
    assert list(many) == [str(10 * n) for n in range(12)]
    assert list(many.values()) == [0, 1] * 6


def test_many_questions_about_one_picture_are_asked_in_batches(tmp_path: Path, folder: Folder) -> None:
    data = folder(1)
    write(data, [lines(["0.png"])[0] | {"question": f"What {number}?"} for number in range(measure.BATCH + 2)])
    assert run(data).record("uniform", "25%")["n"] == measure.BATCH + 2


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
def test_bad_input_is_one_sentence(folder: Folder, options: Any, complaint: str) -> None:
    with pytest.raises(ArrCocError, match=complaint):
        run(folder(1), **options)


def test_it_is_exported() -> None:
    assert callable(arr_coc.evaluate)
    with pytest.raises(ArrCocError, match="no folder"):
        arr_coc.evaluate("reader", "/no/such/folder")
