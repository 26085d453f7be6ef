"""Saliency against a direct implementation on scikit-image's Lab, and on simple pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.color import rgb2lab
from skimage.transform import resize

from arr_coc import TextureArray
from arr_coc.texture.channels.edges import centre_surround_pairs

from ...conftest import noise


def halve(image: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    return image.reshape(height // 2, 2, width // 2, 2, -1).mean((1, 3))


def enlarge(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return resize(image, size, order=1, mode="edge", anti_aliasing=False)


def test_equals_the_direct_implementation() -> None:
    pixels = noise(256, 128, seed=5)
    pixels[:, 90:130, 40:70] = torch.tensor([0.9, 0.1, 0.1])[:, None, None]
    image = pixels.permute(1, 2, 0).double().numpy()
    levels = {2: rgb2lab(halve(halve(image)))}
    for number in range(3, 8):
        levels[number] = halve(levels[number - 1])
    total = np.zeros((64, 32))
    for centre, surround in ((2, 5), (2, 6), (3, 6), (3, 7), (4, 7)):  # level 8 does not fit into 256 x 128 evenly
        coarse = enlarge(levels[surround], levels[centre].shape[:2])
        total += enlarge(np.abs(levels[centre] - coarse).sum(-1), (64, 32))
    # Level 8 is one pixel for 256 x 128.
    total += enlarge(np.abs(levels[4] - levels[7].mean((0, 1))).sum(-1), (64, 32))
    full = enlarge(total, (256, 128))
    expected = (full - full.min()) / (full.max() - full.min())
    assert np.abs(TextureArray.from_image(pixels)["saliency"].numpy() - expected).max() < 2e-3


def test_the_odd_one_out_is_salient() -> None:
    page = torch.full((3, 200, 300), 0.5)
    page[:, 80:110, 200:230] = torch.tensor([0.9, 0.1, 0.1])[:, None, None]
    saliency = TextureArray.from_image(page)["saliency"]
    assert saliency[85:105, 205:225].mean() > 0.7
    assert saliency[20:60, 20:120].mean() < 0.1
    assert (float(saliency.min()), float(saliency.max())) == (0.0, 1.0)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (64, 64), (300, 200)])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_image_has_no_saliency(size: tuple[int, int], value: float) -> None:
    assert TextureArray.from_image(torch.full((3, *size), value))["saliency"].abs().max() == 0


def test_levels_adapt_to_the_size() -> None:
    assert centre_surround_pairs(11) == [(2, 5), (2, 6), (3, 6), (3, 7), (4, 7), (4, 8)]
    assert centre_surround_pairs(7) == [(2, 5), (2, 6), (3, 6)]
    assert centre_surround_pairs(4) == [(0, 3), (1, 3)]
    assert centre_surround_pairs(2) == [(0, 1)]
    assert centre_surround_pairs(1) == []
