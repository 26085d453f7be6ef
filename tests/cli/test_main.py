"""The command `arr-coc` as a process: help, file names, a full disk and a closed pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import arr_coc
from arr_coc.cli import main


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    said = capsys.readouterr().out
    for words in ("channels", "bench", "tour", "demo", "start here"):
        assert words in said


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
