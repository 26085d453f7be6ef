"""The exam: every sample answered by a model folder, shares with intervals, shops seen and new apart."""

import json
import sys
from pathlib import Path

import pytest

from arr_coc.evaluation.metrics import similarity
from arr_coc.reader import folder, vocabulary
from arr_coc.training import exam


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
    results = exam.sit(path, samples)
    for result in results:
        inputs = chat(processor, picture(224, 252), result["question"])
        said = model.generate(**inputs, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
        assert result["said"].startswith(vocabulary.decode(said.tolist()))
    assert {"total", "total, store seen", "total, store new"} == exam.report(results).keys()


def test_a_folder_without_samples_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["exam", "--reader", str(tmp_path), "--samples", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        exam.main()
    assert "samples.jsonl" in capsys.readouterr().err


def test_the_interval_is_wilsons() -> None:
    low, high = exam.interval(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-3), pytest.approx(0.9433, abs=1e-3))
    assert exam.interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("said", "expected", "share"), [("", "", 1), ("abc", "abc", 1), ("abd", "abc", 2 / 3), ("xyz", "abc", 0)]
)
def test_similarity_counts_edits(said: str, expected: str, share: float) -> None:
    assert similarity(said, expected) == pytest.approx(share)
