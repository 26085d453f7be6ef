"""The command `arr-coc ask`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import arr_coc
from arr_coc.cli import main
from tests.vlm.page import printed


@pytest.fixture(scope="module")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "receipt.png"
    arr_coc.pictures.receipt().resize((240, 360)).save(path)
    return path


def test_an_answer_with_its_picture(
    model: str, receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = tmp_path / "why.png"
    asked = ["ask", str(receipt), "What?", "--model", model, "--budget", "25%", "--why", str(why), "--tokens", "3"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "visual tokens read" in said
    with Image.open(why) as shown:
        assert shown.width > 4 * 240  # kept, relevance and the three ways of knowing
        assert shown.height > 360


def test_an_answer_as_json(model: str, receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "ask",
        str(receipt),
        "What?",
        "--model",
        model,
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


def test_looking_again_says_what_was_tried(
    model: str, receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ask", str(receipt), "What?", "--model", model, "--budget", "6", "--tokens", "3"]
    assert main([*asked, "--sure", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["confidence_source"] == "mean token probability"  # this model has no calibration
    assert [one["kept"] for one in found["tried"]][:2] == [6, 12]
    assert found["tokens_paid"] == sum(one["kept"] for one in found["tried"])
    assert main([*asked, "--sure", "1", "--where", str(tmp_path / "where.png")]) == 0
    said = capsys.readouterr().out
    assert "looked again: " in said
    assert "mean token probability" in said
    assert (tmp_path / "where.png").exists()
    assert main(asked) == 0
    assert "looked again" not in capsys.readouterr().out
    assert main([*asked, "--sure", "1", "--then", "Who?", "--json"]) == 0
    assert all(len(one["tried"]) > 1 for one in json.loads(capsys.readouterr().out))  # every turn
    assert main([*asked, "--refuse", "never"]) == 2
    assert "expected refuse as one of auto, off" in capsys.readouterr().err
    assert main([*asked, "--sure", "1.5"]) == 2
    assert "expected --sure between 0 and 1" in capsys.readouterr().err


def test_a_conversation_and_a_gaze(model: str, receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ["ask", str(receipt), "What is it?", "--model", model, "--tokens", "3", "--budget", "6"]
    assert main([*first, "--then", "Where is the dog?", "--gaze", "3,4", "--json"]) == 0
    turns = json.loads(capsys.readouterr().out)
    assert 0 in turns[0]["keep"]  # the corner that is looked at
    assert turns[1]["tokens"]["added"] == len(set(turns[1]["keep"]) - set(turns[0]["keep"])) > 0
    assert main([*first, "--then", "Where is the dog?"]) == 0
    assert "of them added by this turn" in capsys.readouterr().out


def test_a_large_page_is_shown_as_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, _ = printed(angle=4.0)
    image.save(tmp_path / "page.jpg")
    why, where = tmp_path / "why.png", tmp_path / "where.png"
    asked = ["ask", str(tmp_path / "page.jpg"), "What is the total?", "--budget", "64", "--tokens", "3"]
    assert main([*asked, "--why", str(why), "--where", str(where)]) == 0
    said = capsys.readouterr().out
    assert "(64 of " in said
    assert ", 64 encoded, " in said
    assert "shown as region" in said
    with Image.open(where) as heat, Image.open(why) as sheet:
        assert heat.size == (768, 1024)  # all of the image, with the region's cells on it
        assert sheet.width > 2 * 400
    assert main([*asked, "--detail", "off", "--straighten", "off", "--json"]) == 0
    assert "shown as" not in capsys.readouterr().out
    assert main([*asked, "--detail", "fine"]) == 2
    assert "expected detail as one of auto, off, views" in capsys.readouterr().err
    assert main([*asked, "--detail", "views", "--selector", "resize"]) == 2
    assert "selector 'resize'" in capsys.readouterr().err
