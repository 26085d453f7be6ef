"""`python -m recipes.reader.export_exam`: a folder of pictures with `samples.jsonl` for the exam.

New drawings, whose seeds training does not use, or, with `--receipts`, the scans that training keeps for validation.
`--held-out` asks in phrasings that training never uses.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.training.documents.page import Document, FontSet, PageQuestion
from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.receipts import Receipt, read_receipts, split
from recipes.reader.validation import FAMILIES, draw_page, receipt_sheets

_READING = ("place", "after")
# Kinds of questions that each family must hold; others come as they are drawn. Only a notice with a single text allows `sign`: one in five.
KINDS: dict[str, tuple[str, ...]] = {
    "receipt": ("total", "date", "company", "address", "price", *_READING, NOT_FOUND),
    "form": ("field", "heading", *_READING, NOT_FOUND),
    "table": ("table", "heading", *_READING, NOT_FOUND),
    "notice": ("notice", "sign", "colour", *_READING, NOT_FOUND),
}
_MAX_DRAWINGS = 100  # for each question that is still missing


def kind_of(question: PageQuestion) -> str:
    return NOT_FOUND if question.answer == NOT_FOUND else question.kind


def _draw_family(
    fonts: FontSet, family: str, count: int, least: int, held_out: bool
) -> Iterator[tuple[int, Document, list[PageQuestion]]]:
    """`count` drawings with all questions, then more with questions of kinds that are still rare."""
    asked = Counter(dict.fromkeys(KINDS.get(family, ()), 0))
    number = 0
    while number < count or min((asked[kind] for kind in KINDS.get(family, ())), default=least) < least:
        if number > count + _MAX_DRAWINGS * least:
            raise RuntimeError(f"{number} drawings of the family {family!r} do not hold {least} of each kind: {asked}")
        document, questions = draw_page(fonts, family, number, held_out)
        wanted = []
        for question in questions:
            if number < count or asked[kind_of(question)] < least:
                wanted.append(question)
                asked[kind_of(question)] += 1
        if wanted:
            yield number, document, wanted
        number += 1


class SamplesWriter:
    """Writes pictures and `samples.jsonl` into a folder."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.counts = out, Counter[str]()
        self._file = (out / "samples.jsonl").open("w")

    def __enter__(self) -> "SamplesWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, name: str, document: Document, asked: Iterable[tuple[str, PageQuestion]]) -> None:
        """Write a picture and its `(kind, question)` pairs."""
        Image.fromarray(document.image).save(self.out / name)
        self.add_rows(sample_rows(name, document, asked))

    def add_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the rows of a picture that is in the folder already."""
        for row in rows:
            self.counts[row["kind"]] += 1
            self._file.write(json.dumps(row) + "\n")


def sample_rows(name: str, document: Document, asked: Iterable[tuple[str, PageQuestion]]) -> Iterator[dict[str, Any]]:
    """The rows of `samples.jsonl` for a picture's `(kind, question)` pairs."""
    height, width = document.image.shape[:2]
    for kind, question in asked:
        row: dict[str, Any] = {"image": name, "question": question.text, "answer": question.answer, "kind": kind}
        row |= {"width": width, "height": height}
        if question.evidence:
            boxes = [document.lines[index].box for index in question.evidence]
            row["evidence"] = [[[round(float(side), 1) for side in box] for box in boxes]]
        yield row


def export_drawings(fonts: FontSet, out: Path, count: int, held_out: bool = False, least: int = 0) -> Counter[str]:
    """Write `count` drawings of every family, or more until each kind has `least` questions; returns counts by kind."""
    with SamplesWriter(out) as writer:
        for family in FAMILIES:
            for number, document, questions in _draw_family(fonts, family, count, least, held_out):
                asked = [(f"{family}: {kind_of(question)}", question) for question in questions]
                writer.add(f"{family}_{number:03d}.png", document, asked)
    return writer.counts


def export_scans(receipts: list[Receipt], out: Path, held_out: bool = False) -> Counter[str]:
    """Write these receipts with four questions each; returns counts by kind."""
    with SamplesWriter(out) as writer:
        for sheet in receipt_sheets(receipts, held_out):
            for number, (document, questions) in enumerate(zip(sheet.documents, sheet.questions, strict=True)):
                name = f"scan_{sheet.grid[0]}x{sheet.grid[1]}_{number:03d}.png"
                writer.add(name, document, [(question.kind, question) for question in questions])
    return writer.counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.reader.export_exam", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--fonts", type=Path, help="folder of .ttf fonts to draw with")
    source.add_argument("--receipts", type=Path, help="folder of scanned receipts with recs.json")
    parser.add_argument("--out", type=Path, required=True, help="where the pictures and samples.jsonl go")
    parser.add_argument(
        "--count", type=int, default=40, help="drawings of every family with all of their questions (40)"
    )
    parser.add_argument(
        "--least", type=int, default=40, help="more drawings, until every kind has so many questions (40)"
    )
    parser.add_argument("--held-out", action="store_true", help="ask in phrasings that training does not use")
    parser.add_argument("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    given = parser.parse_args()
    try:
        if given.receipts is not None:
            _, validation = split(read_receipts(given.receipts), given.validation)
            counts = export_scans(validation, given.out, given.held_out)
        else:
            counts = export_drawings(
                FontSet.from_folder(given.fonts), given.out, given.count, given.held_out, given.least
            )
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    print(
        f"{counts.total()} questions of {len(counts)} kinds, at least {min(counts.values(), default=0)} of each, in {given.out}"
    )


if __name__ == "__main__":
    main()
