"""Edges and detail, all from luma.

The gradient's magnitude m is split by polarity: a pixel darker than its surroundings belongs to dark ink, a lighter one to
light ink, so dark-on-light and light-on-dark text separate although both have the same m.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.texture import filters
from arr_coc.texture.kernels import planes as kernels
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

SURROUNDINGS = 2.0  # px; wide enough to reach across a stroke of small print
COARSE = 4.0  # px
TOP = 5**0.5 / 2  # m at the sharpest corner; a straight step of height 1 has m = 1


def luma(texture: TextureArray) -> torch.Tensor:
    """Luma in full precision, shared by the channels: float32 `[H, W]`."""
    return texture.once("luma", lambda: filters.luma(texture.pixels))


def gradient(texture: TextureArray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(along x, along y, m) in full precision, shared by the channels: each float32 `[H, W]`."""

    def make() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, y = filters.sobel(luma(texture))
        return x, y, filters.magnitude(x, y)

    return texture.once("gradient", make)


def polarity(texture: TextureArray) -> torch.Tensor:
    """True where a pixel is darker than its surroundings, shared by the channels: bool `[H, W]`."""

    def make() -> torch.Tensor:
        return luma(texture) < filters.gaussian(luma(texture), SURROUNDINGS)

    return texture.once("polarity", make)


@channel(
    "edges",
    family="edges",
    range=(0, TOP),
    pool="max",
    cost="cheap",
    meaning="gradient of ink darker than its surroundings",
)
def edges(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "edges")
    return gradient(texture)[2] * polarity(texture) if made is None else made


@channel(
    "edges_inverted",
    family="edges",
    range=(0, TOP),
    pool="max",
    cost="cheap",
    meaning="gradient of ink lighter than its surroundings",
)
def edges_inverted(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "edges_inverted")
    return gradient(texture)[2] * ~polarity(texture) if made is None else made


@channel("sobel_x", family="edges", range=(-1, 1), cost="cheap", meaning="signed derivative of luma from left to right")
def sobel_x(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "sobel_x")
    return gradient(texture)[0] if made is None else made


@channel("sobel_y", family="edges", range=(-1, 1), cost="cheap", meaning="signed derivative of luma from top to bottom")
def sobel_y(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "sobel_y")
    return gradient(texture)[1] if made is None else made


@channel(
    "edge_magnitude",
    family="edges",
    range=(0, TOP),
    pool="max",
    cost="cheap",
    meaning="gradient of luma, either polarity",
)
def edge_magnitude(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "edge_magnitude")
    return gradient(texture)[2] if made is None else made


@channel("highpass", family="edges", cost="cheap", meaning="fine detail: absolute Laplacian of luma")
def highpass(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "highpass")
    return filters.laplacian(luma(texture)).abs_() if made is None else made


@channel("lowpass", family="edges", cost="cheap", meaning="coarse structure: luma blurred by 4 px")
def lowpass(texture: TextureArray) -> torch.Tensor:
    made = kernels.edge_planes(texture, "lowpass")
    return filters.gaussian(luma(texture), COARSE) if made is None else made
