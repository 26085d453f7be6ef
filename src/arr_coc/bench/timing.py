"""Interleaved timing: each task runs once per round, so that a busy moment hits all of them and ratios hold."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

_MEMORY_PROBE = """
import torch
from pathlib import Path
from arr_coc import TextureArray, pictures

def status(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) / 1024

TextureArray.from_image(pictures.scene().resize((64, 64))).tensor()
image = pictures.scene().resize(({side}, {side}))
Path("/proc/self/clear_refs").write_text("5")  # reset the peak
before = status("VmRSS")
texture = TextureArray.from_image(image, dtype=torch.{dtype}, max_side=None)
block = texture.tensor()
print(status("VmHWM") - before)
"""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one task over all rounds."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def best(self) -> float:
        return min(self.runs)


@dataclass(eq=False)
class RoundTimes:
    """Milliseconds by name, one value per round."""

    runs: dict[str, list[float]] = field(default_factory=dict)
    peak: int = 0  # bytes of accelerator memory beyond the weights

    def add(self, times: Mapping[str, float]) -> None:
        """Append one round."""
        for name, milliseconds in times.items():
            self.runs.setdefault(name, []).append(milliseconds)

    def median(self, name: str) -> float:
        return statistics.median(self.runs[name])

    def best(self, name: str) -> float:
        return min(self.runs[name])

    def ratio(self, one: str, other: str) -> float:
        """The median of the rounds' ratios of `one` to `other`."""
        return statistics.median(a / b for a, b in zip(self.runs[one], self.runs[other], strict=True))


def time_ms(task: Callable[[], object]) -> float:
    """Milliseconds that a task takes, with its work on the GPU."""
    start = time.perf_counter()
    task()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def interleave(
    tasks: Mapping[str, Callable[[], object]], rounds: int, after_each: Callable[[], None] = lambda: None
) -> dict[str, Timing]:
    """Run all tasks once to warm up, then `rounds` times in turn."""
    times = RoundTimes()
    for number in range(rounds + 1):
        for name, task in tasks.items():
            milliseconds = time_ms(task)
            if number > 0:
                times.add({name: milliseconds})
            after_each()
    return {name: Timing(tuple(times.runs.get(name, ()))) for name in tasks}


def machine() -> str:
    """A description of the machine for the head of a table."""
    threads = f"{torch.get_num_threads()} threads"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {threads}{gpu}, Python {platform.python_version()}, torch {torch.__version__}"


def peak_megabytes(side: int, dtype: str) -> float | None:
    """Peak MB of a full40 texture of a square image and its tensor, in a fresh process; None without Linux's /proc."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    probe = _MEMORY_PROBE.format(side=side, dtype=dtype)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None
