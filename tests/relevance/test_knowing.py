"""Information, salience and supplied maps against their formulas."""

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


def test_tones_are_counted_as_by_histc() -> None:
    plane = torch.rand(200, 130, generator=torch.Generator().manual_seed(0))
    plane[0, :33] = torch.arange(33) / 32  # on the borders of the bins, and 1
    assert torch.equal(knowing._count_tones(plane), torch.histc(plane, knowing.TONE_BINS, 0, 1))
    assert torch.equal(knowing._count_tones(plane[::2, ::2]), torch.histc(plane[::2, ::2], knowing.TONE_BINS, 0, 1))


def information(texture: TextureArray, view: Grid) -> torch.Tensor:
    return knowing.information(texture, view, pooled_channels(texture, view))


def salience(texture: TextureArray, view: Grid) -> torch.Tensor:
    return knowing.salience(texture, view, pooled_channels(texture, view))


def texture() -> TextureArray:
    return TextureArray.from_image(structured(60, 90))


def test_information_equals_its_formula() -> None:
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


def test_salience_equals_its_formula() -> None:
    made = texture().supply(previous_frame=structured(60, 90).flip(-1))
    stands_out, moves, outside = made.grid(5, 7, ("saliency", "motion", "eccentricity"))
    expected = (0.6 * stands_out / stands_out.max() + 0.4 * moves / moves.max()) * (1 - 0.5 * outside)
    assert torch.allclose(salience(made, GRID), expected, atol=1e-5)


def test_a_blank_page_scores_zero() -> None:
    blank = TextureArray.from_image(torch.ones(3, 60, 90))
    assert information(blank, GRID).max() == 0
    assert salience(blank, GRID).max() == 0


def test_ink_has_information() -> None:
    page = torch.ones(3, 70, 70)
    page[:, 12:16, 30:55] = 0
    found = information(TextureArray.from_image(page), Grid(1, 7, 7))
    assert found[1, 3:5].min() > found[4:].max()


def test_scores_are_cached_across_questions() -> None:
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


def test_each_tile_scores_its_own_area() -> None:
    seen = selection(TILES, 5)
    scores = know(seen)
    assert scores.information.shape == scores.salience.shape == (26,)
    left = pool_channels(seen.texture, TILES.views[0], ("x",))[0]
    right = pool_channels(seen.texture, TILES.views[1], ("x",))[0]
    assert left.max() < 0.5 < right.min()
    expected = torch.cat([information(seen.texture, view).flatten() for view in TILES.views])
    assert torch.equal(scores.information, expected)
    assert not torch.equal(
        scores.information[:9], scores.information[9:18]
    )  # tiles of one shape have separate cache entries


def test_a_previous_frame_changes_salience() -> None:
    still = texture()
    assert know(selection(GRID, 5, source=ImageSource(texture=still))).salience.max() > 0
    moving = still.supply(previous_frame=structured(60, 90).flip(-1))
    scores = know(selection(GRID, 5, source=ImageSource(texture=moving)))
    assert torch.allclose(scores.salience, salience(moving, GRID).flatten())
    assert not torch.equal(scores.salience, know(selection(GRID, 5, source=ImageSource(texture=still))).salience)


def test_supplied_maps_are_read() -> None:
    assert know(selection(GRID, 5)).supplied == {}
    gaze = torch.zeros(6, 9)
    gaze[4, 7] = 1
    supplied = texture().supply(gaze=gaze)
    scores = know(selection(GRID, 5, source=ImageSource(texture=supplied)))
    assert set(scores.supplied) == {"gaze"}
    assert scores.supplied["gaze"].argmax() == 3 * 7 + 5
