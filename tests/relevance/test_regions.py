"""Where to look closer: text is found, levelled and measured; the rest of the image is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from arr_coc.relevance.regions import best_window, find_page, is_about_everything, letter_height, line_angle
from arr_coc.texture import TextureArray
from tests.vlm.page import printed, scenery


@pytest.mark.parametrize("angle", [-7.0, 0.0, 3.0, 9.0])
def test_print_is_found_and_its_angle_measured(angle: float) -> None:
    image, sheet = printed(angle=angle)
    page = find_page(TextureArray.from_image(image), image.size)
    assert page is not None
    assert page.region.angle == pytest.approx(angle, abs=0.7)
    corners = page.region.corners(torch.tensor([[0.0, 0.0, *page.region.size]]))[0].numpy()
    assert np.abs(corners - sheet).max() < 0.12 * max(image.size)  # about the sheet, not the table
    area = page.region.size[0] * page.region.size[1]
    assert area < 0.4 * image.size[0] * image.size[1]


def test_without_deskewing_the_region_is_upright() -> None:
    image, _ = printed(angle=6.0)
    page = find_page(TextureArray.from_image(image), image.size, deskew=False)
    assert page is not None
    assert page.region.angle == 0.0


@pytest.mark.parametrize(
    "image", [scenery(), scenery().resize((3, 2)), scenery().resize((1, 1))], ids=["scenery", "3 x 2", "1 x 1"]
)
def test_no_text_no_page(image: object) -> None:
    texture = TextureArray.from_image(image)  # type: ignore[arg-type]
    assert find_page(texture, image.size) is None  # type: ignore[attr-defined]


def test_a_region_is_the_same_whatever_the_scale_of_the_texture() -> None:
    image, _ = printed(angle=4.0)
    large = find_page(TextureArray.from_image(image), image.size)
    small = find_page(TextureArray.from_image(image.reduce(2)), image.size)
    assert large is not None
    assert small is not None
    assert small.region.angle == pytest.approx(large.region.angle, abs=0.5)
    assert np.allclose(small.region.centre, large.region.centre, atol=0.02 * max(image.size))


@pytest.mark.parametrize("size", [12, 20, 34])
def test_the_height_of_letters(size: int) -> None:
    page = Image.new("L", (600, 400), 240)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size)
    for row in range(0, 400 - size, 2 * size):
        draw.text((10, row), "THE TOTAL DUE IS 48.20 FOR BOTH", fill=10, font=font)
    draw.line([(0, 399), (599, 399)], fill=0)  # a rule does not count
    capital = font.getbbox("H")[3] - font.getbbox("H")[1]
    assert letter_height(np.asarray(page, np.float32) / 255) == pytest.approx(capital, abs=1.5)


def test_an_empty_image_has_no_letters() -> None:
    assert letter_height(np.ones((90, 60), np.float32)) is None
    assert letter_height(np.ones((1, 1), np.float32)) is None
    assert line_angle(np.zeros((40, 40), np.float32)) == 0.0


def test_the_best_window_holds_most_of_the_relevance() -> None:
    relevance = torch.zeros(10, 20)
    relevance[6:8, 12:15] = 1.0
    left, top = best_window(relevance, (6, 4))
    assert left <= 12
    assert left + 6 >= 15
    assert top <= 6
    assert top + 4 >= 8
    assert best_window(relevance, (50, 50)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("question", "everything"),
    [
        ("Describe this photo.", True),
        ("What does the image show?", True),
        ("Summarise the page", True),
        ("What is the total amount?", False),
        ("What is the date on the picture frame invoice?", False),
    ],
)
def test_questions_about_the_whole_image(question: str, everything: bool) -> None:
    assert is_about_everything(question) == everything
