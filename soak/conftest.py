"""Inputs, commands in processes, and a file of figures for docs/reliability.md."""

from __future__ import annotations

import functools
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
    state: str  # files below OUT and its cache that hold what is done


COMMANDS = {
    "train": LongCommand("train DATA --model MODEL -o OUT --steps 60 --pictures 4", read_layer, "checkpoint.pt"),
    "eval": LongCommand(
        "eval DATA --model MODEL --selectors uniform ink --budgets 25% 12.5% --tokens 8 --report OUT --json OUT/report.json",
        read_eval,
        "records.jsonl",
    ),
    "fit-embeddings": LongCommand(
        "fit-embeddings PHOTOS -o OUT/e.safetensors --encoder tests.embedding.fake:make",
        read_projection,
        "e.safetensors.part",
    ),
}


class Workshop:
    """A folder with inputs, in which commands run as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = {
            "DATA": write_data(folder / "data", 24),
            "PHOTOS": write_photos(folder / "photos", 2000),
            "MODEL": write_model(folder / "model"),
        }

    def start(self, name: str, out: Path) -> subprocess.Popen[str]:
        """The command as a process in a session of its own, with a cache of its own next to `out`."""
        out.mkdir(parents=True, exist_ok=True)
        words = [self.inputs.get(word, word.replace("OUT", str(out))) for word in shlex.split(COMMANDS[name].words)]
        environment = os.environ | {
            "XDG_CACHE_HOME": str(out.with_name(f"{out.name}-cache")),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "soak.command", *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def find_state(self, name: str, out: Path) -> list[Path]:
        """Files that hold what an unfinished run has done."""
        places = (out, out.with_name(f"{out.name}-cache"))
        return [path for place in places for path in place.rglob(COMMANDS[name].state)]

    def run(self, name: str, out: Path) -> tuple[int, str, float]:
        """Exit code, stderr and seconds of the whole command."""
        begun = time.monotonic()
        running = self.start(name, out)
        _, said = running.communicate(timeout=600)
        return running.returncode, said, time.monotonic() - begun

    def wait_for_state(self, name: str, out: Path, running: subprocess.Popen[str]) -> float:
        """Seconds until the first state is written, or the process ends."""
        begun = time.monotonic()
        while running.poll() is None and not self.find_state(name, out):
            time.sleep(0.01)
        return time.monotonic() - begun


@dataclass(frozen=True)
class WholeRun:
    """A run that nothing disturbs."""

    result: Any
    before: float  # seconds until it first keeps what is done
    after: float  # seconds from there to its end


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="session")
def whole(workshop: Workshop) -> Callable[[str], WholeRun]:
    """Runs that nothing disturbs, by the command's name."""

    @functools.cache
    def run(name: str) -> WholeRun:
        out = workshop.folder / "whole" / name
        running = workshop.start(name, out)
        before, begun = workshop.wait_for_state(name, out, running), time.monotonic()
        _, said = running.communicate(timeout=600)
        assert running.returncode == 0, said
        return WholeRun(COMMANDS[name].read_result(out), before, time.monotonic() - begun)

    return run


def write_figures(name: str, values: dict[str, Any]) -> None:
    """Append one line of figures to out/soak/NAME.jsonl."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    with (FIGURES / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(values) + "\n")
