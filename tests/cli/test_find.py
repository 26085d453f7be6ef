"""`arr-coc index` and `arr-coc find`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.cli import main
from tests.find.test_index import FAKE, patch

pytest.importorskip("lancedb", reason="the extra `find` is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # of lancedb and pyarrow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for colour in ("red", "green", "blue"):
        patch(tmp_path / "photos" / f"{colour}.png", colour)
    return tmp_path / "photos"


def test_index_then_find(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(folder), "--encoder", FAKE]) == 0
    assert "3 images in" in capsys.readouterr().out
    assert main(["find", str(folder), "the green one", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[1:] == [str(folder / "green.png"), "32,0,64,24"]
    out = tmp_path / "sheet.png"
    assert main(["find", str(folder), "the green one", "--json", "-o", str(out), "--why"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "the green one"
    assert found["found"][0] | {"score": 1} == {
        "image": str(folder / "green.png"), "score": 1, "size": [64, 48], "boxes": [[32, 0, 64, 24]],
    }  # fmt: skip
    with Image.open(out) as sheet:
        assert sheet.width > 300


def test_a_bad_image_is_named_and_the_code_is_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.jpg").write_bytes(b"no image")
    assert main(["index", str(folder), "--encoder", FAKE, "--json"]) == 1
    said = capsys.readouterr()
    assert "skipped" in said.err
    assert "bad.jpg" in said.err
    report = json.loads(said.out)
    assert (report["images"], report["added"], len(report["unreadable"])) == (3, 3, 1)


def test_a_found_image_that_is_gone_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(folder), "--encoder", FAKE])
    (folder / "red.png").unlink()
    assert main(["find", str(folder), "red", "-o", str(tmp_path / "out.png")]) == 1
    assert "index the folder again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["find", "{folder}", "red"], "there is no index"),
        (["find", "{folder}", ""], "expected a question"),
        (["find", "{folder}", "red", "--why"], "expected -o FILE"),
        (["find", "{folder}", "red", "-o", "out.txt"], "use .png or .jpg"),
        (["find", "{folder}/none", "red"], "not a folder"),
        (["index", "{folder}/none"], "not a folder"),
        (["index", "{folder}", "--encoder", "tests.embedding.fake:nothing"], "cannot make the encoder"),
        (["index", "{folder}", "--mode", "native"], "name the encoder"),
        (["index", "{folder}", "--device", "abacus"], "device"),
        (["index", "{folder}", "--ray", "0"], "at least 1 worker"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("{folder}", str(folder)) for word in words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_an_output_that_is_a_found_image_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(folder), "--encoder", FAKE])
    before = (folder / "red.png").read_bytes()
    assert main(["find", str(folder), "red", "-o", str(folder / "red.png")]) == 2
    assert (folder / "red.png").read_bytes() == before
