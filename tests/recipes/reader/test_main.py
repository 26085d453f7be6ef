"""The command: what its defaults are, what it refuses before any work, and short runs through all of it."""

import functools
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
from PIL import Image

from recipes.reader import __main__ as command
from recipes.reader.model import TINY
from recipes.reader.recipe import STEP_KINDS, TINY_STEP_KINDS, Settings
from recipes.reader.train import ReaderTrainer

FONTS = str(Path(matplotlib.get_data_path(), "fonts", "ttf"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def blank_receipts(tmp_path: Path) -> Path:
    """Two blank receipts."""
    folder = tmp_path / "receipts"
    folder.mkdir()
    records = {}
    for name in ("a", "b"):
        Image.new("L", (400, 900), 255).save(folder / f"{name}.jpg")
        records[name] = {"fields": {"total": "9.00"}, "lines": [["TOTAL 9.00", [40, 60, 200, 84]]]}
    (folder / "recs.json").write_text(json.dumps(records))
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a run that takes a second."""
    monkeypatch.setattr(command, "STEP_KINDS", TINY_STEP_KINDS)
    monkeypatch.setattr(command, "ReaderTrainer", functools.partial(ReaderTrainer, shape=TINY))
    monkeypatch.setattr(command, "receipt_sheets", lambda receipts, held_out=False: [])
    monkeypatch.setattr(command, "rendered_sheets", lambda library, count: [])
    return ["--device", "cpu", "--eager", "--workers", "0", "--schedule-seconds", "1"]


def folders(blank_receipts: Path) -> list[str]:
    return ["--fonts", FONTS, "--receipts", str(blank_receipts), "--out", str(blank_receipts.parent / "run")]


def test_three_folders_are_the_whole_recipe(blank_receipts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, Any] = {}

    def train(trainer: Any, library: Any, sheets: Any, out: Path, kinds: Any, journal: Any) -> None:
        called.update(settings=trainer.settings, sheets=sheets, kinds=kinds)

    monkeypatch.setattr(command, "check_device", lambda device: None)
    monkeypatch.setattr(command, "ReaderTrainer", lambda settings, weights, world: SimpleNamespace(settings=settings))
    monkeypatch.setattr(command, "train", train)
    command.main(folders(blank_receipts))
    assert called["settings"] == Settings(
        seconds=None, schedule_seconds=1380, finish=False, lr=2e-3, workers=15, uses=3, device="cuda", compiled=True
    )
    assert called["kinds"] == STEP_KINDS
    assert called["sheets"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--frozen-encoder"], "give --start-from"),
        (["--photos", "/nowhere"], "expected a folder with .jpg photographs"),
        (["--finish"], "--finish brings the schedule to its end within --seconds"),
        (["--tensorboard"], "pip install 'arr-coc[training]'"),
        (["--device", "nowhere"], "there is no device"),
        (["--device", "cpu", "--fonts", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_is_one_sentence_before_the_work(
    blank_receipts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    sentence: str,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit, match="2"):
        command.main(folders(blank_receipts) + more)
    assert sentence in capsys.readouterr().err
    assert not (blank_receipts.parent / "run").exists()


def test_a_run_from_the_command_line(
    blank_receipts: Path, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([*folders(blank_receipts), *small, "--tensorboard"])
    assert not capsys.readouterr().err  # no bar where there is no terminal
    run = blank_receipts.parent / "run"
    assert (run / "reader" / "model.safetensors").is_file()
    assert (run / "checkpoint.pt").is_file()
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("to_file", [True, False])
def test_a_progress_bar_replaces_the_lines_on_a_terminal_only(
    blank_receipts: Path, small: list[str], monkeypatch: pytest.MonkeyPatch, to_file: bool
) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", file if to_file else terminal)
    monkeypatch.setattr("recipes.reader.recipe.LOG_EVERY", 0.2)
    command.main(folders(blank_receipts) + small)
    assert "step " in terminal.getvalue()
    assert ("answer_loss" in file.getvalue()) == to_file
    assert "answer_loss" not in terminal.getvalue()
    assert "training for" in (file if to_file else terminal).getvalue()
