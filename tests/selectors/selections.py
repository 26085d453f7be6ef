"""Synthetic selection inputs: tokens, attention, words and pixels."""

from __future__ import annotations

from typing import Any

import torch

from arr_coc import TextureArray
from arr_coc.selectors import Choice, ImageSource, Oracle, Question, SelectionInput, Selector, selector
from arr_coc.selectors.hiprune import MIDDLE
from arr_coc.types.grid import Cells, Grid, Mosaic
from tests.conftest import structured

DIMENSIONS = 16
EVIDENCE = [[[10, 10, 30, 25], [40, 12, 50, 20]], [[60, 40, 70, 50]]]
TILES = Mosaic((Grid(1, 3, 3, (0, 0, 0.5, 1)), Grid(1, 3, 3, (0.5, 0, 1, 1)), Grid(1, 2, 4)))
SELECTOR_NAMES = (
    "centre", "saliency", "ink", "divprune", "cdpruner", "scope", "mmr", "idpruner", "visionzip", "vispruner", "hiprune", "tome",
    "evs", "oracle", "arr-coc",
)  # fmt: skip


def make_selector(name: str) -> Selector:
    return Oracle(EVIDENCE) if name == "oracle" else selector(name)


def tokens(count: int, seed: int = 0, kind: str = "random") -> torch.Tensor:
    """Tokens `[count, D]` of a kind: "random", "same" (one repeated), "twins" (three repeated) or "zeros"."""
    values = torch.randn(count, DIMENSIONS, generator=torch.Generator().manual_seed(seed))
    if kind == "twins":
        return values[torch.arange(count) % min(3, count)] if count else values
    return {"random": values, "same": values[:1].expand(count, -1), "zeros": torch.zeros_like(values)}[kind]


def words(seed: int = 0, count: int = 5) -> Question:
    table = torch.randn(count, DIMENSIONS, generator=torch.Generator().manual_seed(1000 + seed))
    return Question("What?", torch.arange(count), lambda ids: table)


def selection(
    grid: Cells, k: int | None, candidates: torch.Tensor | None = None, seed: int = 0, like: str = "random",
    pixels: torch.Tensor | None = None, **changes: Any,
) -> SelectionInput:  # fmt: skip
    cells = torch.arange(grid.n) if candidates is None else candidates
    dice = torch.Generator().manual_seed(2000 + seed)
    level = torch.rand if like == "random" else lambda count, generator: torch.ones(count)
    attention = {depth: level(len(cells), generator=dice) / max(len(cells), 1) for depth in (MIDDLE, 1.0)}
    image = structured(60, 90) if pixels is None else pixels
    texture = TextureArray.from_image(image)
    inputs: dict[str, Any] = {
        "question": words(seed), "tokens": tokens(len(cells), seed, like), "attention": attention, "source": ImageSource(texture=texture),
    }  # fmt: skip
    return SelectionInput(grid, k, cells, seed=seed, **inputs | changes)


def choice(chosen: Choice | torch.Tensor) -> Choice:
    return chosen if isinstance(chosen, Choice) else Choice(chosen)


def slow_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b) / max(float(a.norm()) * float(b.norm()), 1e-24)
