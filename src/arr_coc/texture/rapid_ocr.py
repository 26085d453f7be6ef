"""Text boxes by RapidOCR's detector: exact and slower. Needs the extra: pip install "arr-coc[ocr]"."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import torch

from arr_coc.errors import ChannelError

SMALLEST = 8  # px; in smaller images the network sees text in anything


def detect_text(pixels: torch.Tensor, engine: Any = None) -> torch.Tensor:
    """An image `[3, H, W]` in [0, 1] to its text boxes, filled with their scores: `[H, W]`.

    `engine` is a RapidOCR object with settings of one's own.
    """
    _, height, width = pixels.shape
    if min(height, width) < SMALLEST:
        return torch.zeros(height, width, device=pixels.device)
    bgr = (pixels.flip(0).permute(1, 2, 0) * 255).round().to(torch.uint8).cpu().numpy()
    found = (engine or _engine())(np.ascontiguousarray(bgr), use_det=True, use_cls=False, use_rec=False)
    mask = np.zeros((height, width), np.float32)
    if found.boxes is not None:  # where boxes overlap, the surer one is painted last
        for box, score in sorted(zip(found.boxes, found.scores, strict=True), key=lambda pair: float(pair[1])):
            cv2.fillPoly(mask, [np.round(box).astype(np.int32)], min(1.0, float(score)))
    return torch.from_numpy(mask).to(pixels.device)


@lru_cache(maxsize=1)
def _engine() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise ChannelError(f"text='rapidocr' needs the extra 'ocr' ({error}): pip install \"arr-coc[ocr]\"") from None
    # Its own defaults fire on skies and lawns and pad every box.
    # These trade a little recall for that: docs/texture.md has the figures.
    return RapidOCR(params={"Global.log_level": "critical", "Det.box_thresh": 0.7, "Det.unclip_ratio": 1.0})
