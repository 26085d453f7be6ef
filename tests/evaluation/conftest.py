"""Small folders of pictures and questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.tiny_vlm import picture

QUESTIONS = ("What?", "Who is it?")


def write(folder: Path, lines: Sequence[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "samples.jsonl").write_text(text)
    return folder


def lines(names: Sequence[str]) -> list[dict[str, Any]]:
    """Two questions about each picture of 112 x 112 pixels, which tiny models see as 14 x 14 cells or so."""
    return [
        {"image": name, "question": question, "answer": "x", "kind": f"kind {number}",
         "width": 112, "height": 112, "evidence": [[[0, 0, 40, 40]], [[70, 70 - 30 * number, 110, 110]]]}
        for name in names for number, question in enumerate(QUESTIONS)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[int], Path]:
    """A folder of so many pictures with two questions each."""

    def make(count: int = 3) -> Path:
        names = [f"{number}.png" for number in range(count)]
        place = write(tmp_path / "data", lines(names))
        for number, name in enumerate(names):
            picture(112, 112, seed=number).save(place / name)
        return place

    return make
