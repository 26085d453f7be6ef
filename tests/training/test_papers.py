"""Exam papers: drawings in a folder, as the exam reads them."""

import json
from pathlib import Path

from PIL import Image

from arr_coc.training import papers
from arr_coc.training.documents.fonts import FontShelf


def test_papers_are_what_the_exam_reads(fonts: FontShelf, tmp_path: Path) -> None:
    count = papers.write(fonts, tmp_path, 2)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == count > 20
    assert {sample["kind"].split(":")[0] for sample in samples} == {"receipt", "form", "table", "notice"}
    for sample in samples:
        with Image.open(tmp_path / sample["image"]) as picture:
            assert picture.width % 28 == picture.height % 28 == 0
        assert (sample["answer"] == "not found") == sample["kind"].endswith(": not found")
    held_out = papers.write(fonts, tmp_path / "new", 2, held_out=True)
    assert held_out > 20
    assert (tmp_path / "new" / "samples.jsonl").read_text() != (tmp_path / "samples.jsonl").read_text()
