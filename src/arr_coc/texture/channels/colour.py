"""Colour: the image itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray


@channel("red", family="colour", cost="free", meaning="red of the image")
def red(texture: TextureArray) -> torch.Tensor:
    return texture.pixels[0]


@channel("green", family="colour", cost="free", meaning="green of the image")
def green(texture: TextureArray) -> torch.Tensor:
    return texture.pixels[1]


@channel("blue", family="colour", cost="free", meaning="blue of the image")
def blue(texture: TextureArray) -> torch.Tensor:
    return texture.pixels[2]
