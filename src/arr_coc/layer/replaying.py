"""A layer's work on a GPU in one launch: it is hundreds of small ones, and launching them takes longer than doing them.

What is asked for a second time in the same shape is recorded as a CUDA graph, and replayed from then on. Elsewhere, and wherever
`ARR_COC_KERNELS` (or `arr_coc.kernels.using`) says torch, the layer does its work as it always does; the results are the same.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from arr_coc.errors import first_line
from arr_coc.kernels.dispatch import on, way
from arr_coc.kernels.recording import captured
from arr_coc.layer.layer import ArrCocLayer, Judged, View
from arr_coc.layer.remembering import state, weights

KEPT = 16  # recordings of one layer, and shapes seen once
WORDS = 16  # questions are filled up to a multiple of so many words: fewer shapes

Tensors = tuple[torch.Tensor, ...]


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
    """The recordings of one layer, the last used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Recorded | None] = OrderedDict()  # None: seen once
        self._pools: dict[int, Any] = {}  # by stream: recordings share their memory on the way
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(one is not None for one in self._known.values())

    def run(self, key: Hashable, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """`work(*inputs)`, recorded when it is asked for again."""
        with self._lock, on(inputs[0].device):
            stream = torch.cuda.current_stream().cuda_stream
            key = (key, stream, *((one.shape, one.dtype) for one in inputs))
            if key not in self._known:
                self._known[key] = None
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
                return work(*inputs)
            self._known.move_to_end(key)
            found = self._known[key]
            if found is None:
                try:
                    found = self._known[key] = self._record(stream, work, inputs)
                except RuntimeError as error:
                    del self._known[key]
                    warnings.warn(
                        f"a layer's work could not be recorded and takes longer ({first_line(error)})", stacklevel=2
                    )
                    return work(*inputs)
            return found.replay(inputs)

    def _record(self, stream: int, work: Callable[..., Tensors], inputs: Tensors) -> Recorded:
        mine = tuple(one.clone() for one in inputs)
        pool = self._pools.setdefault(stream, torch.cuda.graph_pool_handle())
        made: list[Tensors] = []
        graph = captured(lambda: made.append(work(*mine)), inputs[0].device, pool)
        return Recorded(graph, mine, made[-1])


_replays: WeakKeyDictionary[ArrCocLayer, Replays] = WeakKeyDictionary()
_lock = threading.Lock()


def replays(layer: ArrCocLayer) -> Replays:
    """A layer's recordings."""
    with _lock:
        return _replays.setdefault(layer, Replays())


def see(layer: ArrCocLayer, channels: torch.Tensor, pixels: torch.Tensor, *tokens: torch.Tensor | None) -> View:
    """`layer.see` of one picture; tokens: as there, both or one or none."""
    there = tuple(one for one in tokens if one is not None)
    return View(*_run(layer, "see", lambda *given: _tensors(layer.see(*given)), (channels, pixels, *there)))


def judge(layer: ArrCocLayer, view: View, heard: torch.Tensor, asked: torch.Tensor) -> Judged:
    """`layer.judge`."""
    inputs = (view.cells, view.alone, view.query, heard, asked)
    return Judged(*_run(layer, "judge", lambda c, a, q, *words: _tensors(layer.judge(View(c, a, q), *words)), inputs))


def hear(layer: ArrCocLayer, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`layer.words` of one question `[T, W]`: `[1, T, d]`, and which of the words are there `[1, T]`; on a GPU T is filled up."""
    more = -len(words) % WORDS if _recordable(words) else 0
    filled = F.pad(words, (0, 0, 0, more))[None]
    there = torch.arange(len(words) + more, device=words.device)[None] < len(words)
    (heard,) = _run(layer, "hear", lambda *given: (layer.words(*given),), (filled, there))
    return heard, there


def _tensors(held: View | Judged) -> Tensors:
    return tuple(vars(held).values())


def _run(layer: ArrCocLayer, name: str, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
    if not _recordable(inputs[0]):
        return work(*inputs)
    # Weights that are written to stay where they are; what a graph reads must not move.
    places = hash(tuple(one.data_ptr() for one in weights(layer)))
    return replays(layer).run((name, state(layer), places), work, inputs)


def _recordable(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_cuda
        and way() != "torch"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
    )
