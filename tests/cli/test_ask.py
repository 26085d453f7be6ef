"""`arr-coc ask` and `arr-coc bench ask`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc.cli import main
from arr_coc.reader import folder
from arr_coc.reader.model import TINY, build


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return folder.write(build(TINY), tmp_path_factory.mktemp("model"), torch.float32)


@pytest.fixture(scope="module")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "receipt.png"
    arr_coc.pictures.receipt().resize((240, 360)).save(path)
    return path


def test_an_answer_with_its_picture(
    model: Path, receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = tmp_path / "why.png"
    asked = ["ask", str(receipt), "What?", "--model", str(model), "--budget", "25%", "--why", str(why), "--tokens", "3"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "visual tokens read" in said
    with Image.open(why) as shown:
        assert shown.width > 4 * 240  # kept, relevance and the three ways of knowing
        assert shown.height > 360


def test_an_answer_as_json(model: Path, receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "ask",
        str(receipt),
        "What?",
        "--model",
        str(model),
        "--budget",
        "9",
        "--glance",
        "50%",
        "--json",
        "--tokens",
        "3",
    ]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"]["kept"] == len(found["keep"]) == 9
    assert found["tokens"]["encoded"] == -(-found["tokens"]["all"] // 2)
    assert {"answer", "timings_ms", "strategy", "grid"} <= set(found)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["--budget", "lots"], "got 'lots'"),
        (["--glance", "-1"], "got '-1'"),
        (["--selector", "psychic"], "got 'psychic'"),
        (["--why", "/no/such/folder/why.png"], "no folder"),
        (["--tokens", "0"], "at least 1"),
        (["--device", "cuda:99"], "cuda:99"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_loaded(
    receipt: Path, wrong: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(receipt), "What?", "--model", "/not/looked/at", *wrong]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
