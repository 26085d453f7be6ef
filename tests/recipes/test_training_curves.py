"""The picture of training logs: what is read from them, and that it is drawn."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training_curves.py"


@pytest.fixture(scope="module")
def curves() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("training_curves", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["training_curves"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["training_curves"]


def logged(step: int, answer: float) -> dict[str, Any]:
    return {"minutes": step / 100, "step": step, "answer_loss": answer, "cell_loss": answer / 2, "cell_accuracy": 0.5}


def measured(step: int, exact: float) -> dict[str, Any]:
    report = {f"receipts: {name}": {"exact": exact, "count": 39} for name in ("total", "date", "company", "address")}
    report |= {
        "receipts, new phrasing: total": {"exact": 0.0, "count": 39},
        "rendered form: field": {"exact": 1.0, "count": 30},
        "rendered form: place": {"exact": 0.0, "count": 10},
        "rendered form: of these, not found": {"exact": 0.0, "count": 10},
        "rendered notice: sign": {"exact": 0.25, "count": 4},
    }
    return {"minutes": step / 100, "step": step, "measured": report}


def write(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_curves_are_those_of_the_steps_that_were_kept(curves: ModuleType, tmp_path: Path) -> None:
    entries = [
        logged(50, 4.0),
        logged(100, 2.0),
        logged(150, 9.0),
        measured(160, 0.9),
        logged(120, 1.0),
        measured(130, 0.5),
    ]
    log = curves.read(write(tmp_path / "log.jsonl", entries), "a run")
    assert log.losses["answer_loss"] == ([0.5, 1.0, 1.2], [4.0, 2.0, 1.0])
    assert log.accuracy["total"] == ([1.3], [0.5])
    assert log.accuracy["drawings"] == ([1.3], [(30 / 40 + 0.25) / 2])


def test_the_line_lies_among_the_points(curves: ModuleType) -> None:
    minutes = np.linspace(0, 10, 200)
    values = np.exp(-minutes / 4) * np.where(np.arange(200) % 2, 2.0, 0.5)
    middle = curves.smooth((list(minutes), list(values)))[20:-20]
    np.testing.assert_allclose(middle, np.exp(-minutes / 4)[20:-20], rtol=0.05)


def test_several_logs_are_drawn_over_each_other(curves: ModuleType, tmp_path: Path) -> None:
    entries = [logged(50, 4.0), measured(60, 0.3), logged(100, 2.0), logged(150, 0.0), measured(160, 0.9)]
    logs = [write(tmp_path / name / "log.jsonl", entries) for name in ("sparse", "dense")]
    curves.main([*map(str, logs), "-o", str(tmp_path / "training.png")])
    with Image.open(tmp_path / "training.png") as picture:
        assert picture.width > 1500
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 50
    figure = curves.draw([curves.read(path, path.parent.name) for path in logs])
    losses, accuracy = figure.axes
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ["answers", "cells", "sparse", "dense"]
    fields = ["total", "date", "company", "address", "drawings"]
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == fields
    assert sum(len(line.get_xdata()) == 2 for line in accuracy.get_lines()) == 10
    assert len(curves.draw([curves.read(write(tmp_path / "short.jsonl", entries[:1]), "")]).axes) == 1


@pytest.mark.parametrize(
    ("text", "sentence"), [("no log", "one JSON object a line"), ("", "expected losses"), (None, "No such file")]
)
def test_what_is_no_log_is_refused(
    curves: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        curves.main([str(tmp_path / "log.jsonl"), "-o", str(tmp_path / "training.png")])
    assert sentence in capsys.readouterr().err
