"""Edges of both polarities, detail, blur and the distance to the nearest edge, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from arr_coc import TextureArray
from arr_coc.texture.channels.edges import distance_to, jump_flooding


def luma_of(texture: TextureArray) -> np.ndarray:
    return np.tensordot([0.299, 0.587, 0.114], texture.pixels.double().numpy(), axes=1)


def gradient_of(luma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = (ndimage.sobel(luma, axis, mode="nearest") / 4 for axis in (1, 0))
    return x, y, np.hypot(x, y)


def test_sobel_channels(texture: TextureArray) -> None:
    for name, expected in zip(("sobel_x", "sobel_y", "edge_magnitude"), gradient_of(luma_of(texture)), strict=True):
        assert np.abs(texture[name].numpy() - expected).max() < 1e-5


def test_edges_split_the_magnitude_by_polarity(texture: TextureArray) -> None:
    luma = luma_of(texture)
    magnitude = gradient_of(luma)[2]
    s = luma - ndimage.gaussian_filter(luma, 2, mode="nearest")
    sure = np.abs(s) > 1e-6  # where float32 cannot resolve the sign, both answers are right
    assert np.abs(texture["edges"].numpy() - np.where(s < 0, magnitude, 0))[sure].max() < 1e-5
    assert np.abs(texture["edges_inverted"].numpy() - np.where(s >= 0, magnitude, 0))[sure].max() < 1e-5
    assert torch.equal(texture["edges"] + texture["edges_inverted"], texture["edge_magnitude"])


def test_inverting_the_image_swaps_the_polarities() -> None:
    page = torch.full((3, 40, 60), 0.9)
    page[:, 18:22, 10:50] = 0.2  # a dark stroke on light paper
    dark, light = TextureArray.from_image(page), TextureArray.from_image(1 - page)
    inside = dark["edges"][18:22, 12:48]
    assert inside.max() > 0.3
    assert dark["edges_inverted"][18:22, 12:48].max() == 0
    assert light["edges"][18:22, 12:48].max() == 0
    assert torch.allclose(light["edges_inverted"][18:22, 12:48], inside, atol=1e-6)


def test_a_straight_step_has_the_magnitude_of_its_height() -> None:
    page = torch.zeros(3, 20, 20)
    page[:, :, 10:] = 0.6
    assert TextureArray.from_image(page)["edge_magnitude"].max() == pytest.approx(0.6, abs=1e-6)


def test_the_declared_top_of_the_range_is_reached_by_a_corner() -> None:
    page = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).expand(3, 3, 3)
    texture = TextureArray.from_image(page, layout=["edge_magnitude"])
    assert float(texture["edge_magnitude"].max()) == pytest.approx(texture.channels[0].range[1], abs=1e-6)


def test_highpass_and_lowpass(texture: TextureArray) -> None:
    luma = luma_of(texture)
    assert np.abs(texture["highpass"].numpy() - np.abs(ndimage.laplace(luma, mode="nearest")) / 4).max() < 1e-5
    assert np.abs(texture["lowpass"].numpy() - ndimage.gaussian_filter(luma, 4, mode="nearest")).max() < 1e-5


def test_distance_equals_scipys_transform(texture: TextureArray) -> None:
    height, width = texture.size
    edge = texture["edge_magnitude"].numpy() > 0.1
    expected = np.minimum(ndimage.distance_transform_edt(~edge) / (np.hypot(height, width) / 2), 1)
    assert np.abs(texture["distance"].numpy() - expected).max() < 1e-5


@pytest.mark.parametrize(("size", "share"), [((1, 1), 1), ((1, 50), 0.1), ((97, 513), 0.0005), ((200, 170), 0.02)])
def test_exact_distance_and_jump_flooding_on_sparse_points(size: tuple[int, int], share: float) -> None:
    mask = np.random.default_rng(1).random(size) < share
    mask.flat[mask.size // 3] = True
    expected = ndimage.distance_transform_edt(~mask)
    exact = distance_to(torch.from_numpy(mask)).numpy()
    assert np.abs(exact - expected).max() < 1e-4
    flooded = jump_flooding(torch.from_numpy(mask)).numpy()
    assert (np.abs(flooded - expected) < 1e-4).mean() > 0.995
    assert np.abs(flooded - expected).max() < 2


def test_distance_without_any_edge_is_one() -> None:
    assert TextureArray.from_image(torch.full((3, 30, 40), 0.4))["distance"].unique().tolist() == [1.0]


def test_distance_is_clamped_to_one() -> None:
    page = torch.zeros(3, 4, 300)
    page[:, :, 0] = 1
    distance = TextureArray.from_image(page)["distance"]
    assert distance[0, 0] == 0
    assert distance[0, -1] == 1
