"""The command `arr-coc show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.cli import main


def test_a_question_as_a_picture(receipt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "why.png"
    assert main(["show", receipt, "What is the total amount?", "--budget", "6.25%", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("54 of 860 cells kept")
    assert "Tensions: trust 1.00" in said
    with Image.open(out) as shown:
        assert shown.width > shown.height


def test_the_cells_that_hold_the_answer_are_kept(
    receipt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an eighth of the tokens the reader still says what it says with all of them, for each question its own cells."""
    kept = {}
    for question, answer in (("What is the total amount?", "37.40"), ("What is the date?", "12/03/2026")):
        why = str(tmp_path / "why.png")
        assert main(["show", receipt, question, "--budget", "12.5%", "--json", "-o", why]) == 0
        kept[question] = set(json.loads(capsys.readouterr().out)["keep"])
        assert main(["ask", receipt, question, "--budget", "12.5%"]) == 0
        assert capsys.readouterr().out.startswith(answer)
    one, other = kept.values()
    assert len(one & other) / len(one | other) < 0.5


def test_without_a_model(receipt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "why.png")
    assert main(["show", receipt, "What?", "--model", "none", "--budget", "40", "-o", out]) == 0
    assert "coupling by universal layer" in capsys.readouterr().out
