"""Cases that are hard for selectors, drawn or from photographs, with their ground truth; `CASES` says when each is passed.

Kept: at least 80% of the evidence cells. Even: over sixteen equal parts of the picture, the entropy of the kept cells is at
least 90% of its maximum. Almost nothing: at most a tenth of the budget. Not judged: a downscaled picture, which covers every
place, and a case whose evidence is larger than the budget on the model's grid.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from arr_coc.draw import overlay
from arr_coc.draw.textures import TEXTURES, draw_texture, scramble
from arr_coc.errors import DataError
from arr_coc.evaluation.data import Box, Data, Evidence, PictureQuestions, Sample, read_samples
from arr_coc.evaluation.measure import grid_from_lists, unpack_cells
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.evaluation.report import Report, Row, markdown_table
from arr_coc.types.budget import limit
from arr_coc.types.grid import Cells

SIDE = 560
VARIANTS = 3
TEXTURE_VARIANTS = 4  # of each texture, for each three variants of another case
PHOTOS = 24  # of a folder of photographs
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
KEPT, HALF, EVEN, NOTHING = 0.8, 0.5, 0.9, 0.1
PARTS = 4  # along each side, for evenness

Colour = tuple[int, int, int]
Drawn = tuple[Image.Image, Sample]  # its extra fields: the rule (kept, each or even), and text that does not answer it
Verdicts = dict[tuple[str, str], dict[str, list[bool | None]]]  # (selector, budget) -> case -> one verdict per variant


class Canvas:
    """A picture to draw on; `write` returns the box of the text."""

    def __init__(self, rng: random.Random, paper: Colour = (244, 242, 236)) -> None:
        self.image = Image.new("RGB", (SIDE, SIDE), paper)
        self.pen = ImageDraw.Draw(self.image)
        self.rng = rng

    def write(self, x: float, y: float, text: str, size: int = 24, ink: Colour = (30, 30, 34)) -> Box:
        font = overlay.font(size)
        self.pen.text((x, y), text, fill=ink, font=font)
        left, top, right, bottom = self.pen.textbbox((x, y), text, font=font)
        return (max(0.0, left), max(0.0, top), min(float(SIDE), right), min(float(SIDE), bottom))

    def amount(self) -> str:
        return f"{self.rng.randint(10, 99)}.{self.rng.randint(10, 99)}"

    def write_goods(self, lines: int, top: int = 40) -> list[Box]:
        """Lines of a price list that no question is about; the boxes of names and prices."""
        boxes = []
        goods = ["Paper clips", "Blue ink", "Envelopes", "Stamps", "String", "Chalk", "Rulers", "Glue", "Tape", "Pins"]
        for number, name in enumerate(self.rng.sample(goods, lines)):
            boxes.append(self.write(40, top + 44 * number, name, 22))
            boxes.append(self.write(400, top + 44 * number, self.amount(), 22))
        return boxes

    def ask(self, question: str, answer: str, evidence: Evidence, rule: str, content: tuple[Box, ...] = ()) -> Drawn:
        """The picture and its question; `rule` decides whether a selection passes."""
        return self.image, Sample(question, (answer,), evidence=evidence, extra={"rule": rule, "content": content})


def _camouflage(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng, (188, 186, 178))
    left = variant % 2 == 0
    start = 290 if left else 20
    loud = [(230, 30, 40), (250, 220, 0), (20, 90, 240), (10, 190, 90)]
    for row in range(12):
        for column in range(6):
            x, y = start + column * 42, 20 + row * 43
            canvas.pen.rectangle([x, y, x + 40, y + 41], fill=rng.choice(loud))
    code = f"{rng.randint(1000, 9999)}"
    box = canvas.write(40 if left else 330, rng.randint(60, 460), f"CODE {code}", 30, (172, 170, 162))
    return canvas.ask("What is the code?", code, ((box,),), "kept")


def _void(rng: random.Random, variant: int) -> Drawn:
    shade, kind = rng.randint(150, 220), ("flat", "shadow", "grain")[variant % 3]
    canvas = Canvas(rng, (shade, shade, shade - 8))
    if kind != "flat":
        pixels = np.asarray(canvas.image).astype(np.float32)
        if kind == "shadow":
            ramp = np.linspace(0, 1, SIDE)
            darker = 40 * np.add.outer(ramp, ramp)
        else:
            noise = np.random.default_rng(rng.randint(0, 2**31))
            darker = noise.normal(0, 5, (SIDE, SIDE)).astype(np.float32)
        canvas.image = Image.fromarray((pixels - darker[..., None]).clip(0, 255).round().astype(np.uint8))
    return canvas.ask("What is the total amount?", "not found", (), "even")


def _vague(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng)
    places = rng.sample([(30, 40), (330, 50), (40, 440), (320, 450), (180, 250)], 3)
    notes = rng.sample(["Milk and bread", "Call Helen", "Train at 9:40", "Pay the rent", "Water plants"], 3)
    boxes = tuple(canvas.write(x, y, text, 26) for (x, y), text in zip(places, notes, strict=True))
    return canvas.ask("What is this about?", "; ".join(notes), (boxes,), "each")


def _border(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng)
    canvas.write_goods(6, top=130)
    code = f"{rng.randint(100, 999)}-{rng.randint(100, 999)}"
    across, bottom = ((0, False), (416, False), (0, True), (416, True))[variant % 4]
    box = canvas.write(across, SIDE - 28 if bottom else -4, f"No {code}", 26)
    return canvas.ask("What is the number?", code, ((box,),), "kept")


def _crowd(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng, (236, 238, 232))
    places = rng.sample([(x, y) for x in range(12) for y in range(12)], 40)
    boxes = []
    for number, (column, row) in enumerate(places):
        x, y = 20 + column * 44 + rng.randint(-6, 6), 20 + row * 44 + rng.randint(-6, 6)
        asked = number < 24
        canvas.pen.ellipse([x, y, x + 14, y + 14], fill=(206, 44, 40) if asked else (150, 160, 150))
        if asked:
            boxes.append((float(x), float(y), x + 14.0, y + 14.0))
    return canvas.ask("How many red discs are there?", "24", (tuple(boxes),), "kept")


def _copies(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng)
    total = canvas.amount()
    canvas.write_goods(5, top=150)
    canvas.write(40, 40, "To pay", 26)
    first = canvas.write(390, 40, total, 26)
    canvas.write(40, 480, "TOTAL", 26)
    second = canvas.write(390, 480, total, 26)
    return canvas.ask("What is the total amount?", total, ((first,), (second,)), "kept")


def _absent(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng)
    lines = canvas.write_goods(10, top=60)
    return canvas.ask("What is the telephone number?", "not found", (), "even", tuple(lines))


def _texture(rng: random.Random, variant: int) -> Drawn:
    canvas = Canvas(rng)
    canvas.image = draw_texture(list(TEXTURES)[variant % len(TEXTURES)], variant // len(TEXTURES), (SIDE, SIDE))
    asked = ("What is the total amount?", "What is the date?", "What does the sign say?")[variant % 3]
    return canvas.ask(asked, "not found", (), "even")


CASES: dict[str, tuple[Callable[[random.Random, int], Drawn], str]] = {  # how it is drawn, and when it is passed
    "camouflage": (_camouflage, "Pale text next to loud colours: the text is kept."),
    "void": (_void, "A bare wall: the choice is even, or almost nothing is kept."),
    "vague": (_vague, "Three notes and a question that names none: half of every note is kept."),
    "border": (_border, "Text that touches the picture's edge: the text is kept."),
    "crowd": (_crowd, "Two dozen small discs, all of them needed: the discs are kept."),
    "copies": (_copies, "The answer is there twice: either copy is kept."),
    "absent": (_absent, "A list without what is asked for: the choice is even, or half of every line is kept."),
    "texture": (_texture, "A texture without content (noise, marble, grass, ...): the choice is even."),
}
PHOTO_CASES = {
    "scrambled": "A photograph with random phases, so that nothing is left in it: the choice is even.",
    "photo": "A photograph and a question about something in it: that is kept.",
}
PASSED_WHEN = {case: passed for case, (_, passed) in CASES.items()} | PHOTO_CASES


def make_suite(variants: int = VARIANTS, photos: str | Path | None = None) -> Data:
    """Every case in several variants, identical on every machine; the drawn ones read nothing from a disk.

    `photos`: a folder of photographs for the cases `PHOTO_CASES`; with `samples.jsonl` in it, its questions with evidence are
    asked, too.
    """
    pictures: list[PictureQuestions] = []

    def add(case: str, number: int, image: Any, size: tuple[int, int], sample: Sample) -> None:
        sample = replace(sample, kind=case, line=len(pictures) + 1)
        pictures.append(PictureQuestions(f"{case} {number}", image, size, (sample,)))

    for case, (draw, _) in CASES.items():
        count = variants * TEXTURE_VARIANTS * len(TEXTURES) // VARIANTS if case == "texture" else variants
        for variant in range(count):
            image, sample = draw(random.Random(f"{case} {variant}"), variant)
            add(case, variant + 1, image, (SIDE, SIDE), sample)
    if photos is not None:
        for case, number, image, sample in _photo_cases(Path(photos)):
            add(case, number, image, image.size, sample)
    return Data("robustness", tuple(pictures))


def _photo_cases(folder: Path) -> list[tuple[str, int, Image.Image, Sample]]:
    """(case, number, picture, question) of the first photographs in a folder."""
    if not folder.is_dir():
        raise DataError(f"expected a folder of photographs, got {str(folder)!r}")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in PHOTO_SUFFIXES)[:PHOTOS]
    if not paths:
        raise DataError(f"expected photographs ({', '.join(PHOTO_SUFFIXES)}) in {str(folder)!r}, got none")
    known = read_samples(folder).pictures if (folder / "samples.jsonl").is_file() else ()
    asked = {Path(picture.name).name: [one for one in picture.samples if one.evidence] for picture in known}
    found = []
    for number, path in enumerate(paths, 1):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        void = Sample("What is the total amount?", ("not found",), extra={"rule": "even", "content": ()})
        found.append(("scrambled", number, scramble(image, number), void))
        if asked.get(path.name):
            sample = replace(asked[path.name][0], extra={"rule": "kept", "content": ()})
            found.append(("photo", number, image, sample))
    return found


def judge(report: Report) -> Verdicts:
    """Whether each selector and budget passed each variant of a case; None: not judged."""
    verdicts: Verdicts = {}
    for picture in report.data.pictures:
        for row in report.rows[picture.name]:
            cases = verdicts.setdefault((row["selector"], row["budget"]), {})
            cases.setdefault(row["kind"], []).append(judge_row(picture, row))
    return verdicts


def judge_row(picture: PictureQuestions, row: Row) -> bool | None:
    """Whether the kept cells pass a drawn case; None: not judged."""
    if not row.get("keep"):
        return None
    grid = grid_from_lists(row["grid"])
    keep = unpack_cells(row["keep"], grid.n)
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


def _half_of_each(keep: torch.Tensor, grid: Cells, picture: PictureQuestions, boxes: Sequence[Box]) -> bool:
    shares = [recall(keep, evidence_cells(((box,),), grid, picture.size)) for box in boxes]
    return bool(shares) and all(share is not None and share >= HALF for share in shares)


def evenness(keep: torch.Tensor, grid: Cells) -> float:
    """The entropy of cells `[K]` over sixteen equal parts of the picture, relative to its maximum: 0 (all in one) to 1."""
    if not len(keep):
        return 0.0
    boxes = grid.boxes(keep, (PARTS, PARTS)).double()
    middle = ((boxes[:, :2] + boxes[:, 2:]) / 2).long().clamp(0, PARTS - 1)  # [K, 2]
    counts = torch.bincount(middle[:, 1] * PARTS + middle[:, 0], minlength=PARTS**2).double()
    shares = counts[counts > 0] / counts.sum()
    # Fewer cells than parts cannot fill all parts.
    return float(-(shares * shares.log()).sum()) / max(math.log(min(len(keep), PARTS**2)), 1e-9)


def to_dict(report: Report) -> dict[str, Any]:
    """All verdicts for JSON: what each case requires, and which variants each selector passed."""
    records = []
    for (selector, budget), cases in judge(report).items():
        judged = _judged(cases)
        counts = {"passed": cases, "count": sum(judged), "judged": len(judged)}
        records.append({"selector": selector, "budget": budget} | counts)
    samples = {picture.samples[0].kind: picture.samples[0] for picture in report.data.pictures}
    cases_shown = [
        {"case": case, "question": sample.question, "passed_when": PASSED_WHEN[case]}
        for case, sample in samples.items()
    ]
    return {"model": report.model, "suite": "robustness", "cases": cases_shown, "records": records}


def to_table(report: Report) -> str:
    """Markdown: how many variants each selector passed, by case and in all."""
    verdicts = judge(report)
    shown = [case for case in PASSED_WHEN if any(case in cases for cases in verdicts.values())]
    rows = []
    for (selector, budget), cases in verdicts.items():
        counts = [_judged({case: cases.get(case, [])}) for case in shown] + [_judged(cases)]
        rows.append([selector, budget, *(f"{sum(some)} of {len(some)}" if some else "not judged" for some in counts)])
    return markdown_table(["selector", "budget", *shown, "passed"], rows)


def _judged(cases: dict[str, list[bool | None]]) -> list[bool]:
    return [verdict for some in cases.values() for verdict in some if verdict is not None]
