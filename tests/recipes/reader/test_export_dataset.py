"""The exported dataset: training documents as a folder, the same for the same seed."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from arr_coc.evaluation.data import read_samples
from recipes.reader import export_dataset
from recipes.reader.receipts import read_receipts, split


def content(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in place.iterdir()}


def test_the_same_seed_is_the_same_folder(
    some_fonts: Path, receipts_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads(workers: int, context: object, begin: Any, given: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            workers, initializer=begin, initargs=given
        )  # a process would take ten seconds to start

    monkeypatch.setattr(export_dataset, "ProcessPoolExecutor", threads)
    counts = export_dataset.export(some_fonts, receipts_folder, tmp_path / "one", 2)
    (tmp_path / "two").mkdir()
    rows = [row for number in range(2) for row in export_dataset.draw(tmp_path / "two", 0, number)]
    (tmp_path / "two" / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert content(tmp_path / "one") == content(tmp_path / "two")
    data = read_samples(tmp_path / "one")
    assert not data.problems
    assert len(data.pictures) == 2
    assert data.questions == counts.total()
    assert sum(bool(sample.evidence) for one in data.pictures for sample in one.samples) > data.questions / 3
    assert export_dataset.draw(tmp_path / "two", 1, 0) != rows[: len(data.pictures[0].samples)]


def test_validation_scans_are_not_included(some_fonts: Path, receipts_folder: Path) -> None:
    everything = read_receipts(receipts_folder)
    one_in = next(count for count in range(2, 20) if len(split(everything, count)[1]) in (1, 2))
    back = {receipt.name for receipt in split(everything, one_in)[1]}
    export_dataset._open_library(some_fonts, receipts_folder, one_in)
    assert export_dataset._library is not None
    assert {receipt.name for receipt in export_dataset._library.receipts} == {
        receipt.name for receipt in everything
    } - back


def test_bad_input_is_one_sentence(
    some_fonts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--fonts", str(some_fonts), "--receipts", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["export_dataset", *given])
    with pytest.raises(SystemExit) as end:
        export_dataset.main()
    assert end.value.code == 2
    assert "recs.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sys, "argv", ["export_dataset", *given, "--count", "0"])
    with pytest.raises(SystemExit) as end:
        export_dataset.main()
    assert end.value.code == 2
    assert "expected --count and --workers from 1 on, got 0 and 1" in capsys.readouterr().err
