"""`python -m arr_coc.training.papers`: fresh drawings as exam papers, a folder of pictures with `samples.jsonl` for the exam.

Their seeds are far from those of training. `--held-out` asks in phrasings that training never uses.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from arr_coc.training.documents.fonts import FontShelf
from arr_coc.training.documents.page import Document, Question
from arr_coc.training.documents.questions import NOT_FOUND
from arr_coc.training.validation import FAMILIES, drawing

_READING = ("place", "after")
# What is asked about each family. Only a notice with a single text allows `sign`, which is one in five.
KINDS: dict[str, tuple[str, ...]] = {
    "receipt": ("total", "date", "company", "address", "price", *_READING, NOT_FOUND),
    "form": ("field", "heading", *_READING, NOT_FOUND),
    "table": ("table", "heading", *_READING, NOT_FOUND),
    "notice": ("notice", "sign", "colour", *_READING, NOT_FOUND),
}
_PATIENCE = 100  # drawings for each question that is still missing


def kind_of(question: Question) -> str:
    return NOT_FOUND if question.answer == NOT_FOUND else question.kind


def _family(
    fonts: FontShelf, family: str, count: int, least: int, held_out: bool
) -> Iterator[tuple[int, Document, list[Question]]]:
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


def write(fonts: FontShelf, out: Path, count: int, held_out: bool = False, least: int = 0) -> Counter[str]:
    """Write `count` drawings of every family, or more until each kind is asked `least` times; returns questions by kind."""
    out.mkdir(parents=True, exist_ok=True)
    samples: list[str] = []
    counts: Counter[str] = Counter()
    for family in FAMILIES:
        for number, document, questions in _family(fonts, family, count, least, held_out):
            name = f"{family}_{number:03d}.png"
            Image.fromarray(document.image).save(out / name)
            for question in questions:
                kind = f"{family}: {kind_of(question)}"
                counts[kind] += 1
                row = {"image": name, "question": question.text, "answer": question.answer, "kind": kind}
                samples.append(json.dumps(row) + "\n")
    (out / "samples.jsonl").write_text("".join(samples))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m arr_coc.training.papers", description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    parser.add_argument("--out", type=Path, required=True, help="where the pictures and samples.jsonl go")
    parser.add_argument(
        "--count", type=int, default=40, help="drawings of every family with all of their questions (40)"
    )
    parser.add_argument(
        "--least", type=int, default=40, help="further drawings, until every kind is asked so often (40)"
    )
    parser.add_argument("--held-out", action="store_true", help="ask in phrasings that are not trained with")
    given = parser.parse_args()
    try:
        fonts = FontShelf.open(given.fonts)
    except OSError as error:
        parser.error(str(error))
    counts = write(fonts, given.out, given.count, given.held_out, given.least)
    print(
        f"{counts.total()} questions of {len(counts)} kinds, at least {min(counts.values(), default=0)} of each, in {given.out}"
    )


if __name__ == "__main__":
    main()
