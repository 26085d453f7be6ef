"""Colour, position, and the maps that the caller fills: motion, memory, attention, gaze and embeddings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from arr_coc import TextureArray
from arr_coc.texture.layout import EMBEDDING_NAMES

from ...conftest import noise

MAPS = ("previous_relevance", "previous_saliency", "previous_attention", "current_attention", "gaze")


def test_colour_is_the_image(texture: TextureArray, pixels: torch.Tensor) -> None:
    assert torch.equal(texture[["red", "green", "blue"]], pixels)


def test_position_by_direct_loop(texture: TextureArray) -> None:
    height, width = texture.size
    far = math.hypot((width - 1) / 2, (height - 1) / 2)
    for row in range(0, height, 7):
        for column in range(0, width, 5):
            assert texture["x"][row, column] == pytest.approx((column + 0.5) / width, abs=1e-6)
            assert texture["y"][row, column] == pytest.approx((row + 0.5) / height, abs=1e-6)
            away = math.hypot(column + 0.5 - width / 2, row + 0.5 - height / 2) / far
            assert texture["eccentricity"][row, column] == pytest.approx(away, abs=1e-6)
    assert texture["eccentricity"][0, 0] == pytest.approx(1, abs=1e-6)


def test_cell_averages_of_position_are_the_cells_centres() -> None:
    grid = TextureArray.from_image(torch.rand(3, 48, 69)).grid(4, 3, ["x", "y"])
    assert torch.allclose(grid[0, 0], torch.tensor([1 / 6, 0.5, 5 / 6]), atol=1e-6)
    assert torch.allclose(grid[1, :, 0], torch.tensor([1, 3, 5, 7]) / 8, atol=1e-6)


def test_a_single_pixel_is_its_own_centre() -> None:
    texture = TextureArray.from_image(torch.rand(3, 1, 1))
    assert [float(texture[name]) for name in ("x", "y", "eccentricity")] == [0.5, 0.5, 0.0]


def test_without_maps_all_are_zero_and_absent() -> None:
    texture = TextureArray.from_image(noise(12, 16))
    expected = {"motion", "fixation", *MAPS, *EMBEDDING_NAMES}
    assert set(texture.absent) == expected
    for name in expected:
        assert texture[name].abs().max() == 0


def test_motion_is_the_colour_distance_to_the_previous_frame() -> None:
    now, before = noise(12, 16, 1), noise(12, 16, 2)
    motion = TextureArray.from_image(now, supplied={"previous_frame": before})["motion"]
    expected = np.sqrt(((now.double() - before.double()) ** 2).sum(0).numpy())
    assert np.abs(motion.numpy() - expected).max() < 1e-6
    still = TextureArray.from_image(now, supplied={"previous_frame": now})
    assert still["motion"].max() == 0
    assert "motion" not in still.absent


def test_the_previous_frame_is_scaled_like_the_frame() -> None:
    frame = (noise(300, 500) * 255).to(torch.uint8)
    texture = TextureArray.from_image(frame, max_side=64, supplied={"previous_frame": frame})
    assert texture["motion"].max() == 0


@pytest.mark.parametrize("name", MAPS)
def test_maps_are_resampled_to_the_textures_size(name: str) -> None:
    texture = TextureArray.from_image(noise(24, 32))
    small, same, large = torch.rand(4, 6), torch.rand(24, 32), torch.rand(48, 64)
    up = F.interpolate(small[None, None], size=(24, 32), mode="bilinear", align_corners=False)[0, 0]
    assert torch.allclose(texture.supply(**{name: small})[name], up, atol=1e-6)
    assert torch.equal(texture.supply(**{name: same})[name], same)
    assert torch.allclose(texture.supply(**{name: large})[name], F.avg_pool2d(large[None], 2)[0], atol=1e-6)
    assert torch.equal(texture.supply(**{name: same.numpy()})[name], same)


def test_fixation_decays_and_adds_the_previous_relevance() -> None:
    texture = TextureArray.from_image(noise(8, 8))
    relevance = torch.rand(8, 8)
    fixation = torch.zeros(8, 8)
    by_hand = torch.zeros(8, 8)
    for _ in range(3):  # the caller supplies the channel again for every frame
        texture = texture.supply(fixation=fixation, previous_relevance=relevance)
        fixation = texture["fixation"]
        by_hand = 0.9 * by_hand + 0.1 * relevance
    assert torch.allclose(fixation, by_hand, atol=1e-6)
    only_old = texture.supply(previous_relevance=None)["fixation"]
    assert torch.allclose(only_old, by_hand - 0.1 * relevance, atol=1e-6)


def test_fixation_starts_with_the_first_relevance() -> None:
    texture = TextureArray.from_image(noise(8, 8)).supply(previous_relevance=torch.ones(2, 2))
    assert torch.allclose(texture["fixation"], torch.full((8, 8), 0.1))
    assert "fixation" not in texture.absent


def test_embeddings_come_from_a_tensor_or_from_an_encoder_that_runs_once() -> None:
    features = torch.rand(16, 5, 7) * 2 - 1
    calls = []

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(pixels.shape))
        return features

    given = TextureArray.from_image(noise(20, 28), supplied={"embeddings": features})
    lazy = TextureArray.from_image(noise(20, 28), supplied={"embeddings": encode})
    lazy["edges"]
    assert calls == []
    block = lazy[list(EMBEDDING_NAMES)]
    assert calls == [(3, 20, 28)]
    assert torch.equal(block, given[list(EMBEDDING_NAMES)])
    up = F.interpolate(features[None], size=(20, 28), mode="bilinear", align_corners=False)[0]
    assert torch.allclose(block, up, atol=1e-5)


def test_an_encoder_that_returns_the_wrong_shape() -> None:
    texture = TextureArray.from_image(noise(8, 8), supplied={"embeddings": lambda pixels: torch.zeros(512, 2, 2)})
    with pytest.raises(ValueError, match=r"\[16, h, w\], got \[512, 2, 2\]"):
        texture["embedding_03"]


def test_products_of_waves_depend_on_the_distance_of_two_cells_alone() -> None:
    """As in rotary embeddings: cos a cos b + sin a sin b = cos(a - b)."""
    texture = TextureArray.from_image(torch.rand(3, 40, 64))
    for axis, turns, side in (("x", 2, 64), ("y", 8, 40)):
        both = texture[[f"wave_{axis}{turns}_cos", f"wave_{axis}{turns}_sin"]]  # [2, H, W]
        along = both[:, 3, :] if axis == "x" else both[:, :, 3]
        products = along.T @ along
        for step in (0, 1, 7):
            expected = math.cos(math.pi * turns * step / side)
            assert torch.allclose(products.diagonal(step), torch.tensor(expected), atol=1e-5)
    assert "wave_x1_cos" not in texture
