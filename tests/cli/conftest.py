"""Small inputs for the commands: a tiny random model, an image, a folder of questions, photos and a clip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from recipes.reader import folder
from recipes.reader.model import TINY, build


def write_model(path: Path, seed: int = 0) -> str:
    """A folder with a tiny model of random weights."""
    torch.manual_seed(seed)
    return str(folder.write(build(TINY), path, torch.float32))


def write_noise(path: Path, size: tuple[int, int], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_data(path: Path, count: int, **changes: Any) -> str:
    """A folder with images of 112 x 112 pixels and two questions about each; `changes` replace or remove (None) keys."""
    path.mkdir()
    rows = []
    for number in range(count):
        write_noise(path / f"{number}.png", (112, 112), number)
        for question, box in (("What?", [0, 0, 40, 40]), ("Who is it?", [70, 70, 110, 110])):
            row = {"image": f"{number}.png", "question": question, "answer": "x", "evidence": [[box]]} | changes
            rows.append({key: value for key, value in row.items() if value is not None})
    (path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def without_progress(said: str) -> str:
    """What a command printed on stderr without its lines of progress, which come on a busy machine only."""
    return "".join(line for line in said.splitlines(keepends=True) if not line.rstrip().endswith(" s)"))


def write_photos(path: Path, count: int) -> str:
    path.mkdir()
    for number in range(count):
        write_noise(path / f"{number:03d}.png", (16, 12), number)
    return str(path)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("image") / "receipt.png"
    arr_coc.pictures.receipt().save(path)
    return str(path)
