"""Scanned receipts with text-line boxes, as the text benchmarks read them.

A folder with images and `recs.json`: {id: {"lines": [[text, [x0, y0, x1, y1]], ...]}}, images named `<id>.jpg`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from arr_coc.types.image import Picture, read_picture


@dataclass(frozen=True)
class ScannedReceipt:
    name: str
    picture: Picture
    is_text: torch.Tensor  # bool [H, W], inside a text line's box


def receipt_names(folder: Path) -> list[str]:
    """Sorted ids; the benchmarks keep every fifth for measuring and fit on the others."""
    return sorted(json.loads((folder / "recs.json").read_text()))


def read_receipts(folder: Path, names: list[str]) -> list[ScannedReceipt]:
    records = json.loads((folder / "recs.json").read_text())
    found = []
    for name in names:
        picture = read_picture(folder / f"{name}.jpg")
        scale = [texture / original for texture, original in zip(picture.size, picture.original_size, strict=True)]
        is_text = torch.zeros(picture.size, dtype=torch.bool)
        for _, (x0, y0, x1, y1) in records[name]["lines"]:
            is_text[round(y0 * scale[0]) : round(y1 * scale[0]), round(x0 * scale[1]) : round(x1 * scale[1])] = True
        found.append(ScannedReceipt(name, picture, is_text))
    return found
