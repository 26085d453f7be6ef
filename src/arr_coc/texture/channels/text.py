"""Text: how likely a pixel belongs to a line of text, by one of two detectors or the caller's own.

`stroke_text`, the default, needs no neural network. It uses five properties of print: letters have slopes in both
directions, unlike bars; brightness crosses its mean many times along a line; the background is even, unlike fur or leaves;
there is more background than ink, unlike noise, where light and dark are in balance; and a line of joined letters has some
height, unlike a dashed rule. A logistic regression over the five gives the likelihood.
`benchmarks/fit_text.py` fits its weights; docs/texture.md has precision, recall and limits.

`detect_text` runs RapidOCR's detector: more exact and slower. It needs the extra: pip install "arr-coc[ocr]".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2
import numpy as np
import torch

from arr_coc.errors import ChannelError
from arr_coc.texture import filters
from arr_coc.texture.kernels.cuda_graph import GraphCache, can_capture
from arr_coc.texture.layout import channel
from arr_coc.types.image import as_tensor

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

TextDetector: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""An image `[3, H, W]` in [0, 1] to a likelihood `[h, w]` in [0, 1]."""

LINE_HEIGHT = 5  # px at half size; what is lower than this is no line of letters
# Logistic weights of text_features, in its order, and the constant.
WEIGHTS = (1.653, 7.589, -0.980, 5.797, 0.907)
BIAS = -3.205
MAX_CAPTURED = 1 << 22  # px of an image up to which a CUDA graph is kept, which replaces a hundred launches
MIN_OCR_SIDE = 8  # px; in smaller images the network sees text in anything
_graphs = GraphCache(capacity=8)


@channel("text", family="text", pool="max", cost="costly", meaning="likelihood that a pixel belongs to a line of text")
def text(texture: TextureArray) -> torch.Tensor:
    own = isinstance(texture.text, str)  # its range is known; checking it would make the host wait for the GPU
    detector = TEXT_DETECTORS[texture.text] if isinstance(texture.text, str) else texture.text
    found = as_tensor(detector(texture.pixels), "a text detector's likelihood").float()
    if found.ndim != 2 or 0 in found.shape:
        raise ChannelError(f"a text detector must return a likelihood [h, w], got {list(found.shape)}")
    if not own and not bool(((found >= 0) & (found <= 1)).all()):  # NaN fails too
        raise ChannelError("a text detector must return likelihoods in [0, 1]")
    return filters.resample(found, texture.size, shrink_by="max")


def stroke_text(pixels: torch.Tensor) -> torch.Tensor:
    """An image `[3, H, W]` in [0, 1] to a likelihood in [0, 1] at half the size."""
    if pixels.is_cuda and can_capture(pixels) and pixels.shape[-1] * pixels.shape[-2] <= MAX_CAPTURED:
        (found,) = _graphs.run(None, None, lambda given: (text_likelihood(filters.luma(given)),), (pixels,))
        return found
    return text_likelihood(filters.luma(pixels))


def text_likelihood(brightness: torch.Tensor) -> torch.Tensor:
    """Luma `[H, W]` to a likelihood in [0, 1] at half the size."""
    return torch.tensordot(_weights(brightness.device), text_features(brightness), dims=1).add_(BIAS).sigmoid_()


@lru_cache(maxsize=8)
def _weights(device: torch.device) -> torch.Tensor:
    """Copied once: each copy from the host waits for the device."""
    return torch.tensor(WEIGHTS, device=device)


def text_features(brightness: torch.Tensor) -> torch.Tensor:
    """Luma `[H, W]` to (slopes, swings, unevenness, imbalance, height) at half the size: `[5, h, w]`.

    All five are the same for light ink on dark ground.
    """
    rows, columns = brightness.shape
    small = filters.pool(brightness, (max(1, rows // 2), max(1, columns // 2)), "mean")
    across, down = filters.sobel(small)
    across, down = across.abs_(), down.abs_()
    slopes = torch.minimum(filters.box_mean(across, 7, 15), filters.box_mean(down, 7, 15))

    mean = filters.box_mean(small, 15, 15)
    spread = (filters.box_mean(small * small, 15, 15) - mean * mean).clamp_(min=0)
    above, varied = filters.is_above(small, mean), filters.is_above(spread, 0.04**2)
    swing = torch.zeros_like(small)
    swing[:, :-1] = (above[:, 1:] ^ above[:, :-1]) & varied[:, :-1]  # crossings within noise do not count
    swings = filters.box_mean(swing, 7, 21)

    lightest, darkest = filters.window_max(small, 9, 9), filters.window_max(1 - small, 9, 9)
    averages = [filters.box_mean(envelope, 21, 21) for envelope in (lightest, darkest)]
    unevenness = torch.minimum(
        filters.box_mean((lightest - averages[0]).abs_(), 15, 15),
        filters.box_mean((darkest - averages[1]).abs_(), 15, 15),
    )
    reach = (lightest + darkest - 1).clamp_(min=0.02)  # from the darkest to the lightest pixel around
    imbalance = filters.box_mean(((lightest - darkest + 1 - 2 * mean) / reach).abs_().clamp_(max=1), 7, 15)

    joined = filters.window_max(torch.maximum(across, down), 1, 9)  # joins the letters of a line over their gaps
    thinned = 1 - filters.window_max(1 - joined, LINE_HEIGHT, 1)
    height = filters.box_mean(filters.window_max(thinned, LINE_HEIGHT, 1), 7, 15)
    features = torch.stack([slopes, swings, unevenness, imbalance, height])
    logs = features[::2].add_(0.01)  # of slopes, unevenness and height
    if logs.device.type == "cpu":  # numpy takes a third of torch's time
        np.log(logs.numpy(), out=logs.numpy())
    else:
        logs.log_()
    return features


def detect_text(pixels: torch.Tensor, engine: Any = None) -> torch.Tensor:
    """An image `[3, H, W]` in [0, 1] to its text boxes, filled with their scores: `[H, W]`.

    engine: a RapidOCR object with other settings.
    """
    _, height, width = pixels.shape
    if min(height, width) < MIN_OCR_SIDE:
        return torch.zeros(height, width, device=pixels.device)
    bgr = (pixels.flip(0).permute(1, 2, 0) * 255).round().to(torch.uint8).cpu().numpy()
    found = (engine or _engine())(np.ascontiguousarray(bgr), use_det=True, use_cls=False, use_rec=False)
    mask = np.zeros((height, width), np.float32)
    if found.boxes is not None:  # where boxes overlap, the higher score is painted last
        for box, score in sorted(zip(found.boxes, found.scores, strict=True), key=lambda pair: float(pair[1])):
            cv2.fillPoly(mask, [np.round(box).astype(np.int32)], min(1.0, float(score)))
    return torch.from_numpy(mask).to(pixels.device)


@lru_cache(maxsize=1)
def _engine() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise ChannelError(f"text='rapidocr' needs the extra 'ocr' ({error}): pip install \"arr-coc[ocr]\"") from None
    # The default thresholds fire on skies and lawns and pad every box.
    # These trade a little recall for precision: docs/texture.md has the figures.
    return RapidOCR(params={"Global.log_level": "critical", "Det.box_thresh": 0.7, "Det.unclip_ratio": 1.0})


TEXT_DETECTORS: dict[str, TextDetector] = {"strokes": stroke_text, "rapidocr": detect_text}
