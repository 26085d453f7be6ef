"""Ctrl-C ends a long command with code 130 and keeps its work; the same command then gives the result of a whole run."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc import ArrCocLayer, Projection
from arr_coc.cli import main
from arr_coc.vlm.model import VLM
from tests.cli.conftest import without_progress, write_data, write_photos
from tests.embedding.fake import Colours


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_eval(folder: Path) -> Any:
    """Everything in the records but times and memory."""
    report = json.loads((folder / "report.json").read_text())
    timed = ("ms", "time", "faster", "peak_mb")
    return [
        {key: value for key, value in record.items() if not any(word in key for word in timed)}
        for record in report["records"]
    ]


def read_layer(folder: Path) -> Any:
    return {name: weights.tolist() for name, weights in ArrCocLayer.from_pretrained(folder).state_dict().items()}


def read_projection(folder: Path) -> Any:
    return Projection.load(folder / "e.safetensors").identity


@dataclass(frozen=True)
class LongCommand:
    command: str  # DATA, PHOTOS, MODEL and OUT are replaced
    interrupted_in: tuple[type, str]  # a method that every step calls
    calls: int  # it is interrupted in this call
    read_result: Callable[[Path], Any]
    on_interrupt: str  # a part of the message
    on_resume: str
    is_kept: Callable[[Path], bool]  # whether OUT holds what an interrupted run should leave


COMMANDS = {
    "eval": LongCommand(
        "eval DATA --model MODEL --selectors uniform --budgets 25% --tokens 2 --report OUT --json OUT/report.json",
        (VLM, "look"),
        3,  # the first call is the warm-up
        read_eval,
        "interrupted after 1 of 4 pictures: they are kept in",
        "resumed an interrupted run (1 pictures were done)",
        lambda out: names(out) == [],  # it is in the cache folder
    ),
    "train": LongCommand(
        "train DATA --model MODEL -o OUT --steps 3 --pictures 2",
        (torch.Tensor, "backward"),
        2,
        read_layer,
        "interrupted: the state is kept, and the same command resumes",
        "3 steps in",
        lambda out: bool(read_layer(out)),
    ),
    "fit-embeddings": LongCommand(
        "fit-embeddings PHOTOS -o OUT/e.safetensors --encoder tests.embedding.fake:make",
        (Colours, "encode"),
        30,
        read_projection,
        "interrupted: what is done is kept in",
        "resumed an interrupted run (24 pictures were done)",
        lambda out: names(out) == ["e.safetensors.part"],
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_command_continues(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = COMMANDS[name]
    inputs = {"DATA": write_data(tmp_path / "data", 4), "PHOTOS": write_photos(tmp_path / "photos", 45), "MODEL": model}

    owner, method = long.interrupted_in
    real = getattr(owner, method)

    def run(out: str, interrupt_at: int | None = None) -> tuple[int, int]:
        """The exit code, and how often the method was called."""
        calls = []

        def counted(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)
            return real(*args, **options)

        (tmp_path / out).mkdir(exist_ok=True)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{out}"))
        words = [inputs.get(word, word.replace("OUT", str(tmp_path / out))) for word in shlex.split(long.command)]
        with monkeypatch.context() as patched:
            patched.setattr(owner, method, counted)
            return main(words), len(calls)

    code, calls_of_whole = run("whole")
    assert code == 0
    capsys.readouterr()
    code, _ = run("parts", interrupt_at=long.calls)
    assert code == 130
    captured = capsys.readouterr()
    assert long.on_interrupt in captured.out + captured.err
    assert "Traceback" not in captured.err
    assert without_progress(captured.err).count("\n") <= 1
    assert long.is_kept(tmp_path / "parts")
    code, calls_of_rest = run("parts")
    assert code == 0
    captured = capsys.readouterr()
    assert long.on_resume in captured.out + captured.err
    assert calls_of_rest < calls_of_whole  # it did not start from the beginning
    assert long.read_result(tmp_path / "parts") == long.read_result(tmp_path / "whole")
    assert names(tmp_path / "parts") == names(tmp_path / "whole")
    assert run("parts")[0] == 0
    assert "interrupted" not in capsys.readouterr().err  # the next run has nothing left to resume
