"""Pictures and questions that `benchmarks/doubt.py` asks the reader: what is in the picture, and what is not.

Scans that the reader's training keeps for validation, drawn documents of all kinds, photographs, blank pages, noise, textures and
pictures of a few pixels. The pictures and wordings of `report` are others than those of `fit`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.draw.textures import TEXTURES, draw_texture
from arr_coc.training.documents import KINDS, draw_any
from arr_coc.training.documents.questions import phrase
from arr_coc.training.examples import read_folder
from arr_coc.types.grid import Evidence
from arr_coc.types.image import rgb_image
from recipes.reader.receipts import FIELDS, read_receipts, split

SETS = ("fit", "report")
FIRST_SEED = {"fit": 9_100_000, "report": 9_200_000}
SCANS, DRAWN, PHOTOS, SCENES = 19, 3, 20, 4  # of each set: scans; drawings of each kind; photographs; drawn scenes
ABSENT_OF_SCANS = 8  # questions about each that nothing answers
ON_PICTURES = (
    "What is the total amount?",
    "What is the date?",
    "What is the name of the company?",
    "What does it say?",
)
# Nothing on the pages answers them; words that must not be on a page stand after the bar.
ABSENT = {
    "fit": (
        "Is there a cat?|cat", "What is the blood group?|blood", "How many dogs are there?|dog", "What is the wifi password?|wifi pass",
        "Where is the bicycle?|bicycle", "What is the passport number?|passport", "When does the train leave?|train depart time",
        "Who is the doctor?|doctor dr", "What colour is the car?|car ", "What is the IBAN?|iban account", "Are there any birds?|bird",
        "What is the licence plate?|plate licence vehicle", "Which seat is booked?|seat", "What is the due date?|due pay valid",
        "What is the expiry date?|expir valid best before", "Does the man wear a hat?|hat", "What is the room temperature?|temp",
        "Who wrote the book?|book author", "What is the tracking number?|track", "Is anybody smiling?|smil",
        "What is the booking code?|booking code", "What is the value of the largest bar?|bar", "Tell me the patient's name.|patient",
        "What is the weather like?|weather", "What is the height of the tower?|height tower", "Which animal is shown?|animal",
        "Who is the author?|author", "What is the name of the river?|river", "How old is she?|age old", "What is the diagnosis?|diagnos",
        "What is the score of the match?|score match", "What does the boy hold?|boy", "What is the engine size?|engine",
        "Which song is it?|song", "What is the second line of the poem?|poem", "What is the capital of France?|france capital",
        "Which team plays at home?|team", "What is the name of the ship?|ship", "What is the eye colour?|eye",
        "Where does the bus stop?|bus stop", "What is the house made of?|house", "What is the user's password?|password",
        "What is the student's grade?|student grade", "What is the postage?|post", "What is the rent?|rent", "Give me the recipe.|recipe",
        "Which month has the highest sales?|sales", "What is the employer's name?|employ", "How heavy is the parcel?|parcel weight",
        "What is the deposit?|deposit", "What is the shipping method?|ship", "Who signed the contract?|sign contract",
    ),
    "report": (
        "Is there a dog in the picture?|dog", "What is the shoe size?|shoe size", "How many people are there?|people person", "What is the interest rate?|interest rate",
        "Where is the umbrella?|umbrella", "What is the flight number?|flight", "What time is the lesson?|lesson time",
        "Who is the passenger?|passenger", "What color is the ball?|ball", "What is the BIC?|bic swift", "Are the lights on?|light",
        "What is the policy number?|policy", "Which gate is it?|gate", "What is the discount?|disc", "What is the warranty period?|warranty",
        "Do you see a horse?|horse", "What is the speed limit?|speed", "Who painted this?|paint artist", "What is the serial number?|serial",
        "Is the woman happy?|woman", "What is the coupon code?|coupon code", "What is the trend of the line?|trend line",
        "What is the pupil's name?|pupil", "Which country won?|country won",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A question. `answers`: the right ones; empty where nothing in the picture answers it."""

    text: str
    kind: str
    answers: tuple[str, ...] = ()
    evidence: Evidence = ()  # boxes of the answer, where they are known


@dataclass(frozen=True, eq=False)
class Case:
    """A picture with its questions. `group`: what kind of picture."""

    name: str
    group: str
    image: Image.Image
    questions: tuple[Asked, ...]


def cases(part: str, scans: Path, photos: Path) -> Iterator[Case]:
    """All pictures of a set, mixed, so that an interrupted run has seen some of each group."""
    found = [*_scans(part, scans), *_drawn(part), *_photos(part, photos), *_empty(part)]
    random.Random(part).shuffle(found)
    return iter(found)


def folder_cases(folder: Path, kinds: Sequence[str] | None) -> Iterator[Case]:
    """The pictures of a folder with `samples.jsonl`."""
    for picture in read_folder(folder).pictures:
        asked = [
            Asked(one.question, one.kind, one.answers, one.evidence)
            for one in picture.samples
            if kinds is None or one.kind in kinds
        ]
        yield Case(picture.name, "receipts", rgb_image(picture.still)[0], tuple(asked))


def _absent(rng: random.Random, part: str, words: str, count: int) -> list[Asked]:
    fitting = [one.split("|") for one in ABSENT[part]]
    free = [asked for asked, labels in fitting if not any(label in words.lower() for label in labels.split())]
    return [Asked(text, "absent") for text in rng.sample(free, min(count, len(free)))]


def _scans(part: str, folder: Path) -> Iterator[Case]:
    _, validation = split(read_receipts(folder))
    for receipt in validation[SETS.index(part) :: 2][:SCANS]:
        rng = random.Random(f"{part} {receipt.name}")
        present = [
            Asked(phrase(rng, kind, held_out=part == "report"), kind, (receipt.fields[kind],))
            for kind in FIELDS
            if receipt.fields.get(kind)
        ]
        words = " ".join(text for text, _ in receipt.lines)
        asked = (*present, *_absent(rng, part, words, ABSENT_OF_SCANS))
        yield Case(f"scan {receipt.name}", "scan", receipt.image.convert("RGB"), asked)


def _drawn(part: str) -> Iterator[Case]:
    for place, kind in enumerate(KINDS):
        for number in range(SCENES if kind == "scene" else DRAWN):
            seed = FIRST_SEED[part] + 100 * place + number
            drawing, rng = draw_any(seed, [kind], held_out=part == "report"), random.Random(seed)
            image = Image.fromarray(drawing.image)
            if kind == "scene":  # no document
                asked = [Asked(text, "no document") for text in rng.sample(ON_PICTURES, 2)]
            else:
                present = [one for one in drawing.questions if not (one.absent or one.whole)]
                missing = [Asked(one.text, "absent") for one in drawing.questions if one.absent]
                words = " ".join(line.text for line in drawing.lines)
                asked = [
                    Asked(one.text, one.kind, (one.answer,), one.evidence or ())
                    for one in rng.sample(present, min(4, len(present)))
                ]
                asked += [*rng.sample(missing, min(2, len(missing))), *_absent(rng, part, words, 2)]
            yield Case(f"drawn {seed}", f"drawn: {kind}", image, tuple(asked))


def _photos(part: str, folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.jpg"))[SETS.index(part) :: 2][:PHOTOS]:
        rng = random.Random(f"{part} {path.name}")
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        asked = [Asked(text, "no document") for text in rng.sample(ON_PICTURES, 2)]
        yield Case(f"photo {path.name}", "photograph", image, (*asked, *_absent(rng, part, "", 1)))


def _empty(part: str) -> Iterator[Case]:
    """Pictures without anything to read."""
    rng, first = np.random.default_rng(FIRST_SEED[part]), 10 * SETS.index(part)
    pictures = {
        "white": Image.new("RGB", (560 + first, 800), "white"),
        "gray": Image.new("RGB", (400, 300 + first), (120, 120, 130)),
        "black": Image.new("RGB", (300 + first, 400), "black"),
        "paper": Image.fromarray(rng.normal(225, 6, (700, 500 + first, 3)).clip(0, 255).astype(np.uint8)),
        "1 x 1": Image.new("RGB", (1, 1), (200 - first, 10, 10)),
        "3 x 2": Image.fromarray(rng.integers(0, 256, (2, 3, 3), dtype=np.uint8)),
        "20 x 30": Image.fromarray(rng.integers(0, 256, (30, 20, 3), dtype=np.uint8)),
        "noise": Image.fromarray(rng.integers(0, 256, (420, 560, 3), dtype=np.uint8)),
        "faint noise": Image.fromarray(rng.normal(128, 12, (560, 420, 3)).clip(0, 255).astype(np.uint8)),
        "gradient": Image.fromarray(np.tile(np.linspace(20, 230, 560, dtype=np.uint8), (400, 1))).convert("RGB"),
        "disc": _disc(first),
        "lines": _lines(first),
    }
    kinds = sorted(TEXTURES)[SETS.index(part) :: 2]
    pictures |= {f"texture {kind}": draw_texture(kind, 2000 + first, (448, 448)) for kind in kinds}
    for number, (name, image) in enumerate(pictures.items()):
        asked = (ON_PICTURES[number % 4], ON_PICTURES[(number + 1) % 4])
        yield Case(f"{name}, {part}", "empty", image, tuple(Asked(text, "no document") for text in asked))


def _disc(first: int) -> Image.Image:
    image = Image.new("RGB", (480, 480), (230, 228, 220))
    ImageDraw.Draw(image).ellipse([120 + first, 100, 340, 320], fill=(180, 40, 40))
    return image


def _lines(first: int) -> Image.Image:
    """A ruled sheet on which nothing is written."""
    image = Image.new("RGB", (500, 640), "white")
    for y in range(40 + first, 640, 40):
        ImageDraw.Draw(image).line([30, y, 470, y], fill=(90, 110, 160), width=2)
    return image
