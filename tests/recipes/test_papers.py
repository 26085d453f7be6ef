"""Exam papers: drawings in a folder, as the exam reads them, and enough questions of every kind."""

import json
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.training.documents.page import FontSet
from recipes.reader import export_exam as papers


def test_papers_are_what_the_exam_reads(fonts: FontSet, tmp_path: Path) -> None:
    counts = papers.write(fonts, tmp_path, 2)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == counts.total() > 20
    assert {sample["kind"].split(":")[0] for sample in samples} == {"receipt", "form", "table", "notice"}
    for sample in samples:
        with Image.open(tmp_path / sample["image"]) as picture:
            assert picture.width % 28 == picture.height % 28 == 0
        assert (sample["answer"] == "not found") == sample["kind"].endswith(": not found")
    held_out = papers.write(fonts, tmp_path / "new", 2, held_out=True)
    assert held_out.total() > 20
    assert (tmp_path / "new" / "samples.jsonl").read_text() != (tmp_path / "samples.jsonl").read_text()


@pytest.mark.parametrize("held_out", [False, True])
def test_rare_kinds_are_drawn_for_until_there_are_enough(fonts: FontSet, tmp_path: Path, held_out: bool) -> None:
    few = papers.write(fonts, tmp_path / "few", 3, held_out)
    counts = papers.write(fonts, tmp_path / "many", 3, held_out, least=4)
    assert set(counts) == {f"{family}: {kind}" for family, kinds in papers.KINDS.items() for kind in kinds}
    assert min(counts.values()) == 4
    assert all(counts[kind] == max(4, few[kind]) for kind in counts)
    texts = [(tmp_path / name / "samples.jsonl").read_text().splitlines() for name in ("few", "many")]
    assert set(texts[0]) <= set(texts[1])  # the same drawings, and further ones
    pictures = {json.loads(line)["image"] for line in texts[1]}
    assert pictures == {path.name for path in (tmp_path / "many").glob("*.png")}


def test_a_kind_that_no_drawing_has_is_told(fonts: FontSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(papers.KINDS, "receipt", ("riddle",))
    monkeypatch.setattr(papers, "_PATIENCE", 3)
    with pytest.raises(RuntimeError, match="'receipt' do not hold 1 of each kind"):
        papers.write(fonts, tmp_path, 1, least=1)
