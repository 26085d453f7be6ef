"""Work that is asked for again in the same shape, in one launch: recorded as a CUDA graph the second time, replayed from then on.

For work of many small launches, which take longer than what they do. Recordings need memory for their inputs, and share what
they need on the way.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.errors import first_line
from arr_coc.kernels.dispatch import on, way
from arr_coc.kernels.recording import captured

Tensors = tuple[torch.Tensor, ...]


def recordable(*tensors: torch.Tensor) -> bool:
    """Whether work on these can be recorded: on a GPU, without gradients, unless `ARR_COC_KERNELS` or `using` says torch."""
    return (
        all(one.is_cuda for one in tensors)
        and way() != "torch"
        and not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors))
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
    )


@dataclass(frozen=True, eq=False)
class Recorded:
    """Work in one shape: where its inputs are to be put, and where its results appear."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    results: Tensors

    def replay(self, inputs: Tensors) -> Tensors:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return tuple(one.clone() for one in self.results)  # the next replay writes over them


class Replays:
    """At most `kept` recordings and shapes that were seen once, the last used last."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._known: OrderedDict[Hashable, Recorded | bool] = (
            OrderedDict()
        )  # True: seen once; False: cannot be recorded
        self._pools: dict[int, Any] = {}  # by stream: what runs on one never runs at the same time
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(isinstance(one, Recorded) for one in self._known.values())

    def run(self, key: Hashable, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """`work(*inputs)`; `key`: what else it depends on."""
        # What is kept must be of use to everybody, whatever mode the first one was in.
        with self._lock, on(inputs[0].device), torch.inference_mode(False), torch.no_grad():
            stream = torch.cuda.current_stream().cuda_stream
            key = (key, inputs[0].device, stream, *((one.shape, one.dtype) for one in inputs))
            if key not in self._known:
                self._known[key] = True
                while len(self._known) > self.kept:
                    self._known.popitem(last=False)
                return work(*inputs)
            self._known.move_to_end(key)
            if self._known[key] is True:
                try:
                    self._known[key] = self._record(stream, work, inputs)
                except RuntimeError as error:
                    self._known[key] = False
                    warnings.warn(f"work could not be recorded and takes longer ({first_line(error)})", stacklevel=2)
            found = self._known[key]
            return found.replay(inputs) if isinstance(found, Recorded) else work(*inputs)

    def _record(self, stream: int, work: Callable[..., Tensors], inputs: Tensors) -> Recorded:
        mine = tuple(one.clone() for one in inputs)
        pool = self._pools.setdefault(stream, torch.cuda.graph_pool_handle())
        made: list[Tensors] = []
        graph = captured(lambda: made.append(work(*mine)), inputs[0].device, pool)
        return Recorded(graph, mine, made[-1])
