"""Inputs, commands in processes, and a file of figures for docs/reliability.md."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import write_data, write_model, write_photos
from tests.cli.test_interrupt import read_eval, read_layer, read_projection

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "out" / "soak"


@dataclass(frozen=True)
class LongCommand:
    """A command that can be resumed. DATA, PHOTOS, MODEL and OUT are replaced by paths."""

    words: str
    read_result: Callable[[Path], Any]


COMMANDS = {
    "train": LongCommand("train DATA --model MODEL -o OUT --steps 40 --pictures 4", read_layer),
    "eval": LongCommand(
        "eval DATA --model MODEL --selectors uniform ink --budgets 25% --tokens 4 --report OUT --json OUT/report.json",
        read_eval,
    ),
    "fit-embeddings": LongCommand(
        "fit-embeddings PHOTOS -o OUT/e.safetensors --encoder tests.embedding.fake:make", read_projection
    ),
}


class Workshop:
    """A folder with inputs, in which commands run as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = {
            "DATA": write_data(folder / "data", 24),
            "PHOTOS": write_photos(folder / "photos", 400),
            "MODEL": write_model(folder / "model"),
        }

    def start(self, name: str, out: Path, **options: Any) -> subprocess.Popen[str]:
        """The command as a process in a session of its own, with a cache of its own next to `out`."""
        out.mkdir(parents=True, exist_ok=True)
        words = [self.inputs.get(word, word.replace("OUT", str(out))) for word in shlex.split(COMMANDS[name].words)]
        environment = os.environ | {
            "XDG_CACHE_HOME": str(out.with_name(f"{out.name}-cache")),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "arr_coc.cli", *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def run(self, name: str, out: Path) -> tuple[int, str, float]:
        """Exit code, stderr and seconds of the whole command."""
        begun = time.monotonic()
        running = self.start(name, out)
        _, said = running.communicate(timeout=600)
        return running.returncode, said, time.monotonic() - begun


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="session")
def whole(workshop: Workshop) -> Callable[[str], tuple[Any, float]]:
    """The result of a run that nothing disturbs, and its seconds."""
    known: dict[str, tuple[Any, float]] = {}

    def result(name: str) -> tuple[Any, float]:
        if name not in known:
            out = workshop.folder / "whole" / name
            code, said, seconds = workshop.run(name, out)
            assert code == 0, said
            known[name] = COMMANDS[name].read_result(out), seconds
        return known[name]

    return result


def write_figures(name: str, values: dict[str, Any]) -> None:
    """Append one line of figures to out/soak/NAME.jsonl."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    with (FIGURES / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(values) + "\n")
