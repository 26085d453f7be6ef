"""Validation of the reader during training: scanned receipts and new drawings, accuracy per kind of question."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from arr_coc.evaluation.metrics import similarity
from arr_coc.training.documents import form, notice, receipt, table
from arr_coc.training.documents.drawing import draw_document
from arr_coc.training.documents.page import Document, FontSet, PageQuestion
from arr_coc.training.documents.questions import HELD_OUT, NOT_FOUND, PLAIN, reading_questions
from recipes.reader.augment import without_augmentation
from recipes.reader.batches import as_channels
from recipes.reader.data import Library
from recipes.reader.forward import ReaderForward, answer, to_patches
from recipes.reader.model import CELL
from recipes.reader.receipts import Placement, Receipt, scan
from recipes.reader.recipe import PAGE_GRIDS, Grid, pixels

_SEED = 7_000_000  # not among the seeds of training

_Renderer = Callable[[random.Random, FontSet, int, int, bool], Document]


def _drawn(kind: str) -> _Renderer:
    def render(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool) -> Document:
        return draw_document(rng, fonts, kind, width, height, held_out, invented=True)

    return render


# Families of drawn pages, each on one canvas shape.
FAMILIES: dict[str, tuple[_Renderer, Grid]] = {
    "receipt": (receipt.render, (20, 45)),
    "form": (form.render, (18, 24)),
    "table": (table.render, (24, 18)),
    "notice": (notice.render, (18, 12)),
    "invoice": (_drawn("invoice"), (25, 36)),
    "chart": (_drawn("chart"), (24, 18)),
    "screen": (_drawn("screen"), (30, 30)),
    "bank slip": (_drawn("bank slip"), (27, 16)),
    "ticket": (_drawn("ticket"), (27, 16)),
    "timetable": (_drawn("timetable"), (36, 25)),
    "letter": (_drawn("letter"), (25, 36)),
    "business card": (_drawn("business card"), (24, 18)),
    "label": (_drawn("label"), (18, 24)),
}


@dataclass(frozen=True)
class Sheet:
    """Documents of one grid, the questions about each, and the name in the report."""

    name: str
    grid: Grid
    documents: tuple[Document, ...]
    questions: tuple[tuple[PageQuestion, ...], ...]


def _nearest_grid(receipt_: Receipt, grids: tuple[Grid, ...]) -> Grid:
    ratio = receipt_.image.width / receipt_.image.height
    return min(grids, key=lambda grid: abs(grid[0] / grid[1] - ratio))


def receipt_sheets(receipts: list[Receipt], held_out: bool = False) -> list[Sheet]:
    """The four questions about each receipt, in their plainest or in held-out phrasings."""
    groups: dict[Grid, list[Document]] = defaultdict(list)
    for receipt_ in receipts:
        grid = _nearest_grid(receipt_, PAGE_GRIDS[:3])
        rng = random.Random(_SEED)
        groups[grid].append(scan(rng, receipt_, *pixels(grid), Placement.whole(receipt_, *pixels(grid))))
    phrasings = {kind: HELD_OUT[kind][0] if held_out else plain_form for kind, plain_form in PLAIN.items()}
    sheets = []
    for grid, documents in groups.items():
        questions = tuple(
            tuple(replace(q, text=phrasings[q.kind]) for q in document.questions) for document in documents
        )
        sheets.append(Sheet("receipts, new phrasing" if held_out else "receipts", grid, tuple(documents), questions))
    return sheets


def draw_page(
    fonts: FontSet, family: str, number: int, held_out: bool = False
) -> tuple[Document, tuple[PageQuestion, ...]]:
    """A drawing of a family, always the same for its number, with up to eight questions."""
    draw, grid = FAMILIES[family]
    rng = random.Random(_SEED + number)
    document = draw(rng, fonts, *pixels(grid), held_out)
    asked = rng.sample(document.questions, min(6, len(document.questions)))
    return document, (*asked, *reading_questions(rng, document, document.line_starts(CELL), 2, held_out))


def rendered_sheets(library: Library, count: int, held_out: bool = False) -> list[Sheet]:
    """New drawings of every family."""
    sheets = []
    for family, (_, grid) in FAMILIES.items():
        drawn = [draw_page(library.fonts, family, number, held_out) for number in range(count)]
        name = f"rendered {family}" + (", new phrasing" if held_out else "")
        sheets.append(Sheet(name, grid, tuple(page for page, _ in drawn), tuple(asked for _, asked in drawn)))
    return sheets


@dataclass(frozen=True)
class ValidationAnswer:
    """One answer of the reader."""

    sheet: str
    picture: int  # unique to the picture
    question: PageQuestion
    text: str

    @property
    def right(self) -> bool:
        return self.text.strip() == self.question.answer.strip()

    @property
    def similarity(self) -> float:
        return similarity(self.text, self.question.answer)


def answer_sheets(
    forward: ReaderForward, sheets: list[Sheet], device: str, stopped: Callable[[], bool] = lambda: False
) -> list[ValidationAnswer] | None:
    """The reader's answers to all questions; None if `stopped` returned True before a sheet."""
    kind = torch.device(device).type
    given, pictures_before = [], 0
    for sheet in sheets:
        if stopped():
            return None
        channels = 3 if any(document.image.ndim == 3 for document in sheet.documents) else 1
        pictures = torch.stack(
            [torch.from_numpy(as_channels(document.image, channels).copy()) for document in sheet.documents]
        )
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            patches = to_patches(without_augmentation(pictures.to(device)))
            texts = answer(forward, patches, [[q.text for q in questions] for questions in sheet.questions], sheet.grid)
        for number, (asked, found) in enumerate(zip(sheet.questions, texts, strict=True), start=pictures_before):
            given += [
                ValidationAnswer(sheet.name, number, question, text)
                for question, text in zip(asked, found, strict=True)
            ]
        pictures_before += len(sheet.documents)
    return given


def validate(
    forward: ReaderForward, sheets: list[Sheet], device: str, stopped: Callable[[], bool] = lambda: False
) -> tuple[dict[str, dict[str, float]], list[tuple[str, str, str]]] | None:
    """Exact match, edit similarity and count per sheet and kind, and some wrong answers `(question, expected, got)`.

    None if it was `stopped`.
    """
    given = answer_sheets(forward, sheets, device, stopped)
    if given is None:
        return None
    scores: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for one in given:
        score = (one.right, one.similarity)
        scores[f"{one.sheet}: {one.question.kind}"].append(score)
        if one.question.answer == NOT_FOUND:
            scores[f"{one.sheet}: of these, not found"].append(score)
    wrong = [(one.question.text, one.question.answer, one.text) for one in given if not one.right]
    report = {
        name: {
            "exact": round(sum(r for r, _ in rows) / len(rows), 4),
            "similarity": round(sum(s for _, s in rows) / len(rows), 4),
            "count": len(rows),
        }
        for name, rows in sorted(scores.items())
    }
    return report, random.Random(0).sample(wrong, min(12, len(wrong)))
