"""Work of fixed shape, recorded once as a CUDA graph and replayed in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from arr_coc.errors import ArrCocError


def captured(work: Callable[[], object], device: torch.device, pool: Any = None) -> torch.cuda.CUDAGraph:
    """What `work` launches, as a CUDA graph; it runs three times before, so that everything is compiled.

    pool: memory that graphs share which never run at the same time. Other threads may go on with their own work meanwhile.
    """
    if device.type != "cuda":
        raise ArrCocError(f"expected a CUDA device for a graph, got {device}")
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()
    return graph
