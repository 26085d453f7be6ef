"""One entry point for all drawings: `draw_any(seed)` gives a picture with questions, answers and evidence boxes.

Every drawing also has questions about something that it does not show, and questions about all of it. `enrich` adds them to
a document of any kind, and asks its questions in the richer phrasings of `phrasings.py`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.training.documents import chart, form, invoice, notice, papers, receipt, scene, screen, table
from arr_coc.training.documents.page import Box, Document, FontSet, Line, PageQuestion, bundled_fonts
from arr_coc.training.documents.phrasings import say
from arr_coc.training.documents.questions import NOT_FOUND

Groups = tuple[tuple[Box, ...], ...]  # all boxes of a group are needed, any one group suffices


@dataclass(frozen=True)
class DrawnQuestion:
    """A question about a drawing.

    `evidence`: groups of pixel boxes around the answer and the label that identifies it; `()` where `absent`, and None
    where `whole`: such a question needs even coverage of the picture.
    """

    kind: str
    text: str
    answer: str
    evidence: Groups | None
    absent: bool = False
    whole: bool = False
    held_out: bool = False


@dataclass(frozen=True)
class Drawing:
    """A drawn picture with its questions. `kind` is one of `KINDS`; `lines` are its texts with their places."""

    kind: str
    image: np.ndarray  # [H, W, 3], uint8
    questions: tuple[DrawnQuestion, ...]
    lines: tuple[Line, ...]
    summary: str


@dataclass(frozen=True)
class _Family:
    """How a kind is drawn: `render(rng, fonts, width, height, held_out, invented)`, and the sizes it looks right at."""

    render: Callable[[random.Random, FontSet, int, int, bool, bool], Document]
    widths: tuple[int, int]
    aspects: tuple[float, float]  # height over width
    rephrased: bool = False  # its questions are asked in the phrasings of `questions.py`


def _old(
    render: Callable[[random.Random, FontSet, int, int, bool], Document],
) -> Callable[[random.Random, FontSet, int, int, bool, bool], Document]:
    """A renderer without the option for invented names: half of its names are invented anyway."""
    return lambda rng, fonts, width, height, held_out, _: render(rng, fonts, width, height, held_out)


SCENE = "scene"
_FAMILIES: dict[str, _Family] = {
    "receipt": _Family(_old(receipt.render), (420, 640), (1.6, 2.4), rephrased=True),
    "form": _Family(_old(form.render), (420, 760), (0.8, 1.5), rephrased=True),
    "table": _Family(_old(table.render), (420, 760), (0.5, 1.1), rephrased=True),
    "notice": _Family(_old(notice.render), (336, 640), (0.5, 1.0), rephrased=True),
    "invoice": _Family(invoice.render, (600, 900), (1.25, 1.45)),
    "chart": _Family(chart.render, (440, 760), (0.6, 0.85)),
    "screen": _Family(screen.render, (420, 860), (0.55, 1.3)),
    "bank slip": _Family(papers.slip, (480, 760), (0.45, 0.8)),
    "ticket": _Family(papers.ticket, (440, 720), (0.4, 0.75)),
    "timetable": _Family(papers.timetable, (480, 800), (0.6, 1.1)),
    "letter": _Family(papers.letter, (600, 820), (0.95, 1.4)),
    "business card": _Family(papers.card, (420, 640), (0.52, 0.68)),
    "label": _Family(papers.label, (360, 560), (0.8, 1.2)),
    SCENE: _Family(scene.render, (336, 760), (0.6, 1.2)),
}
KINDS: tuple[str, ...] = tuple(_FAMILIES)
SCENES = 0.1  # of all drawings, by default
# For training: multiples of common cell sizes (28 and 32 pixels), in width and height.
SIZES = ((448, 448), (672, 448), (672, 672), (448, 672), (672, 896), (448, 896))


def mix(scenes: float = SCENES) -> dict[str, float]:
    """Each kind's share: `scenes` (0 to 1) for drawn scenes, and the same for every kind of document."""
    if not 0 <= scenes <= 1:
        raise ArrCocError(f"expected a share of scenes from 0 to 1, got {scenes:g}")
    return {kind: scenes if kind == SCENE else (1 - scenes) / (len(KINDS) - 1) for kind in KINDS}


# Form fields that are easily taken for each other: their question uses the printed word where two are on a page.
_ALIKE = tuple(
    frozenset(group.split(", "))
    for group in (
        "invoice date, due date, date of birth, issue date, expiry date, delivery date, date, valid until",
        "name, customer, contact, manager, patient, passenger, author, signed by, recipient, company, supplier, bank, "
        "employer, carrier",
        "total, amount due, balance, deposit, tax, price, fee, subtotal",
        "phone, fax, mobile",
        "time, departure, arrival, check-in",
        "address, deliver to, destination, city",
        "invoice number, order number, reference, account number, policy number, serial number, ticket number, "
        "tracking number, booking code",
    )
)


def _rephrase(rng: random.Random, question: PageQuestion, keys: Sequence[str], held_out: bool) -> PageQuestion:
    """The question in a richer phrasing. `keys` are the fields on the page."""
    slots = dict(question.slots)
    literal = False
    if question.kind == "field":
        key = slots["key"].lower()
        literal = any(key in group and any(other in group for other in keys if other != key) for group in _ALIKE)
    absent = question.answer == NOT_FOUND
    try:
        said = say(rng, question.kind, held_out, literal=literal, **slots)
    except KeyError:  # the words of this question are unknown
        said = question.text
    return replace(question, text=said, evidence=() if absent else question.evidence, absent=absent)


_OBJECTS = [
    "dog",
    "cat",
    "ball",
    "tree",
    "car",
    "house",
    "clock",
    "chair",
    "bottle",
    "cup",
    "apple",
    "book",
    "bicycle",
    "bird",
    "boat",
    "horse",
    "umbrella",
    "lamp",
    "guitar",
]
_STRAY_FIELDS = [
    "passport number",
    "licence plate",
    "blood group",
    "boarding gate",
    "seat number",
    "shoe size",
    "room temperature",
    "wifi password",
    "opening hours",
    "doctor's name",
    "parking fee",
    "flight number",
    "bus line",
    "page number",
    "interest rate",
    "warranty period",
    "calories",
    "expiry date",
    "coupon code",
    "password",
    "table number",
    "room rate",
    "currency",
    "inspection date",
]
_STRAY_KINDS = {  # kinds of questions that have an answer in these families only, and words that would be a label of it
    "IBAN": ("invoice|bank slip", "iban account"),
    "BIC": ("invoice|bank slip", "bic swift"),
    "due date": ("invoice|form", "due pay"),
    "invoice number": ("invoice|form|receipt", "invoice"),
    "tax number": ("invoice|receipt", "tax vat gst"),
    "shipping": ("invoice|label", "shipping delivery freight"),
    "discount": ("invoice|receipt", "disc"),
    "x axis": ("chart", ""),
    "y axis": ("chart", ""),
    "error code": ("screen", "error"),
    "main button": ("screen", ""),
    "tab": ("screen", "tab"),
    "clock": (SCENE, "time clock :"),
}


def _stray(rng: random.Random, family: str, words: str, held_out: bool) -> PageQuestion | None:
    """A question about something that is not in the picture; None if the draw would be on the page. `words`: its texts."""
    style = rng.random()
    if style < 0.4 and family != SCENE:
        thing = rng.choice(_OBJECTS)
        if thing in words or (thing == "ball" and family == "notice"):  # notices have discs
            return None
        kind = rng.choice(("where", "object colour", "is there", "count"))
        article = "an" if thing[0] in "aeiou" else "a"
        asked = say(rng, kind, held_out, thing_=thing, things_=f"{thing}s", a_thing=f"{article} {thing}")
        return PageQuestion(kind, asked, {"is there": "no", "count": "0"}.get(kind, NOT_FOUND), absent=True)
    if style < 0.7:
        kind = rng.choice(sorted(_STRAY_KINDS))
        homes, labels = _STRAY_KINDS[kind]
        if family in homes.split("|") or any(label in words for label in labels.split()):
            return None
        return PageQuestion(kind, say(rng, kind, held_out), NOT_FOUND, absent=True)
    key = rng.choice(_STRAY_FIELDS)
    if any(part in words for part in key.split()):
        return None
    return PageQuestion("field", say(rng, "field", held_out, literal=True, key=key), NOT_FOUND, absent=True)


def _first_answers(document: Document) -> dict[str, str]:
    return {q.kind: q.answer for q in reversed(document.questions) if q.answer != NOT_FOUND}


def _summary(document: Document, family: str) -> str:
    """What a page of the first families is, from its questions and texts."""
    if document.summary:
        return document.summary
    known = _first_answers(document)
    if family == "receipt":
        parts = [
            f" {link} {known[kind]}"
            for kind, link in (("company", "from"), ("date", "of"), ("total", "over"))
            if kind in known
        ]
        return f"A receipt{','.join(parts)}."
    keys = list(
        dict.fromkeys(
            value
            for q in document.questions
            if q.answer != NOT_FOUND
            for name, value in q.slots
            if name in ("key", "column")
        )
    )
    heading = f' with the heading "{known["heading"]}"' if "heading" in known else ""
    if family in ("form", "table"):
        return f"A {family}{heading}" + (f" that gives {', '.join(keys[:5])}." if keys else ".")
    shown = "; ".join(line.text for line in document.lines)
    return f"A notice that says: {shown}." if shown else "A notice without text."


def enrich(
    rng: random.Random, document: Document, family: str, held_out: bool = False, rephrase: bool = True, strays: int = 2
) -> Document:
    """The document with its questions in richer phrasings, up to `strays` about absent things, and one about all of it.

    The picture stays as it is. `rephrase`: phrase the document's own questions differently, too.
    """
    keys = [
        value.lower() for q in document.questions if q.answer != NOT_FOUND for name, value in q.slots if name == "key"
    ]
    asked = [_rephrase(rng, q, keys, held_out) if rephrase else q for q in document.questions]
    words = " ".join(line.text.lower() for line in document.lines)
    more = [stray for _ in range(strays) if (stray := _stray(rng, family, words, held_out)) is not None]
    summary = _summary(document, family)
    about_all = PageQuestion("whole", say(rng, "whole", held_out), summary, whole=True)
    return replace(document, questions=(*asked, *more, about_all), summary=summary)


def _boxes(document: Document, lines: tuple[int, ...]) -> tuple[Box, ...]:
    """The lines' boxes, clipped to the picture."""
    height, width = document.image.shape[:2]
    found = []
    for index in lines:
        left, top, right, bottom = (float(side) for side in document.lines[index].box)
        found.append((max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom)))
    return tuple(found)


def _drawn(document: Document, question: PageQuestion, held_out: bool) -> DrawnQuestion:
    evidence: Groups | None = ()
    if question.whole:
        evidence = None
    elif not question.absent:
        evidence = tuple(_boxes(document, group) for group in (question.evidence, *question.others))
    return DrawnQuestion(
        question.kind, question.text, question.answer, evidence, question.absent, question.whole, held_out
    )


def as_drawing(document: Document, kind: str, held_out: bool = False) -> Drawing:
    """A document as a drawing: in colour, its evidence as boxes."""
    image = document.image if document.image.ndim == 3 else np.repeat(document.image[..., None], 3, axis=2)
    questions = tuple(_drawn(document, question, held_out) for question in document.questions)
    return Drawing(kind, np.ascontiguousarray(image), questions, document.lines, document.summary)


def fitting_size(rng: random.Random, kind: str) -> tuple[int, int]:
    """One of `SIZES` that suits a kind of drawing."""
    low, high = _FAMILIES[kind].aspects
    fitting = [size for size in SIZES if low - 0.1 <= size[1] / size[0] <= high + 0.1]
    return rng.choice(fitting or [min(SIZES, key=lambda size: abs(size[1] / size[0] - (low + high) / 2))])


def fitting_kinds(width: int, height: int) -> tuple[str, ...]:
    """The kinds of drawings that look right on a canvas of this size."""
    aspect = height / width
    return tuple(
        kind
        for kind, family in _FAMILIES.items()
        if family.aspects[0] * 0.85 <= aspect <= family.aspects[1] * 1.15 and width >= family.widths[0] * 0.8
    )


def draw_document(
    rng: random.Random,
    fonts: FontSet,
    kind: str,
    width: int,
    height: int,
    held_out: bool = False,
    invented: bool = False,
) -> Document:
    """A drawing of one of `KINDS` as a document, with questions about absent things and one about all of it."""
    family = _FAMILIES[kind]
    document = family.render(rng, fonts, width, height, held_out, invented)
    return enrich(rng, document, kind, held_out, rephrase=family.rephrased)


def draw_within(
    rng: random.Random, fonts: FontSet, kind: str, width: int, height: int, invented: bool = False
) -> Document | None:
    """A drawing at a size that suits its kind, at times trimmed to its content, on a canvas of any shape.

    None if it would be shrunk by more than a fifth or leave most of the canvas empty.
    """
    family = _FAMILIES[kind]
    low, high = family.widths
    if low * 0.8 > width or low * family.aspects[0] * 0.6 > height:
        return None
    wide = rng.randint(low, max(low, min(high, round(width * 1.15))))
    document = draw_document(rng, fonts, kind, wide, round(wide * rng.uniform(*family.aspects)), invented=invented)
    paper = document.image[0, 0]
    left, top, right, bottom = 0, 0, document.image.shape[1], document.image.shape[0]
    if rng.random() < 0.7:  # the empty part of the paper is not always in a picture
        inked = np.abs(document.image.astype(np.int16) - paper) > 24
        inked = inked.any(-1) if inked.ndim == 3 else inked
        rows, columns = np.flatnonzero(inked.any(1)), np.flatnonzero(inked.any(0))
        if len(rows):
            edges = [rng.randint(4, 40) for _ in range(4)]
            left, right = max(0, int(columns[0]) - edges[0]), min(right, int(columns[-1]) + edges[1])
            top, bottom = max(0, int(rows[0]) - edges[2]), min(bottom, int(rows[-1]) + edges[3])
    scale = min(width / (right - left), height / (bottom - top))
    scale = min(scale, 1.6) * (rng.uniform(0.85, 1.0) if rng.random() < 0.5 else 1.0)
    size = (min(width, round((right - left) * scale)), min(height, round((bottom - top) * scale)))
    if scale < 0.8 or size[0] * size[1] < 0.4 * width * height:
        return None
    at = (rng.randint(0, width - size[0]), rng.randint(0, height - size[1]))
    shown = Image.fromarray(document.image).resize(
        size, Image.Resampling.BICUBIC, box=(left, top, right, bottom), reducing_gap=2.0
    )
    around = paper if rng.random() < 0.8 else np.full_like(paper, rng.randint(0, 255))
    canvas = np.full((height, width, *document.image.shape[2:]), around, np.uint8)
    canvas[at[1] : at[1] + size[1], at[0] : at[0] + size[0]] = np.asarray(shown)

    def moved(line: Line) -> Line:
        box = line.box
        return replace(
            line,
            box=(
                (box[0] - left) * scale + at[0],
                (box[1] - top) * scale + at[1],
                (box[2] - left) * scale + at[0],
                (box[3] - top) * scale + at[1],
            ),
            middles=(line.middles - left) * scale + at[0],
        )

    return replace(document, image=canvas, lines=tuple(map(moved, document.lines)))


def draw_any(
    seed: int | str,
    kinds: Sequence[str] | Mapping[str, float] | None = None,
    *,
    fonts: FontSet | None = None,
    size: tuple[int, int] | None = None,
    held_out: bool = False,
    invented: bool = False,
) -> Drawing:
    """A drawing of one of `kinds`, the same for the same seed and fonts.

    `kinds` may give each kind's weight; None: those of `mix()`. `size` is (width, height) in pixels; None: a size that suits the kind.
    `held_out`: all questions in phrasings that training never uses. `invented`: names and addresses of random syllables or
    misspelt (receipts, forms, tables and notices mix them in any case).
    """
    kinds = mix() if kinds is None else kinds
    unknown = [kind for kind in kinds if kind not in _FAMILIES]
    if unknown or not kinds:
        raise ArrCocError(f"expected kinds among {', '.join(KINDS)}, got {', '.join(unknown) or 'none'}")
    if size is not None and min(size) < 112:
        raise ArrCocError(f"expected a size of at least 112 x 112 pixels, got {size[0]} x {size[1]}")
    rng = random.Random(f"drawing {seed}")
    weights = list(kinds.values()) if isinstance(kinds, Mapping) else None
    kind = rng.choices(list(kinds), weights)[0]
    family = _FAMILIES[kind]
    width = rng.randint(*family.widths)
    height = round(width * rng.uniform(*family.aspects))
    width, height = size or (width, height)
    document = draw_document(rng, fonts or bundled_fonts(), kind, width, height, held_out, invented)
    return as_drawing(document, kind, held_out)
