"""Times on a GPU, by marks in its own stream; and how fast it copies, which is what everything else is measured against."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from arr_coc.errors import ArrCocError

WARM = 5  # runs before anything is timed: kernels are compiled, memory is there


@dataclass(frozen=True)
class Timed:
    """Milliseconds of one piece of work over all repetitions, and the most memory it took beyond what was there."""

    runs: tuple[float, ...]
    peak: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """From the first quartile to the third."""
        if len(self.runs) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.runs, n=4)
        return third - first


def check_cuda() -> None:
    """A clear sentence where there is no GPU."""
    if not torch.cuda.is_available():
        raise ArrCocError("expected a CUDA device to measure, and torch sees none: run this on a machine with a GPU")


def timed(work: Callable[[], object], repeats: int = 50) -> Timed:
    """Run `work` a few times to warm up, then `repeats` times, each between two marks."""
    for _ in range(WARM):
        work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in marks:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return Timed(tuple(start.elapsed_time(end) for start, end in marks), peak)


def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / (timed(lambda: target.copy_(source), 20).median / 1e3)
