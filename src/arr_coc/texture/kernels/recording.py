"""Work of fixed shape, recorded once as a CUDA graph and replayed in one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels.dispatch import on

_one_at_a_time = threading.RLock()  # a process can record one graph at a time


def captured(
    work: Callable[[], object], device: torch.device, pool: Any = None, aside: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """What `work` launches, as a CUDA graph; it runs three times before, so that everything is compiled.

    pool: memory that graphs share which never run at the same time. aside: the stream to record on, on this device; libraries keep
    memory for each, which graphs use that were recorded there. Other threads may go on with their own work meanwhile.
    """
    if device.type != "cuda":
        raise ArrCocError(f"expected a CUDA device for a graph, got {device}")
    with _one_at_a_time, on(device):
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream() if aside is None else aside
        aside.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(aside):
                for _ in range(3):
                    work()
            current.wait_stream(aside)
            with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(current)  # torch stays on the other one where recording fails
    return graph
