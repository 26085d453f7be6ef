"""Values of cells reach the viewer exactly, for plain grids and for tiles."""

from __future__ import annotations

import torch

import arr_coc
from arr_coc.demo.cells import STEPS, channel_values, pack, unpack
from arr_coc.types.grid import Grid, Mosaic


def test_packed_values_are_restored_to_a_16_bit_step() -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(0)) * 7
    layer = pack(values)
    step = (layer["high"] - layer["low"]) / STEPS
    torch.testing.assert_close(unpack(layer), values.double(), rtol=0, atol=0.51 * step)
    assert unpack(pack(torch.full((3,), 2.5))).tolist() == [2.5] * 3


def test_channels_of_tiles_are_read_where_the_tiles_are() -> None:
    texture = arr_coc.TextureArray.from_image(arr_coc.pictures.scene())
    plain = channel_values(texture, Grid(1, 4, 6), ["x", "y"])
    torch.testing.assert_close(plain, texture.grid(4, 6, ["x", "y"]).flatten(1).float())
    tiles = Mosaic((Grid(1, 2, 2), Grid(1, 2, 2, (0.5, 0.5, 1.0, 1.0))))
    x, y = channel_values(texture, tiles, ["x", "y"])
    torch.testing.assert_close(x, torch.tensor([0.25, 0.75, 0.25, 0.75, 0.625, 0.875, 0.625, 0.875]), atol=0.03, rtol=0)
    torch.testing.assert_close(y, torch.tensor([0.25, 0.25, 0.75, 0.75, 0.625, 0.625, 0.875, 0.875]), atol=0.03, rtol=0)
