"""Levels of any size, each channel by its own rule."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.texture.layout import Pool
from arr_coc.texture.pooling import pool
from arr_coc.texture.pyramid import Pyramid, level_count, level_size


@given(st.integers(1, 97), st.integers(1, 130))
@settings(max_examples=40, deadline=None)
def test_sizes_halve_down_to_one_and_the_mean_is_kept(height: int, width: int) -> None:
    plane = torch.rand(height, width, generator=torch.Generator().manual_seed(height * 131 + width))
    pyramid = Pyramid(plane, "mean")
    for number in range(level_count((height, width))):
        level = pyramid.level(number)
        assert tuple(level.shape) == level_size((height, width), number)
        assert abs(float(level.mean() - plane.mean())) < 1e-5
    assert level.shape == (1, 1)


@given(st.integers(1, 97), st.integers(1, 130))
@settings(max_examples=40, deadline=None)
def test_the_largest_value_survives_max_pooling(height: int, width: int) -> None:
    plane = torch.rand(height, width, generator=torch.Generator().manual_seed(height * 137 + width))
    pyramid = Pyramid(plane, "max")
    for number in range(level_count((height, width))):
        assert pyramid.level(number).max() == plane.max()


@given(st.integers(1, 97), st.integers(1, 130), st.sampled_from(["mean", "max"]))
@settings(max_examples=40, deadline=None)
def test_every_level_equals_pooling_the_image_itself(height: int, width: int, rule: Pool) -> None:
    plane = torch.rand(height, width, generator=torch.Generator().manual_seed(height * 139 + width))
    pyramid = Pyramid(plane, rule)
    for number in range(level_count((height, width))):
        expected = pool(plane, level_size((height, width), number), rule)
        assert torch.allclose(pyramid.level(number), expected, atol=1e-5)


def test_threads_that_build_levels_at_once_get_the_right_ones() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # let threads interrupt each other everywhere
    try:
        for _ in range(20):
            pyramid = Pyramid(torch.rand(257, 131), "max")
            with ThreadPoolExecutor(8) as pool_of_threads:
                levels = list(pool_of_threads.map(pyramid.level, [*range(9)] * 4))
            for number, level in zip([*range(9)] * 4, levels, strict=True):
                assert tuple(level.shape) == level_size((257, 131), number)
    finally:
        sys.setswitchinterval(interval)


def test_cluster_ids_are_never_averaged() -> None:
    texture = TextureArray.from_image(torch.rand(3, 61, 83, generator=torch.Generator().manual_seed(3)))
    known = set(texture["cluster_id"].unique().tolist())
    assert len(known) > 10
    for number in range(texture.levels):
        assert set(texture.level("cluster_id", number).unique().tolist()) <= known


def test_a_coarse_id_is_the_id_under_the_cells_centre() -> None:
    plane = torch.arange(64.0).view(8, 8)
    pyramid = Pyramid(plane, "nearest")
    assert pyramid.level(2).tolist() == [[plane[2, 2], plane[2, 6]], [plane[6, 2], plane[6, 6]]]


@pytest.mark.parametrize("level", [-1, 7, 1.5, True])
def test_a_level_that_is_not_there(level: object) -> None:
    texture = TextureArray.from_image(torch.zeros(3, 64, 48))
    with pytest.raises(ArrCocError, match="level from 0 to 6"):
        texture.level("red", level)  # type: ignore[arg-type]
