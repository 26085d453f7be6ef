"""Exported exams: drawings and scans in a folder, with enough questions of every kind."""

import json
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.training.documents.page import FontSet
from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader import export_exam
from recipes.reader.receipts import Receipt
from recipes.reader.validation import FAMILIES


def test_drawings_are_what_the_exam_reads(fonts: FontSet, tmp_path: Path) -> None:
    counts = export_exam.export_drawings(fonts, tmp_path, 2)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == counts.total() > 20
    assert {sample["kind"].split(":")[0] for sample in samples} == set(FAMILIES)
    for sample in samples:
        with Image.open(tmp_path / sample["image"]) as picture:
            assert picture.width % 28 == picture.height % 28 == 0
        assert (sample["answer"] == NOT_FOUND) == sample["kind"].endswith(f": {NOT_FOUND}")
    held_out = export_exam.export_drawings(fonts, tmp_path / "new", 2, held_out=True)
    assert held_out.total() > 20
    assert (tmp_path / "new" / "samples.jsonl").read_text() != (tmp_path / "samples.jsonl").read_text()


@pytest.mark.parametrize("held_out", [False, True])
def test_more_is_drawn_until_every_kind_has_enough_questions(fonts: FontSet, tmp_path: Path, held_out: bool) -> None:
    few = export_exam.export_drawings(fonts, tmp_path / "few", 3, held_out)
    counts = export_exam.export_drawings(fonts, tmp_path / "many", 3, held_out, least=4)
    required = {f"{family}: {kind}" for family, kinds in export_exam.KINDS.items() for kind in kinds}
    assert set(counts) >= required
    assert min(counts[kind] for kind in required) == 4
    assert all(counts[kind] == max(4, few[kind]) for kind in required)
    texts = [(tmp_path / name / "samples.jsonl").read_text().splitlines() for name in ("few", "many")]
    assert set(texts[0]) <= set(texts[1])  # the same drawings, and further ones
    pictures = {json.loads(line)["image"] for line in texts[1]}
    assert pictures == {path.name for path in (tmp_path / "many").glob("*.png")}


def test_a_kind_that_no_drawing_has_is_an_error(
    fonts: FontSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(export_exam.KINDS, "receipt", ("riddle",))
    monkeypatch.setattr(export_exam, "_MAX_DRAWINGS", 3)
    with pytest.raises(RuntimeError, match="'receipt' do not hold 1 of each kind"):
        export_exam.export_drawings(fonts, tmp_path, 1, least=1)


def test_scans_have_their_evidence(receipts: list[Receipt], tmp_path: Path) -> None:
    counts = export_exam.export_scans(receipts, tmp_path)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == counts.total() == 4 * len(receipts)
    assert len({sample["image"] for sample in samples}) == len(receipts)
    asked = {sample["kind"]: sample["question"] for sample in samples}
    export_exam.export_scans(receipts, tmp_path / "new", held_out=True)
    for line in (tmp_path / "new" / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert sample["question"] != asked[sample["kind"]]
    shown = [sample for sample in samples if "evidence" in sample]
    assert shown
    for sample in shown:
        for left, top, right, bottom in sample["evidence"][0]:
            assert 0 <= left < right <= sample["width"]
            assert 0 <= top < bottom <= sample["height"]
