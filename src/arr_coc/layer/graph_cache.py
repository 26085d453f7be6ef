"""A layer's work on a GPU in one launch: it is hundreds of small ones, and launching them takes longer than doing them.

Elsewhere, and wherever `ARR_COC_KERNELS` says torch, the layer does its work as it always does; the results are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from arr_coc.layer.model import ArrCocLayer, Judged, View
from arr_coc.texture.kernels.cuda_graph import GraphCache, Tensors, can_capture

KEPT = 16  # recordings of one layer
WORDS = 16  # questions are filled up to a multiple of so many words: fewer shapes

_replays: WeakKeyDictionary[ArrCocLayer, GraphCache] = WeakKeyDictionary()
_lock = threading.Lock()


def replays(layer: ArrCocLayer) -> GraphCache:
    """A layer's recordings."""
    with _lock:
        return _replays.setdefault(layer, GraphCache(KEPT))


def see(
    layer: ArrCocLayer, state: Hashable, channels: torch.Tensor, pixels: torch.Tensor, *tokens: torch.Tensor | None
) -> View:
    """`layer.see` of one picture; tokens: as there, both or one or none. state: of the layer, as `remembering` says."""
    there = tuple(one for one in tokens if one is not None)
    return View(*_run(layer, state, "see", lambda *given: _tensors(layer.see(*given)), (channels, pixels, *there)))


def judge(layer: ArrCocLayer, state: Hashable, view: View, heard: torch.Tensor, asked: torch.Tensor) -> Judged:
    """`layer.judge`."""

    def work(cells: torch.Tensor, alone: torch.Tensor, query: torch.Tensor, *words: torch.Tensor) -> Tensors:
        return _tensors(layer.judge(View(cells, alone, query), *words))

    return Judged(*_run(layer, state, "judge", work, (view.cells, view.alone, view.query, heard, asked)))


def hear(layer: ArrCocLayer, state: Hashable, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`layer.words` of one question `[T, W]`: `[1, T, d]`, and which of the words are there `[1, T]`; on a GPU T is filled up."""
    more = -len(words) % WORDS if _recordable(words) else 0
    filled = F.pad(words, (0, 0, 0, more))[None]
    there = torch.arange(len(words) + more, device=words.device)[None] < len(words)
    (heard,) = _run(layer, state, "hear", lambda *given: (layer.words(*given),), (filled, there))
    return heard, there


def _tensors(held: View | Judged) -> Tensors:
    return tuple(vars(held).values())


def _run(layer: ArrCocLayer, state: Hashable, name: str, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
    return replays(layer).run(state, name, work, inputs) if _recordable(*inputs) else work(*inputs)


def _recordable(*tensors: torch.Tensor) -> bool:
    # The layer's own weights may need gradients.
    return tensors[0].is_cuda and not torch.is_grad_enabled() and can_capture(*tensors)
