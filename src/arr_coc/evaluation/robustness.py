"""Drawn cases that ways of choosing stumble over, each with its ground truth.

| case | what is drawn | passed when |
|---|---|---|
| camouflage | pale text beside loud colours | the text is kept |
| void | a bare wall: flat, in a shadow, grainy | the choice is even, or almost nothing is claimed |
| vague | three notes and a question that names none | half of every note is kept |
| border | text that touches the picture's edge | the text is kept |
| crowd | two dozen small discs, all of them needed | the discs are kept |
| copies | the answer twice | either copy is kept |
| absent | a list that does not hold what is asked for | as in a void, or half of every line is kept: one must have looked |

Kept: at least 80% of the evidence cells. Even: over sixteen equal parts of the picture, the kept cells' entropy is at least
90% of what equal parts would have. Almost nothing: at most a tenth of the budget. Not judged: a smaller picture, which holds
every place, and a case whose evidence is more than the budget on the model's grid.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from arr_coc.draw import overlay as view
from arr_coc.evaluation.data import Box, Data, Evidence, Picture, Sample
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.evaluation.notation import from_views, unpacked
from arr_coc.evaluation.report import Report, Row
from arr_coc.types.budget import limit
from arr_coc.types.grid import Cells

SIDE = 560
VARIANTS = 3
KEPT, HALF, EVEN, NOTHING = 0.8, 0.5, 0.9, 0.1
PARTS = 4  # along each side, to see whether a choice is even

Colour = tuple[int, int, int]


class Sheet:
    """A canvas that returns the box of what is written on it."""

    def __init__(self, rng: random.Random, paper: Colour = (244, 242, 236)) -> None:
        self.image = Image.new("RGB", (SIDE, SIDE), paper)
        self.pen = ImageDraw.Draw(self.image)
        self.rng = rng

    def write(self, x: float, y: float, text: str, size: int = 24, ink: Colour = (30, 30, 34)) -> Box:
        font = view.font(size)
        self.pen.text((x, y), text, fill=ink, font=font)
        left, top, right, bottom = self.pen.textbbox((x, y), text, font=font)
        return (max(0.0, left), max(0.0, top), min(float(SIDE), right), min(float(SIDE), bottom))

    def amount(self) -> str:
        return f"{self.rng.randint(10, 99)}.{self.rng.randint(10, 99)}"

    def filler(self, lines: int, top: int = 40) -> list[Box]:
        """Lines of a list of goods, none of which is asked for; the boxes of names and prices."""
        boxes = []
        goods = ["Paper clips", "Blue ink", "Envelopes", "Stamps", "String", "Chalk", "Rulers", "Glue", "Tape", "Pins"]
        for number, name in enumerate(self.rng.sample(goods, lines)):
            boxes.append(self.write(40, top + 44 * number, name, 22))
            boxes.append(self.write(400, top + 44 * number, self.amount(), 22))
        return boxes


@dataclass(frozen=True)
class Drawn:
    """A case and its ground truth."""

    sheet: Sheet
    question: str
    answer: str
    evidence: Evidence
    rule: str  # kept, each or even
    content: tuple[Box, ...] = ()  # what is on a page that does not hold the answer


def _camouflage(rng: random.Random, variant: int) -> Drawn:
    sheet = Sheet(rng, (188, 186, 178))
    left = variant % 2 == 0
    start = 290 if left else 20
    loud = [(230, 30, 40), (250, 220, 0), (20, 90, 240), (10, 190, 90)]
    for row in range(12):
        for column in range(6):
            x, y = start + column * 42, 20 + row * 43
            sheet.pen.rectangle([x, y, x + 40, y + 41], fill=rng.choice(loud))
    code = f"{rng.randint(1000, 9999)}"
    box = sheet.write(40 if left else 330, rng.randint(60, 460), f"CODE {code}", 30, (172, 170, 162))
    return Drawn(sheet, "What is the code?", code, ((box,),), "kept")


def _void(rng: random.Random, variant: int) -> Drawn:
    shade, kind = rng.randint(150, 220), ("flat", "shadow", "grain")[variant % 3]
    sheet = Sheet(rng, (shade, shade, shade - 8))
    if kind != "flat":
        pixels = np.asarray(sheet.image).astype(np.float32)
        across = np.linspace(0, 1, SIDE)
        darker = 40 * np.add.outer(across, across) if kind == "shadow" else _grain(rng)
        sheet.image = Image.fromarray((pixels - darker[..., None]).clip(0, 255).round().astype(np.uint8))
    return Drawn(sheet, "What is the total amount?", "not found", (), "even")


def _grain(rng: random.Random) -> np.ndarray:
    return np.random.default_rng(rng.randint(0, 2**31)).normal(0, 5, (SIDE, SIDE)).astype(np.float32)


def _vague(rng: random.Random, variant: int) -> Drawn:
    sheet = Sheet(rng)
    places = rng.sample([(30, 40), (330, 50), (40, 440), (320, 450), (180, 250)], 3)
    words = rng.sample(["Milk and bread", "Call Helen", "Train at 9:40", "Pay the rent", "Water plants"], 3)
    boxes = tuple(sheet.write(x, y, text, 26) for (x, y), text in zip(places, words, strict=True))
    return Drawn(sheet, "What is this about?", "; ".join(words), (boxes,), "each")


def _border(rng: random.Random, variant: int) -> Drawn:
    sheet = Sheet(rng)
    sheet.filler(6, top=130)
    code = f"{rng.randint(100, 999)}-{rng.randint(100, 999)}"
    across, bottom = ((0, False), (416, False), (0, True), (416, True))[variant % 4]
    box = sheet.write(across, SIDE - 28 if bottom else -4, f"No {code}", 26)
    return Drawn(sheet, "What is the number?", code, ((box,),), "kept")


def _crowd(rng: random.Random, variant: int) -> Drawn:
    sheet = Sheet(rng, (236, 238, 232))
    places = rng.sample([(x, y) for x in range(12) for y in range(12)], 40)
    boxes = []
    for number, (column, row) in enumerate(places):
        x, y = 20 + column * 44 + rng.randint(-6, 6), 20 + row * 44 + rng.randint(-6, 6)
        asked = number < 24
        sheet.pen.ellipse([x, y, x + 14, y + 14], fill=(206, 44, 40) if asked else (150, 160, 150))
        if asked:
            boxes.append((float(x), float(y), x + 14.0, y + 14.0))
    return Drawn(sheet, "How many red discs are there?", "24", (tuple(boxes),), "kept")


def _copies(rng: random.Random, variant: int) -> Drawn:
    sheet = Sheet(rng)
    total = sheet.amount()
    sheet.filler(5, top=150)
    sheet.write(40, 40, "To pay", 26)
    first = sheet.write(390, 40, total, 26)
    sheet.write(40, 480, "TOTAL", 26)
    second = sheet.write(390, 480, total, 26)
    return Drawn(sheet, "What is the total amount?", total, ((first,), (second,)), "kept")


def _absent(rng: random.Random, variant: int) -> Drawn:
    sheet = Sheet(rng)
    lines = sheet.filler(10, top=60)
    return Drawn(sheet, "What is the telephone number?", "not found", (), "even", tuple(lines))


PASSED_WHEN = {
    "camouflage": "Pale text beside loud colours: the text is kept.",
    "void": "A bare wall: the choice is even, or almost nothing is claimed.",
    "vague": "Three notes and a question that names none: half of every note is kept.",
    "border": "Text that touches the picture's edge: the text is kept.",
    "crowd": "Two dozen small discs, all of them needed: the discs are kept.",
    "copies": "The answer stands there twice: either copy is kept.",
    "absent": "A list without what is asked for: the choice is even, or half of every line is kept.",
}

CASES: dict[str, Callable[[random.Random, int], Drawn]] = {
    "camouflage": _camouflage,
    "void": _void,
    "vague": _vague,
    "border": _border,
    "crowd": _crowd,
    "copies": _copies,
    "absent": _absent,
}


def suite(variants: int = VARIANTS) -> Data:
    """Every case in several variants, the same on every machine; in pixels, so nothing is read from a disk."""
    pictures: list[Picture] = []
    for case, drawing in CASES.items():
        for variant in range(variants):
            drawn = drawing(random.Random(f"{case} {variant}"), variant)
            truth = {"rule": drawn.rule, "content": drawn.content}
            sample = Sample(drawn.question, (drawn.answer,), case, drawn.evidence, len(pictures) + 1, truth)
            pictures.append(Picture(f"{case} {variant + 1}", drawn.sheet.image, (SIDE, SIDE), (sample,)))
    return Data("robustness", tuple(pictures))


def judge(report: Report) -> dict[tuple[str, str], dict[str, list[bool | None]]]:
    """Passed or not, for each selector and budget and each variant of a case; None where it is not judged."""
    found: dict[tuple[str, str], dict[str, list[bool | None]]] = {}
    for picture in report.data.pictures:
        for row in report.rows[picture.name]:
            cases = found.setdefault((row["selector"], row["budget"]), {})
            cases.setdefault(row["kind"], []).append(passed(picture, row))
    return found


def to_dict(report: Report) -> dict[str, Any]:
    """All verdicts for a file: for each case what it asks for, for each selector which variants it passed."""
    found = []
    for (selector, budget), cases in judge(report).items():
        judged = [one for some in cases.values() for one in some if one is not None]
        found.append({
            "selector": selector, "budget": budget, "passed": cases, "count": sum(judged), "judged": len(judged),
        })  # fmt: skip
    there = {picture.samples[0].kind: picture.samples[0] for picture in report.data.pictures}
    cases_said = [
        {"case": case, "question": sample.question, "passed_when": PASSED_WHEN[case]} for case, sample in there.items()
    ]
    return {"model": report.model, "suite": "robustness", "cases": cases_said, "records": found}


def verdicts(report: Report) -> str:
    """A markdown table: variants passed, of how many, by case and altogether."""
    found = judge(report)
    shown = [case for case in CASES if any(case in cases for cases in found.values())]
    lines = ["| selector | budget | " + " | ".join(shown) + " | passed |", "|---|---|" + "---|" * (len(shown) + 1)]
    for (selector, budget), cases in found.items():
        judged = [one for some in cases.values() for one in some if one is not None]
        cells = [_count(cases.get(case, [])) for case in shown]
        lines.append(f"| {selector} | {budget} | {' | '.join(cells)} | {_count(judged)} |")
    return "\n".join(lines) + "\n"


def save(data: Data, folder: Path) -> None:
    """The drawn cases as pictures, to look at."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in data.pictures:
        assert isinstance(picture.image, Image.Image)
        picture.image.save(folder / f"{picture.name.replace(' ', '_')}.png")


def _count(some: Sequence[bool | None]) -> str:
    judged = [one for one in some if one is not None]
    return f"{sum(judged)} of {len(judged)}" if judged else "not judged"


def passed(picture: Picture, row: Row) -> bool | None:
    """Whether what was kept passes a drawn case; None where it is not judged."""
    if not row.get("keep"):
        return None
    grid = from_views(row["grid"])
    keep = unpacked(row["keep"], grid.n)
    sample = picture.samples[row["question"]]
    rule = sample.extra["rule"]
    allowed = limit(row["budget"], grid.n).k
    if rule == "even":
        nothing = allowed is not None and len(keep) <= NOTHING * allowed
        return nothing or evenness(keep, grid) >= EVEN or _half_of_each(keep, grid, picture, sample.extra["content"])
    groups = evidence_cells(sample.evidence, grid, picture.size)
    share = HALF if rule == "each" else KEPT
    if allowed is not None and min(len(group) for group in groups) * share > allowed:
        return None
    if rule == "each":
        return _half_of_each(keep, grid, picture, sample.evidence[0])
    found = recall(keep, groups)
    return found is not None and found >= KEPT


def _half_of_each(keep: torch.Tensor, grid: Cells, picture: Picture, boxes: Sequence[Box]) -> bool:
    shares = [recall(keep, evidence_cells(((box,),), grid, picture.size)) for box in boxes]
    return bool(shares) and all(share is not None and share >= HALF for share in shares)


def evenness(keep: torch.Tensor, grid: Cells) -> float:
    """How evenly cells `[K]` lie over sixteen equal parts of the picture: 0 (all in one) to 1."""
    if not len(keep):
        return 0.0
    boxes = grid.boxes(keep, (PARTS, PARTS)).double()
    middle = ((boxes[:, :2] + boxes[:, 2:]) / 2).long().clamp(0, PARTS - 1)  # [K, 2]
    counts = torch.bincount(middle[:, 1] * PARTS + middle[:, 0], minlength=PARTS**2).double()
    shares = counts[counts > 0] / counts.sum()
    # Fewer cells than parts can fill only so many of them.
    return float(-(shares * shares.log()).sum()) / max(math.log(min(len(keep), PARTS**2)), 1e-9)
