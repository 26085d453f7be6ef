"""Milliseconds per stage, the accelerator's own work included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

STAGES = ("preprocess", "texture", "glance", "encode", "gaze", "assemble", "prefill", "decode")


class Stopwatch:
    """Collects milliseconds by stage. A stage inside another is not counted twice."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stages: dict[str, float] = {}
        self._inner: list[float] = []

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = self.now()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = self.now() - start
            inner = self._inner.pop()
            if self._inner:
                self._inner[-1] += spent
            self.add(name, spent - inner)

    def add(self, name: str, seconds: float) -> None:
        self.stages[name] = self.stages.get(name, 0.0) + seconds * 1e3
