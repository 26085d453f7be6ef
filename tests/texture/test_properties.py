"""What holds for every image: any size, constants, gradients, single pixels."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc import TextureArray, all_channels

sizes = st.tuples(st.integers(1, 97), st.integers(1, 513))
kinds = st.sampled_from(["noise", "constant", "black", "white", "gradient", "single pixel", "stripes"])
NAMES = [channel.name for channel in all_channels()]


def draw(kind: str, height: int, width: int) -> torch.Tensor:
    image = torch.full((3, height, width), {"constant": 0.37, "white": 1.0}.get(kind, 0.0))
    if kind == "noise":
        return torch.rand(3, height, width, generator=torch.Generator().manual_seed(height * 1000 + width))
    if kind == "gradient":
        return torch.linspace(0, 1, width).expand(3, height, width).clone()
    if kind == "single pixel":
        image[:, height // 2, width // 2] = 1
    if kind == "stripes":
        image[:, :, ::2] = 1
    return image


@given(sizes, kinds)
@settings(max_examples=40, deadline=None)
def test_all_channels_are_finite_in_range_and_of_the_images_size(size: tuple[int, int], kind: str) -> None:
    texture = TextureArray.from_image(draw(kind, *size), layout=NAMES)
    for channel in texture.channels:
        plane = texture[channel.name]
        assert tuple(plane.shape) == size
        assert plane.isfinite().all(), channel.name
        assert plane.min() >= channel.range[0] - 1e-5, channel.name
        assert plane.max() <= channel.range[1] + 1e-5, channel.name


@given(sizes, kinds, st.integers(1, 9), st.integers(1, 9), st.floats(0, 10))
@settings(max_examples=25, deadline=None)
def test_cells_and_samples_stay_within_the_channels_values(
    size: tuple[int, int], kind: str, rows: int, columns: int, level: float
) -> None:
    texture = TextureArray.from_image(draw(kind, *size))
    cells = texture.grid(rows, columns)
    read = texture.sample(torch.rand(6, 2, generator=torch.Generator().manual_seed(1)), level)
    for i, name in enumerate(texture.names):
        low, high = texture[name].min() - 1e-5, texture[name].max() + 1e-5
        for values in (cells[i], read[:, i]):
            assert values.min() >= low, name
            assert values.max() <= high, name


@given(sizes)
@settings(max_examples=15, deadline=None)
def test_a_constant_image_says_nothing(size: tuple[int, int]) -> None:
    texture = TextureArray.from_image(draw("constant", *size))
    for name in ("edges", "edges_inverted", "highpass", "saliency"):
        assert texture[name].abs().max() < 1e-6, name
    assert texture["distance"].min() == 1
    assert (texture["lowpass"] - 0.37).abs().max() < 1e-5
