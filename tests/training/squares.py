"""Pictures of coloured squares with questions about them: small, and not to be answered without the question."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

import arr_coc
from arr_coc.evaluation.data import Data, read_samples
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from arr_coc.layer.inference import Seen
from arr_coc.training.examples import Asked, Lesson, lessons
from tests.adapters import families, tiny_vlm

COLOURS = {"red": (220, 30, 30), "green": (20, 170, 40), "blue": (30, 50, 220), "white": (250, 250, 250)}
SHAPE: dict[str, Any] = {"width": 16, "heads": 2, "asking": 1, "pixels": 2}


def draw(folder: Path, count: int, side: int = 64, seed: int = 0, **more: Any) -> Path:
    """Each picture has a square of every colour, somewhere; each is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows = random.Random(seed), []
    step = side // 4
    for number in range(count):
        image = Image.new("RGB", (side, side), (90, 90, 90))
        places = rng.sample(range(16), len(COLOURS))
        for (name, colour), place in zip(COLOURS.items(), places, strict=True):
            x, y = place % 4 * step, place // 4 * step
            ImageDraw.Draw(image).rectangle((x, y, x + step - 1, y + step - 1), fill=colour)
            rows.append({"image": f"{number}.png", "question": f"{name}?", "answer": name[0], "evidence": [[[x, y, x + step, y + step]]]} | more)  # fmt: skip
        image.save(folder / f"{number}.png")
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def model(family: str = "qwen2_vl") -> Any:
    """A tiny random model that nobody else holds."""
    if family in families.QWEN:
        return arr_coc.wrap(families.model(family), tiny_vlm.processor(family))
    return tiny_vlm.build(family)


def taught(vlm: Any, folder: Path, count: int = 3, **options: Any) -> list[Lesson]:
    data: Data = read_samples(draw(folder, count))
    return lessons(vlm, data, config_for(vlm.adapter, **SHAPE), **options)


def layer(vlm: Any, **shape: Any) -> ArrCocLayer:
    torch.manual_seed(0)
    return ArrCocLayer(config_for(vlm.adapter, **SHAPE | shape))


def noise(shape: tuple[int, int, int], channels: int, pixels: int, tokens: int, dice: torch.Generator) -> Seen:
    t, h, w = shape
    return Seen(
        torch.randn(t, channels, h, w, generator=dice),
        torch.rand(t, 3 * pixels**2, h, w, generator=dice),
        torch.randn(t, h, w, tokens, generator=dice),
    )


__all__ = ["Asked", "draw", "layer", "model", "noise", "taught"]
