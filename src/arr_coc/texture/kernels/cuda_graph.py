"""CUDA graphs: capture work of fixed shape once, replay it in one launch.

For work of many small launches, where launching takes longer than computing. Everything that the work reads apart from
its inputs must stay at its address as long as the graph does.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from arr_coc.errors import ArrCocError, first_line
from arr_coc.texture.kernels.dispatch import device_guard, requested_backend

CAPTURE_AFTER = 3  # times that a shape comes before it is captured
EVICT_AFTER = 12  # times that a shape comes to a full cache before the cache is cleared for it
MAX_COUNTED = 256  # shapes that are counted

Tensors = tuple[torch.Tensor, ...]

_capture_lock = threading.RLock()  # a process can capture one graph at a time


def capture_graph(
    work: Callable[[], object], device: torch.device, pool: Any = None, stream: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """Capture what `work` launches. It runs three times before, so that everything is compiled.

    pool: memory shared by graphs that never run at the same time. stream: the side stream to capture on, of this device;
    libraries keep a workspace per stream, and the graphs captured on it use that. Other threads may go on with their work.
    """
    if device.type != "cuda":
        raise ArrCocError(f"expected a CUDA device for a graph, got {device}")
    with _capture_lock, device_guard(device):
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream() if stream is None else stream
        pool = torch.cuda.graph_pool_handle() if pool is None else pool
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                for _ in range(3):
                    work()
            current.wait_stream(stream)
            capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
            with _keep_generator(device), _keep_allocator(device, pool), capture:
                work()
        finally:
            torch.cuda.set_stream(current)  # torch stays on the side stream where the capture fails
    return graph


@contextmanager
def _keep_generator(device: torch.device) -> Iterator[None]:
    """Inside, a capture may fail. Torch then leaves the device's random numbers as if they were still being captured, and
    every later use of them raises "Offset increment outside graph capture"; so they get the state from before."""
    generator: Any = torch.cuda.default_generators[_index(device)]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(before)
        raise


@contextmanager
def _keep_allocator(device: torch.device, pool: Any) -> Iterator[None]:
    """Inside, a capture into `pool` may fail. Torch then leaves the allocator as if it went on: the pool is never freed, no
    other graph can be captured into it, and emptying the cache may raise. So the allocation to the pool is ended here."""
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # it has ended already, or had not begun
            torch._C._cuda_endAllocateToPool(_index(device), pool)
            torch._C._cuda_releasePool(_index(device), pool)
        raise


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def can_capture(*tensors: torch.Tensor) -> bool:
    """Whether work on these can be captured: on a GPU, without gradients, unless the backend is torch."""
    return (
        all(one.is_cuda for one in tensors)
        and requested_backend() != "torch"
        and not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors))
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
    )


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph for one shape, with its input and output buffers."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    outputs: Tensors
    work: Callable[..., Tensors] | None  # holds the memory that the graph uses besides

    def replay(self, inputs: Tensors) -> Tensors:
        for buffer, given in zip(self.inputs, inputs, strict=True):
            buffer.copy_(given)
        self.graph.replay()
        return tuple(one.clone() for one in self.outputs)  # the next replay overwrites them


class GraphCache:
    """Graphs of at most `capacity` shapes, valid as long as `state` stays the same.

    They are dropped together, never one by one: graphs captured on one stream share memory.
    """

    def __init__(self, capacity: int, keep_work: bool = True) -> None:
        """`keep_work`: whether graphs hold the work that they were captured from, and so all memory that it holds. Without, a
        cache can be freed together with an owner whose memory the work uses."""
        self.capacity, self._keep_work = capacity, keep_work
        self._lock = threading.Lock()
        self._clear(None)

    def __len__(self) -> int:
        return sum(one is not None for one in self._graphs.values())

    def run(self, state: Hashable, key: Hashable, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """`work(*inputs)`; key: what else the result depends on; a new `state` makes all graphs invalid."""
        # A cached graph serves callers in any autograd mode, so it is captured outside of all.
        with self._lock, device_guard(inputs[0].device), torch.inference_mode(False), torch.no_grad():
            if state != self._state:
                self._clear(state)
            stream = _current_stream(inputs[0].device)
            key = (key, inputs[0].device, stream, *((one.shape, one.dtype) for one in inputs))
            if key not in self._graphs and self._count(key):
                try:
                    self._graphs[key] = self._capture(stream, work, inputs)
                except RuntimeError as error:
                    self._graphs[key] = None
                    self._pools.pop(stream, None)  # it may be in no state to be shared
                    warnings.warn(
                        f"could not capture a CUDA graph, running without one, which is slower ({first_line(error)})",
                        stacklevel=2,
                    )
            found = self._graphs.get(key)
            return work(*inputs) if found is None else found.replay(inputs)

    def _count(self, key: Hashable) -> bool:
        """Count a shape that is not captured; whether it is to be captured now."""
        count = self._seen[key] = self._seen.pop(key, 0) + 1
        if len(self._seen) > MAX_COUNTED:
            self._seen.popitem(last=False)
        if len(self._graphs) >= self.capacity and count >= EVICT_AFTER:
            self._clear(self._state)
        return count >= CAPTURE_AFTER and len(self._graphs) < self.capacity

    def _clear(self, state: Hashable) -> None:
        for one in getattr(self, "_graphs", {}).values():
            if one is not None and one.inputs[0].is_cuda:
                torch.cuda.synchronize(one.inputs[0].device)  # it may still be running
        self._state = state
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._graphs: dict[Hashable, CapturedGraph | None] = {}  # None: the capture failed
        self._pools: dict[Hashable, tuple[Any, Any]] = {}  # by stream, whose graphs never run at the same time

    def _capture(self, stream: Hashable, work: Callable[..., Tensors], inputs: Tensors) -> CapturedGraph:
        buffers = tuple(one.clone() for one in inputs)
        if stream not in self._pools:
            self._pools[stream] = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        graph, outputs = _capture_work(work, buffers, *self._pools[stream])
        return CapturedGraph(graph, buffers, outputs, work if self._keep_work else None)


def _capture_work(
    work: Callable[..., Tensors], buffers: Tensors, pool: Any, stream: torch.cuda.Stream
) -> tuple[torch.cuda.CUDAGraph, Tensors]:
    """A graph of `work(*buffers)`, and the outputs that its replays write."""
    made: list[Tensors] = []

    def run() -> None:
        made[:] = [work(*buffers)]  # only the last: those of warming up would take memory as long as the capture

    graph = capture_graph(run, buffers[0].device, pool, stream)
    return graph, made[0]


def _current_stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


class RecordedWork:
    """Work of one fixed shape on fixed buffers: `load` the inputs, `run`, read the outputs, `release`. On a GPU it is a graph.

    For work whose outputs stay in place until the next run; callers hold a lock as long as they need them. Each graph has memory
    of its own, so that it can be dropped alone. All are captured on one stream, whose workspace they share, so no two may run
    at the same time: each run waits on the device for the last one, on whatever stream that was.
    """

    _streams: ClassVar[dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Event]]] = {}  # and the last run's end
    _launching: ClassVar[Any] = threading.RLock()  # between waiting for the last run and recording the end of this one

    def __init__(self, work: Callable[..., Tensors], inputs: Tensors, recorded: bool = True) -> None:
        """`inputs`: the buffers, made outside of inference mode, whose values must be valid. `recorded`: whether to capture a graph where that is possible."""
        self.inputs, self._work = inputs, work
        self._graph: torch.cuda.CUDAGraph | None = None
        self._done: torch.cuda.Event | None = None
        self.outputs: Tensors = ()
        if recorded and can_capture(*inputs):
            device = inputs[0].device
            with self._launching, torch.inference_mode(False), torch.no_grad(), device_guard(device):
                if device not in self._streams:
                    self._streams[device] = torch.cuda.Stream(device), torch.cuda.Event()
                stream, self._done = self._streams[device]
                self._wait()
                try:
                    self._graph, self.outputs = _capture_work(work, inputs, torch.cuda.graph_pool_handle(), stream)
                finally:
                    self._mark()  # warming up used the workspace, too

    @property
    def is_graph(self) -> bool:
        return self._graph is not None

    def load(self, *given: torch.Tensor | None) -> None:
        """Copy inputs into the buffers, from any device; None leaves one as it is. A smaller input fills the buffer's start."""
        self._wait()
        with torch.inference_mode(False), torch.no_grad():
            for buffer, one in zip(self.inputs, given, strict=True):
                if one is None:
                    continue
                target = buffer
                for axis, size in enumerate(one.shape):
                    target = target.narrow(axis, 0, size)
                target.copy_(one, non_blocking=True)

    def run(self) -> Tensors:
        """The outputs; the next run overwrites them."""
        if self._graph is None:
            with torch.inference_mode(False), torch.no_grad():  # what it allocates stays for callers of any mode
                self.outputs = self._work(*self.inputs)
            return self.outputs
        with self._launching, device_guard(self.inputs[0].device):
            self._wait()
            self._graph.replay()
            self._mark()
        return self.outputs

    def release(self) -> None:
        """The outputs were read by what was launched so far: a run on another stream waits for that before it overwrites them."""
        if self._done is not None:
            with self._launching:
                self._wait()  # in the meantime other work may have run on another stream
                self._mark()

    def _wait(self) -> None:
        """The last run may have been on another stream."""
        if self._done is not None:
            torch.cuda.current_stream(self.inputs[0].device).wait_event(self._done)

    def _mark(self) -> None:
        assert self._done is not None
        self._done.record(torch.cuda.current_stream(self.inputs[0].device))
