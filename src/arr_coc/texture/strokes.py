"""Text by its strokes: how likely a pixel belongs to a line of print, without a neural network.

Four facts about print are used. Letters have slopes in both directions, unlike solid rules; brightness swings across its
mean many times along a line; what the letters stand on is even, unlike fur or leaves; and there is more of it than of ink,
unlike noise, where light and dark are in balance. A logistic curve over the four gives the likelihood.
`benchmarks/fit_text.py` made its weights; docs/texture.md has its precision, recall and limits.
"""

from __future__ import annotations

import torch

from arr_coc.texture import filters
from arr_coc.texture.pooling import pool

# Logistic weights of text_features, in its order, and the constant.
WEIGHTS = (2.418, 9.329, -1.577, 6.819)
BIAS = -5.862


def stroke_text(pixels: torch.Tensor) -> torch.Tensor:
    """An image `[3, H, W]` in [0, 1] to a likelihood in [0, 1] at half the size."""
    return text_likelihood(filters.luma(pixels))


def text_likelihood(brightness: torch.Tensor) -> torch.Tensor:
    """Luma `[H, W]` to a likelihood in [0, 1] at half the size."""
    weights = torch.tensor(WEIGHTS, device=brightness.device)
    return torch.tensordot(weights, text_features(brightness), dims=1).add_(BIAS).sigmoid_()


def text_features(brightness: torch.Tensor) -> torch.Tensor:
    """Luma `[H, W]` to (slopes, swings, unevenness, imbalance) at half the size: `[4, h, w]`.

    All four are the same for light ink on dark ground.
    """
    height, width = brightness.shape
    small = pool(brightness, (max(1, height // 2), max(1, width // 2)), "mean")
    slope_x, slope_y = (filters.box_mean(slope.abs_(), 7, 15) for slope in filters.sobel(small))
    slopes = torch.minimum(slope_x, slope_y)

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
    return torch.stack([torch.log(slopes + 0.01), swings, torch.log(unevenness + 0.01), imbalance])


def _roughness(plane: torch.Tensor) -> torch.Tensor:
    return filters.box_mean((plane - filters.box_mean(plane, 21, 21)).abs_(), 15, 15)
