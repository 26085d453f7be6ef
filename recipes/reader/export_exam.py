"""`python -m recipes.reader.export_exam`: exam papers, a folder of pictures with `samples.jsonl` for the exam.

Fresh drawings, whose seeds are far from those of training, or, with `--receipts`, the scans that training keeps for
validation. `--held-out` asks in phrasings that training never uses.
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
from recipes.reader.validation import FAMILIES, drawing, receipt_sheets

_READING = ("place", "after")
# What is asked about each family. Only a notice with a single text allows `sign`, which is one in five.
KINDS: dict[str, tuple[str, ...]] = {
    "receipt": ("total", "date", "company", "address", "price", *_READING, NOT_FOUND),
    "form": ("field", "heading", *_READING, NOT_FOUND),
    "table": ("table", "heading", *_READING, NOT_FOUND),
    "notice": ("notice", "sign", "colour", *_READING, NOT_FOUND),
}
_PATIENCE = 100  # drawings for each question that is still missing


def kind_of(question: PageQuestion) -> str:
    return NOT_FOUND if question.answer == NOT_FOUND else question.kind


def _family(
    fonts: FontSet, family: str, count: int, least: int, held_out: bool
) -> Iterator[tuple[int, Document, list[PageQuestion]]]:
    """`count` drawings with all of their questions, then further ones with those of kinds that are still rare."""
    asked = Counter(dict.fromkeys(KINDS[family], 0))
    number = 0
    while number < count or min(asked.values()) < least:
        if number > count + _PATIENCE * least:
            raise RuntimeError(f"{number} drawings of the family {family!r} do not hold {least} of each kind: {asked}")
        document, questions = drawing(fonts, family, number, held_out)
        wanted = []
        for question in questions:
            if number < count or asked[kind_of(question)] < least:
                wanted.append(question)
                asked[kind_of(question)] += 1
        if wanted:
            yield number, document, wanted
        number += 1


class Paper:
    """A folder of pictures that grows with its `samples.jsonl`."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.counts = out, Counter[str]()
        self._file = (out / "samples.jsonl").open("w")

    def __enter__(self) -> "Paper":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, name: str, document: Document, asked: Iterable[tuple[str, PageQuestion]]) -> None:
        """A picture with its questions, each under the name of its kind."""
        Image.fromarray(document.image).save(self.out / name)
        self.add_rows(rows_of(name, document, asked))

    def add_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Questions about a picture that is in the folder already."""
        for row in rows:
            self.counts[row["kind"]] += 1
            self._file.write(json.dumps(row) + "\n")


def rows_of(name: str, document: Document, asked: Iterable[tuple[str, PageQuestion]]) -> Iterator[dict[str, Any]]:
    """The lines of `samples.jsonl` for a picture's questions, each under the name of its kind."""
    height, width = document.image.shape[:2]
    for kind, question in asked:
        row: dict[str, Any] = {"image": name, "question": question.text, "answer": question.answer, "kind": kind}
        row |= {"width": width, "height": height}
        if question.evidence:
            boxes = [document.lines[index].box for index in question.evidence]
            row["evidence"] = [[[round(float(side), 1) for side in box] for box in boxes]]
        yield row


def write(fonts: FontSet, out: Path, count: int, held_out: bool = False, least: int = 0) -> Counter[str]:
    """Write `count` drawings of every family, or more until each kind is asked `least` times; returns questions by kind."""
    with Paper(out) as paper:
        for family in FAMILIES:
            for number, document, questions in _family(fonts, family, count, least, held_out):
                asked = [(f"{family}: {kind_of(question)}", question) for question in questions]
                paper.add(f"{family}_{number:03d}.png", document, asked)
    return paper.counts


def write_scans(receipts: list[Receipt], out: Path, held_out: bool = False) -> Counter[str]:
    """Write the four questions about each of these receipts; returns questions by kind."""
    with Paper(out) as paper:
        for sheet in receipt_sheets(receipts, held_out):
            for number, (document, questions) in enumerate(zip(sheet.documents, sheet.questions, strict=True)):
                name = f"scan_{sheet.grid[0]}x{sheet.grid[1]}_{number:03d}.png"
                paper.add(name, document, [(question.kind, question) for question in questions])
    return paper.counts


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
        "--least", type=int, default=40, help="further drawings, until every kind is asked so often (40)"
    )
    parser.add_argument("--held-out", action="store_true", help="ask in phrasings that are not trained with")
    parser.add_argument("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    given = parser.parse_args()
    try:
        if given.receipts is not None:
            _, validation = split(read_receipts(given.receipts), given.validation)
            counts = write_scans(validation, given.out, given.held_out)
        else:
            counts = write(FontSet.from_folder(given.fonts), given.out, given.count, given.held_out, given.least)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    print(
        f"{counts.total()} questions of {len(counts)} kinds, at least {min(counts.values(), default=0)} of each, in {given.out}"
    )


if __name__ == "__main__":
    main()
