"""Both implementations of every filter against scipy and against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage.color import rgb2lab

from arr_coc.texture import filters

SIZES = [(1, 1), (1, 9), (7, 1), (5, 6), (33, 40)]


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
