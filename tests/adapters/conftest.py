"""Tiny wrapped models and pictures for them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from PIL import Image

import arr_coc
from tests.adapters import tiny, tiny_processor


@lru_cache
def wrapped(family: str, attention: str = "sdpa") -> Any:
    return arr_coc.wrap(tiny.model(family, attention), tiny_processor.processor(family))


def picture(width: int = 72, height: int = 56, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(params=list(tiny.CONFIGS))
def vlm(request: Any) -> Any:
    return wrapped(request.param)
