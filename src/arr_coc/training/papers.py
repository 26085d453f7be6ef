"""`python -m arr_coc.training.papers`: fresh drawings as exam papers, a folder of pictures with `samples.jsonl` for the exam.

Their seeds are far from those of training. `--held-out` asks in phrasings that training never uses.
"""

import argparse
import json
from pathlib import Path

from PIL import Image

from arr_coc.training.documents.fonts import FontShelf
from arr_coc.training.documents.questions import NOT_FOUND
from arr_coc.training.source import Library
from arr_coc.training.validation import rendered_sheets


def write(fonts: FontShelf, out: Path, count: int, held_out: bool = False) -> int:
    """Write `count` drawings of every family and the questions about them; returns the number of questions."""
    out.mkdir(parents=True, exist_ok=True)
    samples = []
    for sheet in rendered_sheets(Library(fonts), count, held_out):
        family = sheet.name.split(",")[0].removeprefix("rendered ")
        for number, (document, questions) in enumerate(zip(sheet.documents, sheet.questions, strict=True)):
            name = f"{family}_{number:03d}.png"
            Image.fromarray(document.image).save(out / name)
            for question in questions:
                kind = "not found" if question.answer == NOT_FOUND else question.kind
                row = {"image": name, "question": question.text, "answer": question.answer, "kind": f"{family}: {kind}"}
                samples.append(json.dumps(row) + "\n")
    (out / "samples.jsonl").write_text("".join(samples))
    return len(samples)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m arr_coc.training.papers", description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    parser.add_argument("--out", type=Path, required=True, help="where the pictures and samples.jsonl go")
    parser.add_argument("--count", type=int, default=40, help="drawings of every family")
    parser.add_argument("--held-out", action="store_true", help="ask in phrasings that are not trained with")
    given = parser.parse_args()
    try:
        fonts = FontShelf.open(given.fonts)
    except OSError as error:
        parser.error(str(error))
    print(f"{write(fonts, given.out, given.count, given.held_out)} questions in {given.out}")


if __name__ == "__main__":
    main()
