"""ARR-COC itself: cells by relevance to the question."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, Selector, Sight

BY_LAYER = "(coupling by layer)"  # how a choice ends that a layer made
GLANCED = 0.6  # share of the cells that is encoded under `auto`
DOUBTED = 0.1  # what relevance counts for beside other pictures where nothing answers to the question


class ArrCoc(Selector):
    """Knowing, balancing, attending: `arr_coc.realizing` tells the whole story. Options are those of its `Settings`.

    On a video, what several moments show is kept of one (`arr_coc.relevance.frame_budget`).

    Needs: pixels; and for the question whatever there is: the language model itself, or an image-text encoder.
    """

    name = "arr-coc"
    glances = True

    def __init__(self, **options: Any) -> None:
        if options.get("cascade") == "on":
            raise SelectorError("the cascade is for arr_coc.realize with embeddings in native mode: leave it out here")
        self.options = options

    def select(self, sight: Sight) -> Choice:
        from arr_coc.relevance.realizing import Settings, realized

        chosen = realized(sight, Settings(**self.options))
        if sight.kind != "video" or sight.picture is None:
            return chosen
        from arr_coc.relevance.frame_budget import share_budget

        return share_budget(sight, chosen, self.options.get("moments", "auto"))

    def before_encoding(self, sight: Sight) -> Choice:
        """Under `auto`, three fifths of the cells where a layer knows what the question is about, and else all of them."""
        if sight.k is not None or sight.mass is not None:
            return self.select(sight)
        if sight.learned is not None and self.options.get("coupling", "auto") in ("auto", "layer"):
            from arr_coc.relevance.strategy import FOLLOWS

            chosen = self.select(replace(sight, k=math.ceil(GLANCED * sight.grid.n)))
            if chosen.strategy.endswith(BY_LAYER) and chosen.strategy.startswith(FOLLOWS):
                return chosen
        return Choice(
            sight.candidates, strategy="everything: before the encoder nobody knows what the question is about"
        )

    def relevance(self, sight: Sight) -> torch.Tensor:
        """Each candidate's relevance `[M]`; less in a picture where nothing answers to the question."""
        chosen = self.select(sight)
        assert chosen.relevance is not None
        return chosen.relevance[sight.candidates] * max(DOUBTED, chosen.tensions["trust"])


class Untrained(ArrCoc):
    """ARR-COC without anything learned, whatever the model has: what a model gets that nobody trained a layer for."""

    name = "arr-coc-untrained"

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"learned": False} | options)
