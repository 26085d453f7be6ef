"""Interleaved timing: in every round each task runs once, so that a noisy moment hits all of them and ratios hold."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one task over all rounds."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def best(self) -> float:
        """The quiet moment."""
        return min(self.runs)


def interleave(
    tasks: Mapping[str, Callable[[], object]], rounds: int, after_each: Callable[[], None] = lambda: None
) -> dict[str, Timing]:
    """Run all tasks once to warm up, then `rounds` times in turn."""
    runs: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number > 0:
                runs[name].append((time.perf_counter() - start) * 1e3)
            after_each()
    return {name: Timing(tuple(times)) for name, times in runs.items()}


def machine() -> str:
    """The machine in words, for the head of a table."""
    threads = f"{torch.get_num_threads()} threads"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {threads}{gpu}, Python {platform.python_version()}, torch {torch.__version__}"
