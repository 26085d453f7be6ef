"""ARR-COC as a selector: cells by relevance to the question."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from arr_coc.errors import SelectorError
from arr_coc.relevance.frame_budget import share_budget
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.relevance.strategy import FOLLOW_QUESTION
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.registry import register

AUTO_GLANCE = 0.6  # share of the cells encoded under glance="auto"
MIN_TRUST = 0.1  # smallest factor on relevance when images share a budget and nothing matches the question


class ArrCoc(Selector):
    """Knowing, balancing, attending: `arr_coc.relevance.realizing` is the whole story on one screen.

    Keyword arguments are those of `RelevanceSettings`. On a video, content repeated across frames is kept once
    (`arr_coc.relevance.frame_budget`).

    Needs: pixels. For the question: a trained layer, the language model itself, or an image-text encoder.
    """

    name = "arr-coc"
    glances = True

    def __init__(self, **settings: Any) -> None:
        if settings.get("cascade") == "on":
            raise SelectorError("the cascade is for arr_coc.realize with embeddings in native mode: leave it out here")
        self.settings = RelevanceSettings(**settings)

    def select(self, selection: SelectionInput) -> Choice:
        chosen = realized(selection, self.settings)
        if selection.kind != "video" or selection.source is None:
            return chosen
        return share_budget(selection, chosen, self.settings.moments)

    def before_encoding(self, selection: SelectionInput) -> Choice:
        """Under `auto`: three fifths of the cells where the layer recognises the question, otherwise all of them."""
        if selection.k is not None or selection.mass is not None:
            return self.select(selection)
        layer = selection.layer is not None and self.settings.coupling in ("auto", "layer")
        if layer and selection.kind == "image":  # not measured on videos
            chosen = self.select(replace(selection, k=math.ceil(AUTO_GLANCE * selection.grid.n)))
            if chosen.coupled_by == "layer" and chosen.rule in FOLLOW_QUESTION:
                return chosen
        return Choice(
            selection.candidates, strategy="everything: before encoding, nothing relates cells to the question"
        )

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Each candidate's relevance `[M]`, reduced in an image where nothing matches the question."""
        chosen = self.select(selection)
        assert chosen.relevance is not None
        return chosen.relevance[selection.candidates] * max(MIN_TRUST, chosen.tensions["trust"])


class Untrained(ArrCoc):
    """ARR-COC without a trained layer, even if the model has one."""

    name = "arr-coc-untrained"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"learned": False} | settings)


for _kind in (ArrCoc, Untrained):
    register(_kind, _kind.name)
