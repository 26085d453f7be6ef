"""Embeddings: dense features of an image-text encoder, compressed to 16 dimensions, supplied by the caller."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from arr_coc.texture.layout import EMBEDDING_NAMES, channel
from arr_coc.texture.supplied import Embedder, check_embeddings, fit

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray


def _features(texture: TextureArray) -> torch.Tensor | None:
    """The encoder's own grid `[16, h, w]`, encoded on first use, or None."""
    given = texture.supplied("embeddings")
    if not callable(given):
        features: torch.Tensor | None = given
        return features

    def encode() -> torch.Tensor:
        texture.supplied("embeddings")  # so that it is made anew when others are supplied
        made = given.channels(texture) if isinstance(given, Embedder) else given(texture.pixels)
        return check_embeddings(made, texture.picture)

    return texture.once("embeddings", encode)


def _register(number: int, name: str) -> None:
    @channel(
        name, family="embedding", range=(-math.inf, math.inf), cost="costly", supplied_by=("embeddings",),
        meaning=f"dimension {number + 1} of 16 of the joint image-text space",
    )  # fmt: skip
    def dimension(texture: TextureArray) -> torch.Tensor:
        features = _features(texture)
        return texture.constant(0.0) if features is None else fit(features[number], texture.size)


for _number, _name in enumerate(EMBEDDING_NAMES):
    _register(_number, _name)
