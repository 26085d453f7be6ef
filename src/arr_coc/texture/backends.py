"""What the texture can be given to work with: a segmenter and a text detector, by name or as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from arr_coc.errors import ChannelError
from arr_coc.texture.layout import nearest_name
from arr_coc.texture.rapid_ocr import detect_text
from arr_coc.texture.slic import slic
from arr_coc.texture.strokes import stroke_text

Segmenter: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""An image `[3, H, W]` in [0, 1] to whole ids `[h, w]`, at most as large."""

TextDetector: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""An image `[3, H, W]` in [0, 1] to a likelihood `[h, w]` in [0, 1]."""

SEGMENTERS: dict[str, Segmenter] = {"slic": slic}
TEXT_DETECTORS: dict[str, TextDetector] = {"strokes": stroke_text, "rapidocr": detect_text}


def check_backend(
    kind: str, given: str | Callable[[torch.Tensor], torch.Tensor], known: Mapping[str, Callable[..., torch.Tensor]]
) -> str | Callable[[torch.Tensor], torch.Tensor]:
    """The name of a known backend or a function, as it came."""
    if isinstance(given, str):
        if given not in known:
            raise ChannelError(f"there is no {kind} {given!r}{nearest_name(given, known)}")
    elif not callable(given):
        raise ChannelError(f"expected a {kind} as a function or one of {', '.join(known)}, got {given!r}")
    return given
