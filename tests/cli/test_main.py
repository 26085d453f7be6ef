"""The command `arr-coc` as a process: help, file names, a full disk and a closed pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import arr_coc
from arr_coc.cli import main
from arr_coc.cli import progress as progress_module


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


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "start here" in capsys.readouterr().out


def test_help_loads_no_torch_and_prints_single_percent_signs() -> None:
    code = (
        "import sys, io, contextlib\n"
        "from arr_coc.cli import build_parser\n"
        "parser = build_parser()\n"
        "text = parser.format_help() + ''.join(p.format_help() for p in parser._subparsers._group_actions[0].choices.values())\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules, 'help is slow'\n"
        "assert '%%' not in text, [line for line in text.splitlines() if '%%' in line]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            PermissionError(13, "Permission denied", "/etc/shadow"),
            "cannot read or write '/etc/shadow': Permission denied",
        ),
        (OSError(28, "No space left on device"), "cannot write the output: No space left on device"),
        (
            ConnectionResetError(104, "Connection reset by peer"),
            "the system refused a request: Connection reset by peer",
        ),
    ],
)
def test_a_stray_error_of_the_system_is_named_for_what_it_is(
    error: OSError, sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("arr_coc.cli.tour.run", fail)
    monkeypatch.setattr("arr_coc.cli._discard_output", lambda: None)
    assert main(["tour"]) == 2
    assert capfd.readouterr().err == f"arr-coc: {sentence}\n"


def test_progress_is_printed_line_by_line_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.05)
    with progress_module.ProgressReport() as bar:
        task = bar.add_task("encoding", total=1.0)
        bar.update(task, completed=1.0)
        bar.update(task, completed=0.25, description="step 3")  # the next phase: its time starts again
        assert not bar.tasks[0].finished
        time.sleep(0.2)
    said = capsys.readouterr().err
    assert "arr-coc: step 3, 25% (0 s)\n" in said
    with progress_module.ProgressReport(shown=False) as bar:
        bar.add_task("encoding", total=1.0)
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
