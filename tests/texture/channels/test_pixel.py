"""Colour and position."""

from __future__ import annotations

import math

import pytest
import torch

from arr_coc import TextureArray


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
