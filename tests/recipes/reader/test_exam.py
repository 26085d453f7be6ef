"""The exam: every sample answered, exact match with intervals, seen and new shops separately."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from arr_coc.evaluation.metrics import similarity
from recipes.reader import exam, folder, vocabulary


@pytest.fixture
def samples(tmp_path: Path, picture) -> Path:
    picture(224, 252).save(tmp_path / "a.png")
    rows = [
        {"image": "a.png", "question": question, "answer": "9.00", "kind": "total", "store_seen": seen}
        for question, seen in (("total?", True), ("What is the total amount?", False))
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_answers_are_those_of_generate(reader, chat, picture, samples: Path, tmp_path: Path) -> None:
    model, processor = reader
    path = folder.write(model, tmp_path / "reader", dtype=model.dtype)
    results = exam.evaluate(path, samples)
    for result in results:
        inputs = chat(processor, picture(224, 252), result["question"])
        said = model.generate(**inputs, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
        assert result["said"].startswith(vocabulary.decode(said.tolist()))
    names = [f"{kind}{store}" for kind in ("total", "all") for store in ("", ", store new", ", store seen")]
    assert list(exam.report(results)) == names


def test_a_folder_without_samples_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["exam", "--reader", str(tmp_path), "--samples", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        exam.main()
    assert "samples.jsonl" in capsys.readouterr().err


def test_the_interval_is_wilsons() -> None:
    low, high = exam.interval(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-3), pytest.approx(0.9433, abs=1e-3))
    assert exam.interval(0, 0) == (0.0, 1.0)


def row(image: str, exact: bool, kind: str = "total", **more: bool) -> dict[str, Any]:
    return {"image": image, "kind": kind, "exact": exact, "similarity": 1.0 if exact else 0.5} | more


def test_questions_about_one_picture_count_less_than_as_many_pictures() -> None:
    apart = [row(str(number), number < 30) for number in range(40)]
    assert exam.effective_count(apart) == pytest.approx(40)
    assert exam.report(apart)["total"]["interval"] == [round(bound, 3) for bound in exam.interval(30, 40)]
    alike = [row(str(number // 4), number < 32) for number in range(40)]  # four questions each, right or wrong together
    assert exam.effective_count(alike) == pytest.approx(10)
    assert exam.report(alike)["total"]["interval"] == [round(bound, 3) for bound in exam.interval(8, 10)]
    assert exam.effective_count([row("a", True)] * 5) == 5


def test_the_table_has_every_kind_and_seen_and_new_shops() -> None:
    results = [
        row(f"{number}", number % 2 == 0, kind, store_seen=number < 4)
        for kind in ("total", "date")
        for number in range(6)
    ]
    results += [row("n", True, kind) for kind in ("notice: sign", "notice: not found")]
    table = exam.markdown(exam.report(results)).splitlines()
    assert table[:2] == ["| question | exact match [95%] | similarity | of |", "|---|---|---|---|"]
    kinds = ["date", "notice: not found", "notice: sign", "total", "all"]
    assert [line.split(" | ")[0][2:] for line in table[2:] if "store" not in line] == kinds
    low, high = exam.interval(2, 4)
    assert f"| date, store seen | .50 [.{low * 100:.0f}, .{high * 100:.0f}] | .75 | 4 |" in table
    assert table[-3].endswith("| 14 |")
    assert table[-1].startswith("| all, store seen | ")


def test_the_command_writes_the_table_and_every_answer(
    reader, samples: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    path = folder.write(reader[0], tmp_path / "reader", dtype=reader[0].dtype)
    numbers, answers = tmp_path / "table.json", tmp_path / "answers.jsonl"
    flags = ["--reader", str(path), "--samples", str(samples), "--json", str(numbers), "--out", str(answers)]
    monkeypatch.setattr(sys, "argv", ["exam", *flags])
    exam.main()
    table = json.loads(numbers.read_text())
    assert capsys.readouterr().out.strip() == exam.markdown(table)
    assert table["total"]["count"] == len(answers.read_text().splitlines()) == 2
    monkeypatch.setattr(sys, "argv", ["exam", *flags, "--json", str(tmp_path / "nowhere" / "table.json")])
    with pytest.raises(SystemExit, match="2"):
        exam.main()
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "expected", "share"), [("", "", 1), ("abc", "abc", 1), ("abd", "abc", 2 / 3), ("xyz", "abc", 0)]
)
def test_similarity_counts_edits(said: str, expected: str, share: float) -> None:
    assert similarity(said, expected) == pytest.approx(share)
