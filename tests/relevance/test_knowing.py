"""The three ways of knowing against their formulas, and what they must and must not see."""

from __future__ import annotations

import math

import torch

from arr_coc import TextureArray
from arr_coc.relevance import knowing
from arr_coc.relevance.knowing import know, pooled_channels
from arr_coc.selectors.base import ImageSource
from arr_coc.selectors.scoring import pool_channels
from arr_coc.types.grid import Grid
from tests.conftest import structured
from tests.selectors.selections import TILES, selection

GRID = Grid(1, 5, 7)


def information(texture: TextureArray, view: Grid) -> torch.Tensor:
    return knowing.information(texture, view, pooled_channels(texture, view))


def salience(texture: TextureArray, view: Grid) -> torch.Tensor:
    return knowing.salience(texture, view, pooled_channels(texture, view))


def texture() -> TextureArray:
    return TextureArray.from_image(structured(60, 90))


def test_information_by_its_formula() -> None:
    made = texture()
    planes = dict(
        zip(names := ("edges", "edges_inverted", "highpass", "distance"), made.grid(5, 7, names), strict=True)
    )
    edges = torch.maximum(planes["edges"], planes["edges_inverted"])
    pixels = planes["distance"] * math.hypot(60, 90) / 2
    near = (pixels / (2 * math.sqrt(60 / 5 * 90 / 7))).clamp(max=1)
    expected = 0.4 * edges / edges.max() + 0.3 * planes["highpass"] / planes["highpass"].max() + 0.3 * (1 - near)
    assert torch.allclose(information(made, GRID), expected, atol=1e-5)
    assert 0 <= float(information(made, GRID).min()) <= float(information(made, GRID).max()) <= 1


def test_salience_by_its_formula() -> None:
    made = texture().supply(previous_frame=structured(60, 90).flip(-1))
    stands_out, moves, outside = made.grid(5, 7, ("saliency", "motion", "eccentricity"))
    expected = (0.6 * stands_out / stands_out.max() + 0.4 * moves / moves.max()) * (1 - 0.5 * outside)
    assert torch.allclose(salience(made, GRID), expected, atol=1e-5)


def test_a_blank_page_knows_nothing() -> None:
    blank = TextureArray.from_image(torch.ones(3, 60, 90))
    assert information(blank, GRID).max() == 0
    assert salience(blank, GRID).max() == 0


def test_ink_informs() -> None:
    page = torch.ones(3, 70, 70)
    page[:, 12:16, 30:55] = 0
    found = information(TextureArray.from_image(page), Grid(1, 7, 7))
    assert found[1, 3:5].min() > found[4:].max()


def test_what_does_not_depend_on_the_question_is_made_once() -> None:
    seen = selection(GRID, 5)
    made = seen.texture
    first = know(seen)
    count = 0
    real = TextureArray.grid

    def counted(*given: object, **options: object) -> torch.Tensor:
        nonlocal count
        count += 1
        return real(*given, **options)  # type: ignore[arg-type]

    TextureArray.grid = counted  # type: ignore[method-assign,assignment]
    try:
        again = know(selection(GRID, 9, seed=3, source=ImageSource(texture=made)))
    finally:
        TextureArray.grid = real  # type: ignore[method-assign]
    assert count == 0
    assert torch.equal(first.information, again.information)


def test_tiles_see_their_part() -> None:
    seen = selection(TILES, 5)
    known = know(seen)
    assert known.information.shape == known.salience.shape == (26,)
    left = pool_channels(seen.texture, TILES.views[0], ("x",))[0]
    right = pool_channels(seen.texture, TILES.views[1], ("x",))[0]
    assert left.max() < 0.5 < right.min()
    expected = torch.cat([information(seen.texture, view).flatten() for view in TILES.views])
    assert torch.equal(known.information, expected)
    assert not torch.equal(known.information[:9], known.information[9:18])  # tiles of one shape, each its own


def test_a_new_frame_before_it_changes_what_moves() -> None:
    still = texture()
    assert know(selection(GRID, 5, source=ImageSource(texture=still))).salience.max() > 0
    moving = still.supply(previous_frame=structured(60, 90).flip(-1))
    known = know(selection(GRID, 5, source=ImageSource(texture=moving)))
    assert torch.allclose(known.salience, salience(moving, GRID).flatten())
    assert not torch.equal(known.salience, know(selection(GRID, 5, source=ImageSource(texture=still))).salience)


def test_what_the_caller_supplies_is_read() -> None:
    assert know(selection(GRID, 5)).supplied == {}
    gaze = torch.zeros(6, 9)
    gaze[4, 7] = 1
    looked = texture().supply(gaze=gaze)
    known = know(selection(GRID, 5, source=ImageSource(texture=looked)))
    assert set(known.supplied) == {"gaze"}
    assert known.supplied["gaze"].argmax() == 3 * 7 + 5
