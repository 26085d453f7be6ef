"""Saliency: how much a pixel differs from its surroundings in colour and brightness, at several scales.

Centre-surround differences over a pyramid in CIE Lab: a fine level minus an enlarged coarse one. The pyramid averages
areas; Lab is computed at the finest centre, which has a sixteenth of the pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.texture import filters
from arr_coc.texture.kernels import dispatch as kernels
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

CENTRES = (2, 3, 4)
SURROUNDS = (3, 4)  # levels above the centre
FLAT = 1e-3  # Lab units; a smaller range is rounding, not contrast


@channel(
    "saliency",
    family="saliency",
    cost="moderate",
    meaning="contrast to the surroundings in colour and brightness, over several scales",
)
def saliency(texture: TextureArray) -> torch.Tensor:
    pairs = centre_surround_pairs(texture.levels)
    if not pairs:
        return texture.constant(0.0)
    made = kernels.saliency_plane(texture)
    if made is not None:
        return made
    finest, coarsest = pairs[0][0], max(surround for _, surround in pairs)
    sizes = texture.level_sizes
    small = torch.stack(filters.pool_means(texture.pixels, sizes[finest]))
    levels = {finest: list(filters.rgb_to_lab(small))}
    for number in range(finest + 1, coarsest + 1):
        levels[number] = filters.pool_means(levels[number - 1], sizes[number])
    total = torch.zeros(sizes[finest], device=texture.device)
    for centre, surround in pairs:
        for fine, coarse in zip(levels[centre], levels[surround], strict=True):
            contrast = (fine - filters.resize(coarse, sizes[centre])).abs()
            total += filters.resize(contrast, sizes[finest])
    full = filters.resize(total, texture.size)
    low, high = torch.aminmax(full)
    if float(high - low) < FLAT:
        return texture.constant(0.0)
    return (full - low).div_(high - low)


def centre_surround_pairs(levels: int) -> list[tuple[int, int]]:
    """The (centre, surround) levels that fit into a pyramid of `levels`; small images start at finer centres."""
    top = levels - 1
    pairs = [(c, c + s) for c in CENTRES for s in SURROUNDS if c + s <= top]
    return pairs or [(c, top) for c in (0, 1) if c < top]
