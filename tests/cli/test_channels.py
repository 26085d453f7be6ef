"""The command `arr-coc channels`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import arr_coc
from arr_coc.cli import main


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "scene.png"
    arr_coc.pictures.scene().resize((240, 160)).save(path)
    return str(path)


def test_channels_writes_a_sheet(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["channels", image, "-o", str(tmp_path / "sheet.png")]) == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 600
    said = capsys.readouterr().out
    assert "edges" in said
    assert "sheet written to" in said


def test_channels_as_json(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["channels", image, "--json", "--layout", "mvp13"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in said["channels"]] == list(arr_coc.MVP13)
    assert said["original_size"] == {"width": 240, "height": 160}
    red = said["channels"][0]
    assert red["values"]["mean"] == pytest.approx(
        np.asarray(arr_coc.pictures.scene().resize((240, 160)))[..., 0].mean() / 255, abs=1e-5
    )
    assert {"meaning", "range", "pool", "cost", "family", "ms"} <= red.keys()


def test_json_has_no_infinity(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["channels", image, "--json"]) == 0
    said = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert said["channels"][12]["range"] == [0, None]
    assert "gaze" in said["absent"]


def test_a_custom_layout(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    for layout, names in (("edges, text", ["edges", "text"]), ("saliency", ["saliency"])):
        assert main(["channels", image, "--json", "--layout", layout]) == 0
        assert [c["name"] for c in json.loads(capsys.readouterr().out)["channels"]] == names


def test_without_an_image_the_channels_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["channels"]) == 0
    said = capsys.readouterr().out
    assert "embedding_00" in said
    assert "embedding_07" not in said  # sixteen like lines are one
    assert "sobel_x" in said
    assert main(["channels", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in listed["channels"]][:40] == list(arr_coc.FULL40) == listed["layouts"]["full40"]


def test_notes_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGBA", (20, 20), (200, 0, 0, 90)).save(tmp_path / "a.png")
    assert main(["channels", str(tmp_path / "a.png"), "--layout", "red"]) == 0
    assert "note: transparency blended with white" in capsys.readouterr().out
