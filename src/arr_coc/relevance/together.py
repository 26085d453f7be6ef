"""Several pictures in one pass: textures, statistics and the layer's judgement, before cells are chosen for each of them.

    channels of all textures -> statistics of all -> the layer, one batch -> one transfer -> each picture's own decision

Everything that a decision reads of the device is launched for all pictures and comes to the host together. `realized` then finds
it in the textures' caches, so that a picture gets the same cells in a batch as alone. What is missing here (videos, tiles, a
failing channel) is computed where it is needed, as for one picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from arr_coc.devices import fetch
from arr_coc.layer.batching import predict_together
from arr_coc.layer.inference import LayerPredictor
from arr_coc.layer.universal import knows_script
from arr_coc.relevance import knowing, strategy
from arr_coc.selectors.base import SelectionInput
from arr_coc.texture import TextureArray
from arr_coc.texture.kernels.dispatch import write_together
from arr_coc.types.grid import WHOLE, Grid

CHANNELS = tuple(dict.fromkeys((*knowing.CHANNELS, "lowpass")))


def prepare(selections: Sequence[SelectionInput]) -> list[SelectionInput]:
    """The selections with everything known that a decision reads of the device, and what their layer says."""
    found = list(selections)
    ready = [number for number, one in enumerate(found) if _is_plain(one)]
    write_together([found[number].textures[0] for number in ready], CHANNELS)
    pending = [_Pending(found[number].textures[0], found[number].grid.views[0]) for number in ready]
    which, asked = _asked(found, ready)
    predictor = getattr(found[asked[0]], which) if asked else None
    predicted = (
        [] if predictor is None else predict_together(predictor.on_device(), [found[number] for number in asked])
    )
    launched = [*(one.launched for one in pending), *predicted]
    fetched = iter(fetch([tensor for some in launched for tensor in some]))
    values = [[next(fetched) for _ in some] for some in launched]
    for one, mine in zip(pending, values, strict=False):
        one.store(mine)
    for number, mine in zip(asked, values[len(pending) :], strict=True):
        found[number] = replace(found[number], **{which: predictor.knowing(mine, found[number])})  # type: ignore[union-attr]
    return found


def _asked(selections: Sequence[SelectionInput], ready: Sequence[int]) -> tuple[str, list[int]]:
    """Which layer is asked first ("layer", the model's own, or "universal"), and about which of the selections."""
    for which in ("layer", "universal"):
        asked = [number for number in ready if selections[number].question.text.strip()]
        some = [number for number in asked if isinstance(getattr(selections[number], which), LayerPredictor)]
        if which == "universal":
            some = [number for number in some if knows_script(selections[number].question.text)]
        if some:
            return which, some
    return "", []


def _is_plain(selection: SelectionInput) -> bool:
    """Whether this is a still image whose one view covers all of it."""
    views = selection.grid.views
    return selection.kind == "image" and selection.source is not None and len(views) == 1 and views[0].area == WHOLE


class _Pending:
    """Values of one picture that are computed on the device and decided by on the host."""

    def __init__(self, texture: TextureArray, view: Grid) -> None:
        self.texture = texture
        self._parts: list[tuple[str, int, Callable[[Sequence[torch.Tensor]], Any]]] = []
        self.launched: list[torch.Tensor] = []
        self._launch(f"scores {view!r}", partial(knowing.texture_scores, texture, view), _only)
        self._launch("background", partial(knowing.background, texture), lambda found: float(found[0]))
        self._launch("void", partial(strategy.void_statistics, texture), strategy.void_by)

    def _launch(
        self,
        key: str,
        work: Callable[[], torch.Tensor | list[torch.Tensor]],
        decide: Callable[[Sequence[torch.Tensor]], Any],
    ) -> None:
        """Start what a value under `key` of the texture's cache is made of, unless it is there already."""
        if self.texture.has(key):
            return
        made = work()
        parts = [made] if isinstance(made, torch.Tensor) else made
        self._parts.append((key, len(parts), decide))
        self.launched += parts

    def store(self, fetched: Sequence[torch.Tensor]) -> None:
        """Put the values into the texture's cache."""
        start = 0
        for key, count, decide in self._parts:
            mine = fetched[start : start + count]
            start += count
            self.texture.once(key, lambda mine=mine, decide=decide: decide(mine))  # type: ignore[misc]


def _only(found: Sequence[torch.Tensor]) -> torch.Tensor:
    return found[0]
