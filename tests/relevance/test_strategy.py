"""Every separate thing gets its share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from PIL import Image, ImageDraw

from arr_coc import TextureArray
from arr_coc.relevance.realizing import realized
from arr_coc.relevance.strategy import BACKGROUND, label_components, round_robin
from arr_coc.selectors.base import ImageSource
from tests.relevance.test_realizing import look
from tests.selectors.selections import words


def test_cells_that_touch_are_one_thing_also_across_corners() -> None:
    there = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    numbers = label_components(there)
    assert bool((numbers[~there] == BACKGROUND).all())
    assert len(numbers[there].unique()) == 3
    assert numbers[0, 0] == numbers[1, 1]
    assert numbers[0, 3] == numbers[1, 3]
    assert len(numbers[3, :3].unique()) == 1


def test_a_snake_is_one_thing() -> None:
    there = torch.zeros(9, 9, dtype=torch.bool)
    for row in range(0, 9, 2):
        there[row] = True
        if row < 8:
            there[row + 1, 8 if row % 4 == 0 else 0] = True
    assert len(label_components(there)[there].unique()) == 1


def test_a_small_thing_is_kept_whole_and_a_large_one_gets_the_rest() -> None:
    torch.manual_seed(0)
    things = torch.tensor([4] * 50 + [9] * 6 + [BACKGROUND] * 44)
    relevance = torch.cat([0.5 + torch.rand(50), 0.1 * torch.rand(6), 2 + torch.rand(44)])
    keep = round_robin(relevance, 20, things)
    assert set(range(50, 56)) <= set(keep.tolist())
    large = [cell for cell in keep.tolist() if cell < 50]
    assert sorted(large) == relevance[:50].topk(14).indices.sort().values.tolist()


def test_ground_comes_last_and_all_is_all() -> None:
    things = torch.tensor([BACKGROUND, 0, BACKGROUND, 0])
    relevance = torch.tensor([0.9, 0.1, 0.8, 0.2])
    assert round_robin(relevance, 3, things).tolist() == [0, 1, 3]
    assert round_robin(relevance, 4, things).tolist() == [0, 1, 2, 3]
    assert round_robin(relevance, 0, things).tolist() == []


def test_a_pale_mark_beside_a_loud_one_is_kept_when_the_question_names_nothing() -> None:
    image = Image.fromarray(np.full((280, 280, 3), 180, np.uint8))
    pen = ImageDraw.Draw(image)
    for row in range(10):
        for column in range(5):
            colour = (230, 30, 40) if (row + column) % 2 else (20, 90, 240)
            pen.rectangle([140 + 28 * column, 28 * row, 167 + 28 * column, 27 + 28 * row], fill=colour)
    pen.rectangle([34, 118, 50, 134], outline=(165, 165, 165), width=2)
    texture = TextureArray.from_image(image)
    found = realized(look(source=ImageSource(texture=texture), question=replace(words(), text="What is this?")))
    assert found.strategy.startswith("vague: ")
    assert len(found.keep) == 20
    assert 41 in found.keep.tolist()
