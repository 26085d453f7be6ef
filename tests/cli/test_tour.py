"""The command `arr-coc tour`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arr_coc.cli import main


def test_the_tour_writes_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour", "-o", str(tmp_path / "out")]) == 0
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == [
        "receipt.png", "receipt_answer.png", "receipt_channels.png", "receipt_kept.png", "scene.png", "scene_channels.png",
        "why_company.png", "why_total.png",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert re.search(r"37\.40 +860 of 860 tokens read \(all\), 860 encoded", said)
    assert re.search(r"37\.40 +(\d+) of 860 tokens read \(those that matter\), 516 encoded", said)
    assert said.count("HARBOUR MILL BAKERY") == 2
