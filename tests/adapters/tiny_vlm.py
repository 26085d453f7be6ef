"""Tiny wrapped models, pictures for them, and the stock model's answer to the same question."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

import arr_coc
from tests.adapters import tiny, tiny_processor

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}


@lru_cache
def wrapped(family: str, attention: str = "sdpa") -> Any:
    return arr_coc.wrap(tiny.model(family, attention), tiny_processor.processor(family))


def picture(width: int = 72, height: int = 56, seed: int = 0) -> Image.Image:
    """Noise: every cell differs from every other."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def chat(question: str, images: int = 0, videos: int = 0) -> list[dict[str, Any]]:
    parts = [{"type": "image"}] * images + [{"type": "video"}] * videos
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]


def stock_inputs(
    vlm: Any, question: str, images: list[Any], videos: list[Any] | None = None, fps: float = 2.0
) -> dict[str, Any]:
    """The output of the model's own processor."""
    text = vlm.processor.apply_chat_template(chat(question, len(images), len(videos or [])), add_generation_prompt=True)
    given = {"images": images} if images else {}
    if videos:
        data = [{"total_num_frames": len(v), "fps": fps, "frames_indices": list(range(len(v)))} for v in videos]
        given |= {"videos": videos, "video_metadata": data, "do_sample_frames": False}
    return dict(vlm.processor(text=[text], **given, return_tensors="pt"))


def answer_of(model: Any, inputs: dict[str, Any], **options: Any) -> list[int]:
    """The tokens that the stock model generates greedily."""
    length = inputs["input_ids"].shape[1]
    return model.generate(**inputs, **GREEDY | options)[0, length:].tolist()
