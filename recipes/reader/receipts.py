"""Scanned receipts from a folder: pictures, `recs.json` with fields and text lines, and their augmentation.

`recs.json` maps a picture's name to `{"fields": {kind: answer}, "lines": [[text, [left, top, right, bottom]], ...]}`, boxes
in the stored picture's pixels. Text is given in capitals whatever was printed.
"""

import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from arr_coc.training.documents.page import Document, Line, PageQuestion
from arr_coc.training.documents.questions import NOT_FOUND, phrase

Box = tuple[float, float, float, float]
FIELDS = ("total", "date", "company", "address")


@dataclass(frozen=True)
class Receipt:
    """One scanned receipt, decoded: a few hundred fit into memory, and decoding costs more than resizing."""

    name: str
    image: Image.Image  # gray
    fields: dict[str, str]
    lines: tuple[tuple[str, Box], ...]

    def text_box(self) -> Box:
        """The smallest box around all text."""
        boxes = np.array([box for _, box in self.lines])
        return (*boxes[:, :2].min(0), *boxes[:, 2:].max(0))


def read_receipts(folder: str | Path) -> list[Receipt]:
    folder = Path(folder)
    if not (folder / "recs.json").is_file():
        raise FileNotFoundError(f"expected a folder with recs.json and pictures, got {folder}")
    receipts = []
    for name, record in sorted(json.loads((folder / "recs.json").read_text()).items()):
        lines = tuple((text, tuple(box)) for text, box in record["lines"] if text)
        with Image.open(folder / f"{name}.jpg") as picture:
            receipts.append(Receipt(name, picture.convert("L"), record["fields"], lines))
    return receipts


def split(receipts: list[Receipt], one_in: int = 10) -> tuple[list[Receipt], list[Receipt]]:
    """Training and validation receipts; which is which depends on the name alone, so it never changes."""
    held_out = [receipt for receipt in receipts if zlib.crc32(receipt.name.encode()) % one_in == 0]
    names = {receipt.name for receipt in held_out}
    return [receipt for receipt in receipts if receipt.name not in names], held_out


@dataclass(frozen=True)
class Placement:
    """Which part of the scan is taken and where it goes on the canvas; scales differ a little to vary the letters."""

    crop: tuple[int, int, int, int]
    size: tuple[int, int]
    offset: tuple[int, int]

    def box(self, box: Box) -> Box:
        """A box of the scan, on the canvas."""
        scale_x, scale_y = self.size[0] / (self.crop[2] - self.crop[0]), self.size[1] / (self.crop[3] - self.crop[1])
        left, top, right, bottom = box
        return (
            (left - self.crop[0]) * scale_x + self.offset[0],
            (top - self.crop[1]) * scale_y + self.offset[1],
            (right - self.crop[0]) * scale_x + self.offset[0],
            (bottom - self.crop[1]) * scale_y + self.offset[1],
        )

    @classmethod
    def whole(cls, receipt: Receipt, width: int, height: int) -> "Placement":
        """The whole scan, as large as it fits, in the middle of the canvas."""
        wide, tall = receipt.image.size
        scale = min(width / wide, height / tall)
        size = (round(wide * scale), round(tall * scale))
        return cls((0, 0, wide, tall), size, ((width - size[0]) // 2, (height - size[1]) // 2))

    @classmethod
    def varied(cls, rng: random.Random, receipt: Receipt, width: int, height: int) -> "Placement":
        """A random crop that keeps all text, at a random scale and place."""
        wide, tall = receipt.image.size
        left, top, right, bottom = receipt.text_box()
        crop = (0, 0, wide, tall)
        if rng.random() < 0.6:
            sides = [rng.random() for _ in range(4)]
            crop = (
                int(max(0, left - 6) * sides[0]),
                int(max(0, top - 6) * sides[1]),
                int(wide - max(0, wide - right - 6) * sides[2]),
                int(tall - max(0, tall - bottom - 6) * sides[3]),
            )
        crop_wide, crop_tall = max(28, crop[2] - crop[0]), max(28, crop[3] - crop[1])
        stretch = rng.uniform(0.9, 1.1)
        scale = min(width / (crop_wide * stretch), height / crop_tall) * (
            1.0 if rng.random() < 0.4 else rng.uniform(0.8, 1.0)
        )
        scale = min(scale, 2.2)  # upscaling a small scan further adds no detail
        size = (min(width, round(crop_wide * scale * stretch)), min(height, round(crop_tall * scale)))
        offset = (rng.randint(0, width - size[0]), rng.randint(0, height - size[1]))
        return cls((crop[0], crop[1], crop[0] + crop_wide, crop[1] + crop_tall), size, offset)


def find_evidence(kind: str, answer: str, lines: list[str]) -> tuple[int, ...]:
    """The lines that show a field; all of them when the label agrees with none, since it must be somewhere."""
    if kind in ("total", "date"):
        found = [index for index, text in enumerate(lines) if answer in text]
    else:
        flat = answer.replace(" ", "")
        found = [
            index for index, text in enumerate(lines) if len(text) > 3 and text.replace(" ", "").strip(",.") in flat
        ]
        found = found or [index for index, text in enumerate(lines) if flat and flat in text.replace(" ", "")]
    return tuple(found) or tuple(range(len(lines)))


def field_questions(rng: random.Random, fields: dict[str, str], lines: list[str]) -> list[PageQuestion]:
    """The four questions of a receipt."""
    questions = []
    for kind in FIELDS:
        answer = fields.get(kind)
        evidence = find_evidence(kind, answer, lines) if answer else ()
        questions.append(PageQuestion(kind, phrase(rng, kind), answer or NOT_FOUND, evidence))
    return questions


def scan(rng: random.Random, receipt: Receipt, width: int, height: int, placement: Placement) -> Document:
    """The scanned receipt on a canvas of `width` x `height` pixels."""
    # `reducing_gap` makes downscaling cheap. The random filter gives both soft and jagged letters.
    resample = rng.choice((Image.Resampling.BILINEAR, Image.Resampling.BICUBIC))
    picture = receipt.image.resize(placement.size, resample, box=placement.crop, reducing_gap=2.0)
    edge = np.asarray(picture)[:, [0, -1]]
    canvas = Image.new("L", (width, height), rng.choice((255, 255, int(np.median(edge)))))
    canvas.paste(picture, placement.offset)
    lines = tuple(Line.in_box(text, placement.box(box)) for text, box in receipt.lines)
    questions = field_questions(rng, receipt.fields, [line.text for line in lines])
    return Document(np.asarray(canvas), lines, tuple(questions), capitals=True, caseless=True)
