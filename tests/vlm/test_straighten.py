"""A document in any pose is answered as if it were upright, and the cells map back to the picture as it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc.errors import PromptError
from tests.adapters.tiny_vlm import GREEDY, wrapped

TOTAL = "What is the total amount?"
RIGHT = "37.40"


@pytest.fixture(scope="module")
def reader() -> Any:
    return arr_coc.load("reader")


@pytest.fixture(scope="module")
def upright() -> Image.Image:
    return arr_coc.pictures.receipt()


def turn(image: Image.Image, degrees: int) -> Image.Image:
    """Turned clockwise."""
    return image.rotate(-degrees, expand=True)


def same_inputs(a: Any, b: Any) -> bool:
    """Whether two prepared prompts are the same, bit for bit."""
    first, second = ([value for value in one.values() if isinstance(value, torch.Tensor)] for one in (a, b))
    encoded = (a["mm_encoder_outputs"], b["mm_encoder_outputs"])
    return len(first) == len(second) > 2 and all(map(torch.equal, first, second)) and same(*encoded)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    values = (list(one.values()) if isinstance(one, dict) else list(one) for one in (a, b))
    return all(same(x, y) for x, y in zip(*values, strict=True))


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_turned_page_is_the_upright_one_to_the_model(reader: Any, upright: Image.Image, degrees: int) -> None:
    given = turn(upright, degrees)
    plain, found = (reader.prepare(one, TOTAL, budget="12.5%") for one in (upright, given))
    assert same_inputs(plain, found)
    (a,), (b,) = plain.allocations, found.allocations
    assert torch.equal(a.keep, b.keep)
    assert f"the image was turned by {degrees} degrees" in b.strategy
    assert any("shown as straightened" in note for note in b.notes)
    assert b.size == given.size
    # The boxes are those of the upright page, turned.
    width, height = upright.size
    x0, y0, x1, y1 = a.boxes.unbind(-1)
    expected = {
        90: (height - y1, x0, height - y0, x1), 180: (width - x1, height - y1, width - x0, height - y0),
        270: (y0, width - x1, y1, width - x0),
    }[degrees]  # fmt: skip
    assert torch.allclose(b.boxes, torch.stack(expected, -1), atol=1e-2)
    overlay = b.overlay(given)
    both = np.asarray(turn(overlay, -degrees), float), np.asarray(a.overlay(upright), float)
    assert np.abs(both[0] - both[1]).mean() < 2.0


def test_off_shows_a_turned_page_as_it_is_and_reads_it_wrong(reader: Any, upright: Image.Image) -> None:
    given = turn(upright, 90).rotate(-8, expand=True, fillcolor=(200, 200, 200))
    right = reader.ask(given, TOTAL, budget="12.5%")
    assert right.text == RIGHT
    assert right.allocation.view.role == "straightened"
    assert "turned by" in right.to_dict()["strategy"]
    off = reader.ask(given, TOTAL, budget="12.5%", straighten="off")
    assert off.allocation.view is None
    assert off.text != RIGHT


def test_an_upright_page_is_the_same_bit_for_bit(reader: Any, upright: Image.Image, tmp_path: Path) -> None:
    upright.save(tmp_path / "page.jpg", quality=92)
    for image in (upright, np.asarray(upright), tmp_path / "page.jpg"):
        auto, off = (reader.prepare(image, TOTAL, budget=64, straighten=mode) for mode in ("auto", "off"))
        assert same_inputs(auto, off)
        assert auto.allocations[0].to_dict() == off.allocations[0].to_dict()


def test_looks_several_questions_and_batches(reader: Any, upright: Image.Image) -> None:
    given = turn(upright, 180)
    look = reader.look(given)
    assert look.images[0][0].view.region.angle == 180
    assert reader.look(given, straighten="off").images[0][0].view is None
    answers = reader.ask(given, [TOTAL, "What is the date?"], budget="12.5%")
    assert [one.text for one in answers] == [RIGHT, "12/03/2026"]
    rows = reader.generate([[given], [upright]], [TOTAL, TOTAL], budget="12.5%")
    assert [one.text for one in rows] == [RIGHT, RIGHT]
    assert [one.allocation.view is None for one in rows] == [False, True]


def test_every_selector_may_choose_on_a_straightened_page(upright: Image.Image) -> None:
    vlm = wrapped("qwen2_vl")
    given = turn(upright, 270)
    for selector in ("random", "resize", "divprune", "fastv"):
        answer = vlm.ask(given, TOTAL, budget="25%", selector=selector, **GREEDY)
        assert answer.allocation.view is not None
        assert answer.allocation.size == given.size
        boxes = answer.allocation.boxes
        assert bool((boxes[:, 2] <= given.width).all())
        assert bool((boxes[:, 3] <= given.height).all())
    first = vlm.ask(given, TOTAL, budget="25%", remember=True, **GREEDY)
    second = vlm.ask(None, "And the date?", after=first, **GREEDY)
    assert second.allocation.view == first.allocation.view


def test_what_is_about_the_image_as_it_is_turns_it_off(upright: Image.Image) -> None:
    vlm, given = wrapped("qwen2_vl"), turn(upright, 90)
    for options in ({"allocation": [1, 2, 3]}, {"gaze": (5.0, 5.0), "budget": 8}):
        assert vlm.prepare(given, TOTAL, **options).allocations[0].view is None
    with pytest.raises(PromptError, match="expected straighten as one of auto, off, got 'yes'"):
        vlm.prepare(given, TOTAL, straighten="yes")
    with pytest.raises(PromptError, match="expected straighten as one of"):
        vlm.look(given, straighten=None)
