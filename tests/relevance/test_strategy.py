"""Strategy: when scores are not trusted, and round-robin selection over connected components."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from arr_coc import TextureArray, pictures
from arr_coc.draw import overlay
from arr_coc.draw.textures import draw_texture
from arr_coc.relevance.realizing import realized
from arr_coc.relevance.strategy import BACKGROUND, label_components, round_robin, void
from arr_coc.selectors import selector
from arr_coc.selectors.base import ImageSource
from arr_coc.training.documents import draw_any
from arr_coc.types.question import names_something
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


@pytest.mark.parametrize("kind", ["noise", "grain", "grass", "fur", "gravel", "weave", "marble"])
def test_a_texture_is_a_void_and_an_object_or_a_word_on_it_is_not(kind: str) -> None:
    for variant in (31, 32):
        image = draw_texture(kind, variant)
        assert void(TextureArray.from_image(image)), f"{kind} {variant}"
        pen = ImageDraw.Draw(image)
        if variant % 2:
            pen.rectangle([200, 200, 420, 250], fill=(250, 250, 250))
            pen.text((205, 205), "TOTAL 37.40", fill=(0, 0, 0), font=overlay.font(32))
        else:
            pen.ellipse([300, 300, 420, 420], fill=(255, 0, 0))
        assert void(TextureArray.from_image(image)) == "", f"{kind} {variant}"


def test_strong_noise_is_not_taken_for_text() -> None:
    """The text channel takes it for text, so that its cells used to be chosen as a page's."""
    pixels = 0.5 + 0.3 * torch.randn(3, 560, 560, generator=torch.Generator().manual_seed(0))
    texture = TextureArray.from_image(pixels.clamp(0, 1))
    found = realized(page_selection(source=ImageSource(texture=texture)))
    assert found.strategy.startswith("void: a texture without content")


def test_pages_and_photographs_are_no_voids() -> None:
    shown = [pictures.receipt(), pictures.scene(), *(Image.fromarray(draw_any(seed).image) for seed in range(8))]
    assert [void(TextureArray.from_image(image)) for image in shown] == [""] * len(shown)


def test_too_few_cells_give_no_verdict() -> None:
    assert void(TextureArray.from_image(draw_texture("noise", 0, (100, 100)))) == ""


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
