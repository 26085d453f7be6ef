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


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_layout_of_ones_own(image: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["channels", "nowhere.jpg"], "there is no file 'nowhere.jpg'"),
        (["channels", "IMAGE", "--layout", "full39"], "did you mean 'full40'"),
        (["channels", "IMAGE", "--layout", "edges,txt"], "did you mean 'text'"),
        (["channels", "IMAGE", "-o", "no/such/folder/sheet.png"], "there is no folder"),
        (["channels", "IMAGE", "-o", "sheet.docx"], "use .png or .jpg"),
        (["channels", "IMAGE", "-o", "sheet.psd"], "use .png or .jpg"),
        (["channels", "IMAGE", "-o", "IMAGE"], "overwrite the image itself"),
        (["channels", "IMAGE", "--layout", "edgs"], "did you mean 'edges'"),
        (["channels", "IMAGE", "--layout", ","], "at least one channel"),
        (["channels", "IMAGE", "--layout", ""], "there is no layout ''"),
        (["channels", ""], "empty string"),
        (["bench", "texture", "--threads", "0"], "--threads of at least 1"),
        (["channels", "IMAGE", "-o", "."], "is a folder"),
        (["channels", "IMAGE", "--max-side", "0"], "max_side"),
        (["channels", "IMAGE", "--text", "tesseract"], "there is no text detector"),
        (["channels", "-o", "sheet.png"], "a sheet needs an image"),
        (["bench", "texture", "--rounds", "0"], "at least 1 round"),
        (["bench", "texture", "--sizes", "4"], "sizes from 16 px"),
        (["bench", "texture", "--device", "tpu"], "no device 'tpu'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    image: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([image if word == "IMAGE" else word for word in arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.startswith("arr-coc: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize("arguments", [[], ["chanels"], ["bench", "speed"], ["channels", "--max-side", "many"]])
def test_what_argparse_refuses_is_exit_code_2_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2


def test_a_text_file_named_jpg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.jpg").write_text("Dear reader")
    assert main(["channels", str(tmp_path / "letter.jpg")]) == 2
    assert "not an image" in capsys.readouterr().err


def test_an_existing_sheet_is_kept_when_the_image_is_bad(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    sheet.write_bytes(b"precious")
    assert main(["channels", str(tmp_path / "nowhere.png"), "-o", str(sheet)]) == 2
    assert sheet.read_bytes() == b"precious"


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
    (tmp_path / "file").write_text("")
    assert main(["tour", "-o", str(tmp_path / "file" / "out")]) == 2


def test_as_a_process(image: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "arr_coc.cli", "channels", image, "--layout", "red", "--json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["channels"][0]["name"] == "red"
    bad = subprocess.run([sys.executable, "-m", "arr_coc.cli", "channels", "nowhere"], capture_output=True, text=True)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


def test_strange_file_names_and_full_disks(tmp_path: Path) -> None:
    source, sheet = tmp_path / "straße 图.png", tmp_path / "übersicht.png"
    arr_coc.pictures.scene().resize((60, 40)).save(source)
    command = [sys.executable, "-m", "arr_coc.cli", "channels", str(source), "--layout", "red"]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run([*command, "-o", str(sheet)], capture_output=True, text=True, env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert sheet.exists()
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered)
        assert done.returncode == 2
        assert done.stderr.startswith("arr-coc: cannot write the output")
        assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_early() -> None:
    command = [sys.executable, "-m", "arr_coc.cli", "channels", "--json"]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as done:
        assert done.stdout
        assert done.stderr
        done.stdout.close()  # before it has written anything
        assert done.stderr.read() == ""
    assert done.returncode == 1
