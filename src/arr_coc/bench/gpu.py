"""What `arr-coc bench gpu` finds: every stage with its median, spread, bytes and memory, and the goals beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.bench.events import Timed, check_cuda, copy_bandwidth, timed
from arr_coc.errors import ArrCocError

REFERENCE_REPEATS = 10  # torch alone takes longer, and is only there to compare with


@dataclass(frozen=True)
class Measured:
    """One stage."""

    name: str
    time: Timed
    reference: Timed | None
    bytes: int
    bandwidth: float  # bytes a second of a copy

    @property
    def share(self) -> float | None:
        """Of the copy's bandwidth."""
        return self.bytes / (self.time.median / 1e3) / self.bandwidth if self.bytes else None

    def record(self) -> dict[str, Any]:
        return {
            "stage": self.name, "median_ms": round(self.time.median, 4), "spread_ms": round(self.time.spread, 4),
            "reference_ms": None if self.reference is None else round(self.reference.median, 4),
            "bytes": self.bytes, "share_of_copy": None if self.share is None else round(self.share, 4),
            "peak_mb": round(self.time.peak / 1e6, 1),
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """One size and batch."""

    side: int
    batch: int
    bandwidth: float
    stages: tuple[Measured, ...]
    texture_bytes: int  # of one image, half precision, with its pyramid

    def median(self, start: str) -> float | None:
        """The first stage whose name starts so: milliseconds."""
        return next((one.time.median for one in self.stages if one.name.startswith(start)), None)


@dataclass(frozen=True)
class Goal:
    what: str
    value: float | None
    most: float

    @property
    def reached(self) -> bool | None:
        return None if self.value is None else self.value <= self.most


def measure(
    side: int,
    batch: int,
    repeats: int = 50,
    *,
    references: bool = True,
    tick: Callable[[str], None] = lambda name: None,
) -> Report:
    """Time every stage for `batch` square pictures of `side` px; `tick` is told each stage before it is timed."""
    check_cuda()
    from arr_coc.bench.gpu_stages import Bench

    try:
        bandwidth = copy_bandwidth()
        bench = Bench(side, batch)
        found = []
        for stage in bench.stages():
            tick(stage.name)
            time = timed(stage.work, repeats)
            by_torch = None
            if references and stage.reference is not None:
                by_torch = timed(stage.reference, REFERENCE_REPEATS)
            found.append(Measured(stage.name, time, by_torch, stage.bytes, bandwidth))
    except torch.cuda.OutOfMemoryError:
        raise ArrCocError(
            f"expected room on the GPU for {batch} pictures of {side} px, and there is less: use a smaller --batch or --size"
        ) from None
    return Report(side, batch, bandwidth, tuple(found), bench.whole.nbytes // batch)


def goals(report: Report) -> list[Goal]:
    """What is hoped for at 1024 px, one picture at a time; milliseconds, and MiB in the last."""
    return [
        Goal("full40 without encoder and text engine", report.median("full40, graph"), 0.5),
        Goal("pyramid, 5 levels, 40 channels", report.median("pyramid"), 0.12),
        Goal("273 positions x 40 channels, trilinear", report.median("273 samples"), 0.02),
        Goal("encoder, compression, upsampling", report.median("encoder"), 1.3),
        Goal("image to allocation, encoder included", report.median("image to allocation"), 2.5),
        Goal("another question on the same image", report.median("another question"), 0.1),
        Goal("next video frame, flow included", report.median("next video frame"), 0.8),
        Goal("memory an image, half precision, with pyramid, MiB", report.texture_bytes / 2**20, 110),
    ]
