"""The command line as people and scripts use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    said = capsys.readouterr().out
    for words in ("channels", "bench", "tour", "demo", "start here"):
        assert words in said


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


def test_as_a_process_with_unicode_file_names_and_a_full_disk(tmp_path: Path) -> None:
    source, sheet = tmp_path / "straße 图.png", tmp_path / "übersicht.png"
    arr_coc.pictures.scene().resize((60, 40)).save(source)
    command = [sys.executable, "-m", "arr_coc.cli", "channels", str(source), "--layout", "red", "--json"]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run([*command, "-o", str(sheet)], capture_output=True, text=True, env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert sheet.exists()
    assert json.loads(done.stdout)["channels"][0]["name"] == "red"
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered)
        assert done.returncode == 2
        assert done.stderr.startswith("arr-coc: cannot write the output")
        assert done.stderr.count("\n") == 1


def test_a_closed_pipe_is_not_an_error_message() -> None:
    command = [sys.executable, "-m", "arr_coc.cli", "channels", "--json"]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as done:
        assert done.stdout
        assert done.stderr
        done.stdout.close()  # before it has written anything
        assert done.stderr.read() == ""
    assert done.returncode == 1
