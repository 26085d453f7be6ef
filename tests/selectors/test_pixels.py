"""centre, resize, saliency and ink: what can be told from the grid and the pixels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from arr_coc import TextureArray
from arr_coc.errors import SelectorError
from arr_coc.selectors import Downscale, selector
from arr_coc.selectors.base import ImageSource
from arr_coc.selectors.controls import distance_from_centre
from arr_coc.texture import TextureBatch
from arr_coc.texture.filters import luma
from arr_coc.types.grid import Cells, Grid, Mosaic
from tests.conftest import noise
from tests.selectors.selections import TILES, choice, selection

GRIDS = [Grid(1, 5, 7), Grid(2, 4, 3), Grid(1, 3, 4, (0.1, 0.25, 0.9, 0.75)), TILES]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("k", [1, 4, 9])
def test_centre_keeps_the_cells_whose_middles_are_nearest(grid: Cells, k: int) -> None:
    finest = max(grid.views, key=lambda v: v.w * v.h / ((v.area[2] - v.area[0]) * (v.area[3] - v.area[1])))
    width = finest.w / (finest.area[2] - finest.area[0])
    height = finest.h / (finest.area[3] - finest.area[1])
    distances = []
    for view in grid.views:
        left, top, right, bottom = view.area
        for _ in range(view.t):
            for row in range(view.h):
                for column in range(view.w):
                    x = (left + (right - left) * (column + 0.5) / view.w - 0.5) * width
                    y = (top + (bottom - top) * (row + 0.5) / view.h - 0.5) * height
                    distances.append(round(math.hypot(x, y), 3))
    nearest = sorted(range(grid.n), key=lambda i: distances[i])[:k]
    assert choice(selector("centre").select(selection(grid, k))).keep.tolist() == sorted(nearest)


def test_the_centre_is_round_on_pictures_of_any_shape() -> None:
    far = distance_from_centre(Grid(1, 3, 9), torch.arange(27))
    assert far[13] == 0
    assert far[12] == far[14] == far[4] == far[22]
    assert float(far.max()) < 1


def test_among_candidates_the_centre_is_still_the_picture_s() -> None:
    assert choice(selector("centre").select(selection(Grid(1, 3, 3), 1, torch.tensor([0, 5, 8])))).keep.tolist() == [5]


def slow_cells(plane: torch.Tensor, grid: Cells, moments: bool) -> list[tuple[float, float]]:
    """Mean and standard deviation inside each cell, every pixel counted by the part of it inside."""
    height, width = plane.shape
    out = []
    for left, top, right, bottom in grid.boxes(torch.arange(grid.n), (width, height)).double().tolist():
        total = first = second = 0.0
        for y in range(math.floor(top), min(math.ceil(bottom), height)):
            for x in range(math.floor(left), min(math.ceil(right), width)):
                part = (min(right, x + 1) - max(left, x)) * (min(bottom, y + 1) - max(top, y))
                value = float(plane[y, x])
                total, first, second = total + part, first + part * value, second + part * value**2
        mean = first / total
        out.append((mean, math.sqrt(max(0.0, second / total - mean**2)) if moments else 0.0))
    return out


@pytest.mark.parametrize("grid", [Grid(1, 5, 7), TILES, Grid(1, 3, 4, (0.1, 0.25, 0.9, 0.75))], ids=str)
def test_ink_is_the_contrast_inside_the_cell(grid: Cells) -> None:
    pixels = noise(31, 44)
    seen = selection(grid, 6, pixels=pixels)
    slow = [deviation for _, deviation in slow_cells(luma(pixels), grid, True)]
    assert torch.allclose(selector("ink").relevance(seen), torch.tensor(slow, dtype=torch.float64), atol=1e-5)
    best = sorted(range(grid.n), key=lambda i: -slow[i])[:6]
    assert choice(selector("ink").select(seen)).keep.tolist() == sorted(best)


@pytest.mark.parametrize("grid", [Grid(1, 5, 7), TILES, Grid(1, 3, 4, (0.1, 0.25, 0.9, 0.75))], ids=str)
def test_saliency_is_the_mean_inside_the_cell(grid: Cells) -> None:
    seen = selection(grid, 6)
    slow = [mean for mean, _ in slow_cells(seen.texture["saliency"], grid, False)]
    assert torch.allclose(selector("saliency").relevance(seen), torch.tensor(slow, dtype=torch.float64), atol=1e-5)
    best = sorted(range(grid.n), key=lambda i: -slow[i])[:6]
    assert choice(selector("saliency").select(seen)).keep.tolist() == sorted(best)


def test_a_cell_beside_the_picture_shows_nothing() -> None:
    seen = selection(Grid(1, 1, 3, (-0.5, 0, 1, 1)), 1, pixels=noise(16, 16))
    ink = selector("ink").relevance(seen)
    assert ink[0] == 0
    assert (ink[1:] > 0).all()


def test_an_even_picture_ties_and_the_first_cells_win() -> None:
    seen = selection(Grid(1, 3, 4), 5, pixels=torch.full((3, 37, 41), 0.3))
    for name in ("ink", "saliency"):
        assert choice(selector(name).select(seen)).keep.tolist() == [0, 1, 2, 3, 4]


def test_every_moment_of_a_video_is_looked_at() -> None:
    flat, busy = torch.full((3, 24, 24), 0.5), noise(24, 24)
    frames = [flat, flat, busy, flat]
    batch = TextureBatch([TextureArray.from_image(frame) for frame in frames])
    seen = selection(Grid(2, 2, 2), 4, source=ImageSource(texture=batch), kind="video")
    assert choice(selector("ink").select(seen)).keep.tolist() == [4, 5, 6, 7]
    alone = [selector("ink").relevance(selection(Grid(1, 2, 2), 4, pixels=frame)) for frame in frames]
    pairs = torch.cat([(alone[0] + alone[1]) / 2, (alone[2] + alone[3]) / 2])
    assert torch.allclose(selector("ink").relevance(seen), pairs)


def test_views_see_their_own_part() -> None:
    pixels = torch.full((3, 40, 40), 0.5)
    pixels[:, 4:8, 24:28] = 0.0
    halves = Mosaic((Grid(1, 2, 2, (0, 0, 0.5, 1)), Grid(1, 2, 2, (0.5, 0, 1, 1))))
    ink = selector("ink").relevance(selection(halves, 1, pixels=pixels))
    assert ink.nonzero().flatten().tolist() == [4]


def test_resize_asks_for_a_smaller_picture_before_encoding() -> None:
    made = selector("resize")
    assert made.early
    assert made.before_encoding(selection(Grid(1, 6, 6), 9)) == Downscale(9)
    assert made.before_encoding(selection(Grid(1, 6, 6), 99)) == Downscale(36)
    seen = selection(Grid(2, 3, 3), 9)
    with pytest.raises(SelectorError, match="images smaller, not videos"):
        made.before_encoding(replace(seen, kind="video"))
