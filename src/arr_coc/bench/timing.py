"""Interleaved timing: each task runs once per round, so that a busy moment hits all of them and ratios hold."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

_MEMORY_PROBE = """
import torch
from arr_coc import TextureArray, pictures
from arr_coc.evaluation.measure import PeakMemory

TextureArray.from_image(pictures.scene().resize((64, 64))).tensor()
image = pictures.scene().resize(({side}, {side}))
memory = PeakMemory(torch.device("cpu"))
before = memory.peak()
texture = TextureArray.from_image(image, dtype=torch.{dtype}, max_side=None)
block = texture.tensor()
print(memory.peak() - before)
"""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one task in each round, and the peak of additional GPU memory in bytes."""

    runs: tuple[float, ...]
    peak: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def best(self) -> float:
        return min(self.runs)

    @property
    def spread(self) -> float:
        """The interquartile range."""
        if len(self.runs) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.runs, n=4)
        return third - first

    def ratio(self, other: Timing) -> float:
        """The median of the rounds' ratios to another task."""
        return statistics.median(a / b for a, b in zip(self.runs, other.runs, strict=True))


@dataclass(frozen=True)
class Goal:
    """A figure (None: not measured) with the bound that it should keep."""

    what: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def bound(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"

    @property
    def reached(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.at_most if self.at_most is not None else self.value >= (self.at_least or 0.0)


def by_name(rounds: Sequence[Mapping[str, float]]) -> dict[str, Timing]:
    """Timings from the milliseconds by name of each round."""
    return {name: Timing(tuple(times[name] for times in rounds)) for name in rounds[0]}


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
    found = []
    for _ in range(rounds + 1):
        times = {}
        for name, task in tasks.items():
            times[name] = time_ms(task)
            after_each()
        found.append(times)
    return by_name(found[1:])


def machine() -> str:
    """A description of the machine for the head of a table."""
    threads = f"{torch.get_num_threads()} threads"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {threads}{gpu}, Python {platform.python_version()}, torch {torch.__version__}"


def peak_megabytes(side: int, dtype: str) -> float | None:
    """Peak MB of a full40 texture of a square image and its tensor, in a fresh process; None without Linux's /proc."""
    probe = _MEMORY_PROBE.format(side=side, dtype=dtype)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None
