"""Work that is asked for again and again in the same shape, in one launch: recorded as a CUDA graph, replayed from then on.

For work of many small launches, which take longer than what they do. What it reads beside its inputs has to stay where it is as
long as the recordings do. They are dropped together, never one by one: graphs that were recorded on one stream use memory in common.
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
from arr_coc.texture.kernels.dispatch import on, way
from arr_coc.texture.kernels.recording import captured

OFTEN = 3  # times that a shape comes before it is recorded
STALE = 12  # times that one comes for which there is no room, before all recordings make room for what comes now
SHAPES = 256  # that are counted

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
    """Recordings of at most `kept` shapes, as long as `state` stays the same."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._clear(None)

    def __len__(self) -> int:
        return sum(one is not None for one in self._recorded.values())

    def run(self, state: Hashable, key: Hashable, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """`work(*inputs)`; key: what else it depends on; state: without which no recording is of use any more."""
        # What is kept must be of use to everybody, whatever mode the first one was in.
        with self._lock, on(inputs[0].device), torch.inference_mode(False), torch.no_grad():
            if state != self._state:
                self._clear(state)
            stream = _stream(inputs[0].device)
            key = (key, inputs[0].device, stream, *((one.shape, one.dtype) for one in inputs))
            if key not in self._recorded and self._comes_often(key):
                try:
                    self._recorded[key] = self._record(stream, work, inputs)
                except RuntimeError as error:
                    self._recorded[key] = None
                    warnings.warn(f"work could not be recorded and takes longer ({first_line(error)})", stacklevel=2)
            found = self._recorded.get(key)
            return work(*inputs) if found is None else found.replay(inputs)

    def _comes_often(self, key: Hashable) -> bool:
        """Count a shape that is not recorded: whether it is to be, and there is room."""
        count = self._seen[key] = self._seen.pop(key, 0) + 1
        if len(self._seen) > SHAPES:
            self._seen.popitem(last=False)
        if len(self._recorded) >= self.kept and count >= STALE:
            self._clear(self._state)
        return count >= OFTEN and len(self._recorded) < self.kept

    def _clear(self, state: Hashable) -> None:
        for one in getattr(self, "_recorded", {}).values():
            if one is not None and one.inputs[0].is_cuda:
                torch.cuda.synchronize(one.inputs[0].device)  # it may still be running
        self._state = state
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._recorded: dict[Hashable, Recorded | None] = {}  # None: cannot be
        self._rooms: dict[Hashable, tuple[Any, Any]] = {}  # by stream: its graphs never run at the same time

    def _record(self, stream: Hashable, work: Callable[..., Tensors], inputs: Tensors) -> Recorded:
        mine = tuple(one.clone() for one in inputs)
        if stream not in self._rooms:
            self._rooms[stream] = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        made: list[Tensors] = []
        graph = captured(lambda: made.append(work(*mine)), inputs[0].device, *self._rooms[stream])
        return Recorded(graph, mine, made[-1])


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
