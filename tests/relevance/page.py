"""A drawn page, and selections of it with a fixed probe or a fixed layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from PIL import Image, ImageDraw

from arr_coc import Grid, TextureArray
from arr_coc.selectors.base import ImageSource, LayerPrediction
from tests.selectors.selections import selection, words

GRID = Grid(1, 10, 10)


def page() -> Image.Image:
    made = Image.new("RGB", (280, 280), (245, 244, 240))
    pen = ImageDraw.Draw(made)
    for number, line in enumerate(("TEA 1.20", "COFFEE 2.40", "TOTAL 3.60")):
        pen.text((30, 40 + 80 * number), line, fill=(20, 20, 24), font_size=30)
    return made


def page_selection(k: int | None = 20, peak: float = 0.2, at: int = 62, rest: float = 1e-6, **changes: Any) -> Any:
    """The page with a probe whose attention peaks at one cell; all others get `rest`."""

    def probe(cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        return torch.where(cells == at, peak, rest)

    texture = TextureArray.from_image(page())
    question = replace(words(), text="What is the total?")
    return selection(
        GRID, k, **({"source": ImageSource(texture=texture), "probe": probe, "question": question} | changes)
    )


def fixed_layer(probabilities: torch.Tensor) -> Any:
    """A layer that predicts these probabilities `[N]` for every image and question."""

    def predict(seen: Any) -> LayerPrediction:
        own = probabilities[seen.candidates]
        return LayerPrediction(own, dict.fromkeys(("information", "salience", "coupling"), own), {}, confidence=4.0)

    return predict


def line_start() -> torch.Tensor:
    """Probabilities `[N]` of a layer that is sure of where "TOTAL" begins, and spreads the rest over the other lines."""
    probabilities = torch.full((10, 10), 0.01)
    probabilities[7, 1:3] = 0.95
    probabilities[[1, 4], 1:6] = 0.2
    return probabilities.flatten()
