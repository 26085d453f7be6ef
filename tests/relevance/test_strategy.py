"""Strategy: when scores are not trusted, and round-robin selection over connected components."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from arr_coc import TextureArray
from arr_coc.relevance.realizing import names_something, realized
from arr_coc.relevance.strategy import BACKGROUND, label_components, round_robin
from arr_coc.selectors import selector
from arr_coc.selectors.base import ImageSource
from tests.relevance.page import GRID, page_selection
from tests.selectors.selections import choice, selection, words


def test_a_question_that_names_nothing_is_vague() -> None:
    vague = page_selection(question=replace(words(), text="What is this about?"))
    assert realized(vague).strategy.startswith("vague: ")
    assert not names_something("What is this?")
    assert names_something("What is the total?")


@pytest.mark.parametrize("kind", ["flat", "noise"])
def test_cells_of_a_void_are_evenly_spaced(kind: str) -> None:
    pixels = torch.full((3, 280, 280), 0.7)
    if kind == "noise":
        pixels = pixels + 0.02 * torch.randn(1, 280, 280, generator=torch.Generator().manual_seed(0))
    found = realized(page_selection(source=ImageSource(texture=TextureArray.from_image(pixels.clamp(0, 1)))))
    assert found.strategy.startswith("void: ")
    assert found.keep.tolist() == choice(selector("uniform").select(selection(GRID, 20))).keep.tolist()


def test_components_are_8_connected() -> None:
    foreground = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    numbers = label_components(foreground)
    assert bool((numbers[~foreground] == BACKGROUND).all())
    assert len(numbers[foreground].unique()) == 3
    assert numbers[0, 0] == numbers[1, 1]
    assert numbers[0, 3] == numbers[1, 3]
    assert len(numbers[3, :3].unique()) == 1


def test_a_snake_is_one_component() -> None:
    foreground = torch.zeros(9, 9, dtype=torch.bool)
    for row in range(0, 9, 2):
        foreground[row] = True
        if row < 8:
            foreground[row + 1, 8 if row % 4 == 0 else 0] = True
    assert len(label_components(foreground)[foreground].unique()) == 1


def test_a_small_component_is_kept_whole_and_a_large_one_gets_the_rest() -> None:
    torch.manual_seed(0)
    components = torch.tensor([4] * 50 + [9] * 6 + [BACKGROUND] * 44)
    relevance = torch.cat([0.5 + torch.rand(50), 0.1 * torch.rand(6), 2 + torch.rand(44)])
    keep = round_robin(relevance, 20, components)
    assert set(range(50, 56)) <= set(keep.tolist())
    large = [cell for cell in keep.tolist() if cell < 50]
    assert sorted(large) == relevance[:50].topk(14).indices.sort().values.tolist()


def test_background_comes_last() -> None:
    components = torch.tensor([BACKGROUND, 0, BACKGROUND, 0])
    relevance = torch.tensor([0.9, 0.1, 0.8, 0.2])
    assert round_robin(relevance, 3, components).tolist() == [0, 1, 3]
    assert round_robin(relevance, 4, components).tolist() == [0, 1, 2, 3]
    assert round_robin(relevance, 0, components).tolist() == []


def test_a_pale_mark_next_to_a_bright_one_is_kept_for_a_vague_question() -> None:
    image = Image.fromarray(np.full((280, 280, 3), 180, np.uint8))
    pen = ImageDraw.Draw(image)
    for row in range(10):
        for column in range(5):
            colour = (230, 30, 40) if (row + column) % 2 else (20, 90, 240)
            pen.rectangle([140 + 28 * column, 28 * row, 167 + 28 * column, 27 + 28 * row], fill=colour)
    pen.rectangle([34, 118, 50, 134], outline=(165, 165, 165), width=2)
    texture = TextureArray.from_image(image)
    found = realized(
        page_selection(source=ImageSource(texture=texture), question=replace(words(), text="What is this?"))
    )
    assert found.strategy.startswith("vague: ")
    assert len(found.keep) == 20
    assert 41 in found.keep.tolist()
