"""Pictures of coloured squares with questions: small, and impossible to answer without the question."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

import arr_coc
from arr_coc.evaluation.data import read_samples
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from arr_coc.layer.inference import CellFeatures
from arr_coc.training.examples import TrainingExample, load_examples
from tests.adapters import families, tiny_vlm

COLOURS = {"red": (220, 30, 30), "green": (20, 170, 40), "blue": (30, 50, 220), "white": (250, 250, 250)}
SHAPE: dict[str, Any] = {"width": 16, "heads": 2, "asking": 1, "pixels": 2}


def draw(folder: Path, count: int, side: int = 64, seed: int = 0, **more: Any) -> Path:
    """A folder of pictures with a square of every colour at a random place, and a question for each colour."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows = random.Random(seed), []
    step = side // 4
    for number in range(count):
        image = Image.new("RGB", (side, side), (90, 90, 90))
        places = rng.sample(range(16), len(COLOURS))
        for (name, colour), place in zip(COLOURS.items(), places, strict=True):
            x, y = place % 4 * step, place // 4 * step
            ImageDraw.Draw(image).rectangle((x, y, x + step - 1, y + step - 1), fill=colour)
            box = [x, y, x + step, y + step]
            row = {"image": f"{number}.png", "question": f"{name}?", "answer": name[0], "evidence": [[box]]}
            rows.append(row | more)
        image.save(folder / f"{number}.png")
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def model(family: str = "qwen2_vl") -> Any:
    """A new tiny random model."""
    if family in families.QWEN:
        return arr_coc.wrap(families.model(family), tiny_vlm.processor(family))
    return tiny_vlm.build(family)


def examples(vlm: Any, folder: Path, count: int = 3, **options: Any) -> list[TrainingExample]:
    return load_examples(vlm, read_samples(draw(folder, count)), config_for(vlm.adapter, **SHAPE), **options)


def layer(vlm: Any, **shape: Any) -> ArrCocLayer:
    torch.manual_seed(0)
    return ArrCocLayer(config_for(vlm.adapter, **SHAPE | shape))


def confident(layer: ArrCocLayer) -> ArrCocLayer:
    """Make a layer confident: otherwise other sources of coupling are used."""
    with torch.no_grad():
        layer.coupling.own.bias += 20
        layer.coupling.own.weight *= 20
    return layer


def noise(
    shape: tuple[int, int, int], channels: int, pixels: int, tokens: int, generator: torch.Generator
) -> CellFeatures:
    t, h, w = shape
    return CellFeatures(
        torch.randn(t, channels, h, w, generator=generator),
        torch.rand(t, 3 * pixels**2, h, w, generator=generator),
        torch.randn(t, h, w, tokens, generator=generator),
    )
