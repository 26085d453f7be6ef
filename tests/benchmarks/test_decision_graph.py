"""Decisions on the device equal those of `realize`."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.relevance.realizing import realized
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.dispatch import Backend
from arr_coc.types.grid import Grid
from gpu_graphs.decision_graph import CHANNELS, DecisionGraph

GRID = (18, 13)
COUNT = 60


def picture(name: str) -> Image.Image:
    if name == "blank":
        return Image.new("RGB", (260, 360), (200, 210, 220))
    return getattr(arr_coc.pictures, name)().resize((260, 360))


@pytest.fixture(params=["receipt", "scene", "blank"])
def texture(request: pytest.FixtureRequest) -> TextureArray:
    with using("torch"):
        made = TextureArray.from_image(picture(request.param), layout=CHANNELS)
        made.grid(*GRID)
        return made


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("asked", [False, True])
def test_keeps_the_cells_that_realize_keeps(
    texture: TextureArray, asked: bool, backend: Backend, device: torch.device
) -> None:
    torch.manual_seed(0)
    features, question = torch.randn(16, GRID[0] * GRID[1]), torch.randn(16)
    grid = Grid(1, *GRID)
    selection = SelectionInput(
        grid, COUNT, torch.arange(grid.n), Question("the red car" if asked else "", torch.zeros(0, dtype=torch.long)),
        source=ImageSource(texture=texture), scorer=(lambda selection: question @ features) if asked else None,
    )  # fmt: skip
    with using("torch"):
        choice = realized(selection)
        decision = DecisionGraph(texture.size, GRID, COUNT, device)
        scores = decision.score(texture.grid(*GRID, CHANNELS).to(device))
    with using(backend):
        given = (features.to(device), question.to(device)) if asked else ()
        keep, relevance = (one.cpu() for one in decision.decide(scores, *given))
    assert torch.equal(keep, choice.keep)
    assert choice.relevance is not None
    if not choice.strategy.startswith("void"):
        assert torch.allclose(relevance, choice.relevance.flatten(), atol=1e-5)


def test_more_cells_than_there_are_is_refused() -> None:
    with pytest.raises(ArrCocError, match="expected to keep 1 to 6 cells, got 7"):
        DecisionGraph((10, 10), (2, 3), 7, "cpu")
