"""Text by its strokes: how likely a pixel belongs to a line of print, without a neural network.

Five facts about print are used. Letters have slopes in both directions, unlike bars; brightness swings across its mean
many times along a line; what the letters stand on is even, unlike fur or leaves; there is more of it than of ink, unlike
noise, where light and dark are in balance; and a line of letters, joined, has some height, unlike a dashed rule. A
logistic curve over the five gives the likelihood.
`benchmarks/fit_text.py` made its weights; docs/texture.md has its precision, recall and limits.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from arr_coc.texture import filters
from arr_coc.texture.kernels.replaying import Replays, recordable
from arr_coc.texture.pooling import pool

HEIGHT = 5  # px at half size; what is lower than this is no line of letters
# Logistic weights of text_features, in its order, and the constant.
WEIGHTS = (1.653, 7.589, -0.980, 5.797, 0.907)
BIAS = -3.205
RECORDED = 1 << 22  # px of an image up to which a GPU keeps what it takes: a hundred launches become one
_replays = Replays(kept=8)


def stroke_text(pixels: torch.Tensor) -> torch.Tensor:
    """An image `[3, H, W]` in [0, 1] to a likelihood in [0, 1] at half the size."""
    if recordable(pixels) and pixels.shape[-1] * pixels.shape[-2] <= RECORDED:
        (found,) = _replays.run(None, None, lambda given: (text_likelihood(filters.luma(given)),), (pixels,))
        return found
    return text_likelihood(filters.luma(pixels))


def text_likelihood(brightness: torch.Tensor) -> torch.Tensor:
    """Luma `[H, W]` to a likelihood in [0, 1] at half the size."""
    return torch.tensordot(_weights(brightness.device), text_features(brightness), dims=1).add_(BIAS).sigmoid_()


@lru_cache(maxsize=8)
def _weights(device: torch.device) -> torch.Tensor:
    """Sent once: a copy from the host would make everybody wait."""
    return torch.tensor(WEIGHTS, device=device)


def text_features(brightness: torch.Tensor) -> torch.Tensor:
    """Luma `[H, W]` to (slopes, swings, unevenness, imbalance, height) at half the size: `[5, h, w]`.

    All five are the same for light ink on dark ground.
    """
    rows, columns = brightness.shape
    small = pool(brightness, (max(1, rows // 2), max(1, columns // 2)), "mean")
    across, down = (slope.abs_() for slope in filters.sobel(small))
    slopes = torch.minimum(filters.box_mean(across, 7, 15), filters.box_mean(down, 7, 15))

    mean = filters.box_mean(small, 15, 15)
    spread = (filters.box_mean(small * small, 15, 15) - mean * mean).clamp_(min=0)
    above = small > mean
    swing = torch.zeros_like(small)
    swing[:, :-1] = (above[:, 1:] != above[:, :-1]) & (spread[:, :-1] > 0.04**2)  # a swing within noise is none
    swings = filters.box_mean(swing, 7, 21)

    lightest, darkest = filters.window_max(small, 9, 9), filters.window_max(1 - small, 9, 9)
    unevenness = torch.minimum(_roughness(lightest), _roughness(darkest))
    reach = (lightest + darkest - 1).clamp_(min=0.02)  # from the darkest to the lightest pixel around
    imbalance = filters.box_mean(((lightest - darkest + 1 - 2 * mean) / reach).abs_().clamp_(max=1), 7, 15)

    joined = filters.window_max(torch.maximum(across, down), 1, 9)  # letters of a line, over the gaps between them
    thinned = 1 - filters.window_max(1 - joined, HEIGHT, 1)
    height = filters.box_mean(filters.window_max(thinned, HEIGHT, 1), 7, 15)
    logs = [torch.log(feature + 0.01) for feature in (slopes, unevenness, height)]
    return torch.stack([logs[0], swings, logs[1], imbalance, logs[2]])


def _roughness(plane: torch.Tensor) -> torch.Tensor:
    return filters.box_mean((plane - filters.box_mean(plane, 21, 21)).abs_(), 15, 15)
