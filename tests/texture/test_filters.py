"""Filters against scipy, by OpenCV and by torch; pooling on grids that do not divide; and the mip pyramid."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from skimage.color import rgb2lab

from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.texture import filters
from arr_coc.texture.layout import Pool
from arr_coc.types.grid import cell_boxes

SIZES = [(1, 1), (1, 9), (7, 1), (5, 6), (33, 40)]
side = st.integers(1, 40)


@pytest.fixture(params=["opencv", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(filters, "_on_cpu", lambda plane: False)
    return request.param


def plane(size: tuple[int, int]) -> tuple[torch.Tensor, np.ndarray]:
    values = np.random.default_rng(size[0] * 100 + size[1]).random(size).astype(np.float32)
    return torch.from_numpy(values), values.astype(np.float64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sigma", [0.8, 2.0, 4.0])
def test_gaussian(backend: str, size: tuple[int, int], sigma: float) -> None:
    x, reference = plane(size)
    assert (
        np.abs(filters.gaussian(x, sigma).numpy() - ndimage.gaussian_filter(reference, sigma, mode="nearest")).max()
        < 1e-5
    )


@pytest.mark.parametrize("size", SIZES)
def test_sobel_and_magnitude(backend: str, size: tuple[int, int]) -> None:
    x, reference = plane(size)
    across, down = filters.sobel(x)
    expected_x, expected_y = (ndimage.sobel(reference, axis, mode="nearest") / 4 for axis in (1, 0))
    assert np.abs(across.numpy() - expected_x).max() < 1e-5
    assert np.abs(down.numpy() - expected_y).max() < 1e-5
    assert np.abs(filters.magnitude(across, down).numpy() - np.hypot(expected_x, expected_y)).max() < 1e-5


@pytest.mark.parametrize("size", SIZES)
def test_laplacian(backend: str, size: tuple[int, int]) -> None:
    x, reference = plane(size)
    assert np.abs(filters.laplacian(x).numpy() - ndimage.laplace(reference, mode="nearest") / 4).max() < 1e-5


@pytest.mark.parametrize("size", SIZES)
def test_box_mean_and_window_max(backend: str, size: tuple[int, int]) -> None:
    x, reference = plane(size)
    assert (
        np.abs(filters.box_mean(x, 5, 9).numpy() - ndimage.uniform_filter(reference, (5, 9), mode="nearest")).max()
        < 1e-5
    )
    assert (
        np.abs(filters.window_max(x, 5, 9).numpy() - ndimage.maximum_filter(reference, (5, 9), mode="nearest")).max()
        < 1e-6
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", [(40, 61), (33, 40), (200, 3)])
def test_resize_is_bilinear_with_half_pixel_centres(
    backend: str, size: tuple[int, int], target: tuple[int, int]
) -> None:
    x, reference = plane(size)
    rows = np.clip((np.arange(target[0]) + 0.5) * size[0] / target[0] - 0.5, 0, size[0] - 1)
    columns = np.clip((np.arange(target[1]) + 0.5) * size[1] / target[1] - 0.5, 0, size[1] - 1)
    expected = ndimage.map_coordinates(reference, np.meshgrid(rows, columns, indexing="ij"), order=1, mode="nearest")
    assert np.abs(filters.resize(x, target).numpy() - expected).max() < 1e-5


def test_luma() -> None:
    pixels = torch.rand(3, 5, 6)
    expected = 0.299 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2]
    assert torch.allclose(filters.luma(pixels), expected, atol=1e-6)


def test_rgb_to_lab_equals_scikit_images() -> None:
    pixels = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = rgb2lab(pixels.permute(1, 2, 0).double().numpy())
    assert np.abs(filters.rgb_to_lab(pixels).permute(1, 2, 0).numpy() - expected).max() < 0.02
    gray = filters.rgb_to_lab(torch.full((3, 1, 1), 0.5))
    assert gray[1:].abs().max() < 0.02


def values(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 97 + width).random((height, width))


def slow_mean(plane: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Area-weighted average of each cell, pixel by pixel."""
    height, width = plane.shape
    out = np.zeros(grid)
    for r in range(grid[0]):
        for c in range(grid[1]):
            top, bottom = r * height / grid[0], (r + 1) * height / grid[0]
            left, right = c * width / grid[1], (c + 1) * width / grid[1]
            total = 0.0
            for y in range(math.floor(top), min(height, math.ceil(bottom))):
                for x in range(math.floor(left), min(width, math.ceil(right))):
                    total += plane[y, x] * (min(bottom, y + 1) - max(top, y)) * (min(right, x + 1) - max(left, x))
            out[r, c] = total / ((bottom - top) * (right - left))
    return out


@given(side, side, st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_mean_is_the_exact_area_average(height: int, width: int, rows: int, columns: int) -> None:
    plane = values(height, width)
    got = filters.pool(torch.from_numpy(plane).float(), (rows, columns), "mean").numpy()
    assert np.abs(got - slow_mean(plane, (rows, columns))).max() < 1e-5


@pytest.mark.parametrize(("pixels", "cells"), [(1023, 1022), (1201, 1200), (1100, 1007)])
def test_mean_is_exact_where_pixels_barely_reach_into_a_cell(pixels: int, cells: int) -> None:
    plane = np.zeros((1, pixels))
    plane[0, ::2] = 1
    got = filters.pool(torch.from_numpy(plane).float(), (1, cells), "mean").numpy()
    assert np.abs(got - slow_mean(plane, (1, cells))).max() < 1e-5


@pytest.mark.parametrize("size", [(2048, 2048), (3000, 7)])
@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (40, 5), (1000, 7)])
def test_mean_is_exact_for_large_cells_and_images(size: tuple[int, int], grid: tuple[int, int]) -> None:
    plane = torch.rand(size, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.7
    down, across = (
        torch.stack([torch.as_tensor(row) for row in slow_shares(n, m)]) for n, m in zip(size, grid, strict=True)
    )
    expected = down @ plane.double() @ across.T
    assert (filters.pool(plane, grid, "mean").double() - expected).abs().max() < 2e-6


def slow_shares(pixels: int, cells: int) -> np.ndarray:
    """The share of each cell that each pixel covers."""
    shares = np.zeros((cells, pixels))
    for cell in range(cells):
        low, high = cell * pixels / cells, (cell + 1) * pixels / cells
        for pixel in range(math.floor(low), min(pixels, math.ceil(high))):
            shares[cell, pixel] = max(0.0, min(high, pixel + 1) - max(low, pixel)) * cells / pixels
    return shares


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_long_strip_in_any_precision(dtype: torch.dtype) -> None:
    plane = torch.rand(3, 20000, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = plane.double().reshape(3, 10000, 2).mean(-1)[:1]
    assert (filters.pool(plane[:1], (1, 10000), "mean").double() - expected).abs().max() < 5e-3
    assert filters.pool(plane.float().requires_grad_(), (1, 10000), "mean").shape == (1, 10000)


def test_mean_has_a_gradient() -> None:
    plane = torch.from_numpy(values(61, 47)).float()
    with_gradient = plane.clone().requires_grad_()
    averaged = filters.pool(with_gradient, (9, 7), "mean")
    assert torch.allclose(averaged, filters.pool(plane, (9, 7), "mean"), atol=1e-6)
    averaged.sum().backward()
    assert with_gradient.grad is not None
    # Every pixel counts the same in the sum of equal cells.
    assert torch.allclose(with_gradient.grad, torch.full_like(plane, 9 * 7 / (61 * 47)), atol=1e-6)


@given(side, side, st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_max_is_over_all_pixels_that_the_cell_touches(height: int, width: int, rows: int, columns: int) -> None:
    plane = values(height, width).astype(np.float32)
    got = filters.pool(torch.from_numpy(plane), (rows, columns), "max").numpy()
    for r in range(rows):
        for c in range(columns):
            window = plane[
                r * height // rows : -(-(r + 1) * height // rows), c * width // columns : -(-(c + 1) * width // columns)
            ]
            assert got[r, c] == window.max()


@pytest.mark.parametrize("size", [(37, 27), (592, 432), (256, 192), (512, 384), (128, 96), (1000, 9), (1, 1)])
def test_ways_to_pool_a_whole_picture_agree(size: tuple[int, int]) -> None:
    """Rows that count, colours resized together, and halves of halves, against products with all shares."""
    planes = torch.rand(3, 1024, 768, generator=torch.Generator().manual_seed(1))
    down, across = (filters._shares(n, m, planes.device).double() for n, m in zip((1024, 768), size, strict=True))
    for plane, mean in zip(planes, filters.pool_means(planes, size), strict=True):
        assert (mean.double() - down @ plane.double() @ across.T).abs().max() < 2e-6
        assert (mean - filters.pool(plane, size, "mean")).abs().max() < 1e-6
        assert torch.equal(filters.pool(plane, size, "max"), F.adaptive_max_pool2d(plane[None], size)[0])


@given(side, side, st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_nearest_is_the_pixel_under_the_centre(height: int, width: int, rows: int, columns: int) -> None:
    plane = values(height, width)
    got = filters.pool(torch.from_numpy(plane), (rows, columns), "nearest").numpy()
    for r in range(rows):
        for c in range(columns):
            assert got[r, c] == plane[(2 * r + 1) * height // (2 * rows), (2 * c + 1) * width // (2 * columns)]


def test_a_constant_plane_takes_no_memory() -> None:
    pooled = filters.pool(torch.zeros(1, 1).expand(1000, 1000), (44, 20), "mean")
    assert pooled.shape == (44, 20)
    assert pooled.stride() == (0, 0)


def test_boxes_tile_the_picture_exactly() -> None:
    boxes = cell_boxes((3, 7), (1000, 333)).view(3, 7, 4)
    assert boxes.dtype == torch.float64
    assert torch.equal(boxes[:, 1:, 0], boxes[:, :-1, 2])  # neighbours share their border to the last bit
    assert torch.equal(boxes[1:, :, 1], boxes[:-1, :, 3])
    assert boxes[0, 0, :2].tolist() == [0, 0]
    assert boxes[-1, -1, 2:].tolist() == [333, 1000]


@given(st.integers(1, 97), st.integers(1, 130))
@settings(max_examples=40, deadline=None)
def test_sizes_halve_down_to_one_and_the_mean_is_kept(height: int, width: int) -> None:
    plane = torch.rand(height, width, generator=torch.Generator().manual_seed(height * 131 + width))
    pyramid = filters.Pyramid(plane, "mean")
    for number in range(filters.level_count((height, width))):
        level = pyramid.level(number)
        assert tuple(level.shape) == filters.level_size((height, width), number)
        assert abs(float(level.mean() - plane.mean())) < 1e-5
    assert level.shape == (1, 1)


@given(st.integers(1, 97), st.integers(1, 130))
@settings(max_examples=40, deadline=None)
def test_max_pooling_keeps_the_maximum(height: int, width: int) -> None:
    plane = torch.rand(height, width, generator=torch.Generator().manual_seed(height * 137 + width))
    pyramid = filters.Pyramid(plane, "max")
    for number in range(filters.level_count((height, width))):
        assert pyramid.level(number).max() == plane.max()


@given(st.integers(1, 97), st.integers(1, 130), st.sampled_from(["mean", "max"]))
@settings(max_examples=40, deadline=None)
def test_every_level_equals_pooling_level_0(height: int, width: int, rule: Pool) -> None:
    plane = torch.rand(height, width, generator=torch.Generator().manual_seed(height * 139 + width))
    pyramid = filters.Pyramid(plane, rule)
    for number in range(filters.level_count((height, width))):
        expected = filters.pool(plane, filters.level_size((height, width), number), rule)
        assert torch.allclose(pyramid.level(number), expected, atol=1e-5)


def test_concurrent_threads_build_the_right_levels() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # let threads interrupt each other everywhere
    try:
        for _ in range(10):
            pyramid = filters.Pyramid(torch.rand(257, 131), "max")
            with ThreadPoolExecutor(8) as pool_of_threads:
                levels = list(pool_of_threads.map(pyramid.level, [*range(9)] * 4))
            for number, level in zip([*range(9)] * 4, levels, strict=True):
                assert tuple(level.shape) == filters.level_size((257, 131), number)
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
    pyramid = filters.Pyramid(plane, "nearest")
    assert pyramid.level(2).tolist() == [[plane[2, 2], plane[2, 6]], [plane[6, 2], plane[6, 6]]]


@pytest.mark.parametrize("level", [-1, 7, 1.5, True])
def test_a_level_out_of_range_is_refused(level: object) -> None:
    texture = TextureArray.from_image(torch.zeros(3, 64, 48))
    with pytest.raises(ArrCocError, match="level from 0 to 6"):
        texture.level("red", level)  # type: ignore[arg-type]
