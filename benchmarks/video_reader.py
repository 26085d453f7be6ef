"""Does the reader answer the same from a pan over a receipt as from a scan of it?

    PYTHONPATH=. python benchmarks/video_reader.py --cases 30 -o video_reader.jsonl
    PYTHONPATH=. python benchmarks/video_reader.py --first 1000           # other drawings

Receipts are drawn as for the reader's validation, one question about each (total, date or company in turn), until there are
so many whose still is answered correctly: unreadable ones would be answered by chance. The still is the whole page. The clip
pans down and shows two fifths of the height at a time; as many tokens are kept of it as of the still. The selector `evs` gets
the same frames. FONTS is a folder of .ttf files; without it, those that matplotlib brings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arr_coc
import synthetic_clips
from arr_coc.adapters.loading import keep_quiet
from arr_coc.bench.timing import machine
from arr_coc.training.documents.page import FontSet
from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.validation import draw_page

KINDS = ("total", "date", "company")
SHOWN = 0.4  # of the page's height in one frame
STEPS = 7  # frames from top to foot
FPS = 2.0
BUDGET = "25%"


def pan(page: np.ndarray) -> list[np.ndarray]:
    """Frames of a camera that goes down a page, all of its width in view."""
    height, width = page.shape[:2]
    size = (round(SHOWN * height), width)
    still = synthetic_clips.Still(page, "", (0, 0, 0, 0))
    places = np.linspace((size[0] - 1) / 2, height - 1 - (size[0] - 1) / 2, STEPS)
    views = [synthetic_clips.Camera((width - 1) / 2, float(y)) for y in places]
    return synthetic_clips.film_still("", still, views, size).frames


def cases(fonts: FontSet, first: int = 0) -> Iterator[tuple[np.ndarray, str, str, str]]:
    """Pages in colour, each with the kind of its question, the question and its answer."""
    found = 0
    for number in count(first):
        document, _ = draw_page(fonts, "receipt", number)
        wanted = KINDS[found % len(KINDS)]
        for question in document.questions:
            if question.kind == wanted and question.answer not in (NOT_FOUND, ""):
                page = np.repeat(document.image[..., None], 3, 2) if document.image.ndim == 2 else document.image
                found += 1
                yield np.ascontiguousarray(page), wanted, question.text, question.answer
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the drawings (0)")
    parser.add_argument("--fonts", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_quiet()
    print(machine())
    vlm = arr_coc.load("reader")
    same: dict[str, int] = {"video": 0, "evs": 0}
    read = drawn = 0
    for page, kind, question, answer in cases(fonts_of(arguments.fonts), arguments.first):
        if read == arguments.cases:
            break
        drawn += 1
        still = vlm.ask(page, question, budget=BUDGET, glance="all")
        if still.text != answer:
            continue
        read += 1
        look = vlm.look(video=pan(page), fps=FPS)
        said: dict[str, Any] = {"still": still}
        for name, selector in (("video", "arr-coc"), ("evs", "evs")):
            said[name] = vlm.ask(look, question, budget=still.tokens["kept"], selector=selector)
            same[name] += said[name].text == still.text
        record = {"first": arguments.first, "drawing": drawn, "kind": kind, "question": question, "answer": answer} | {
            name: {"text": one.text, "tokens": one.tokens} for name, one in said.items()
        }
        print(json.dumps(record), flush=True)
        if arguments.output is not None:
            with arguments.output.open("a") as file:
                file.write(json.dumps(record) + "\n")
    print(
        f"{read} of {drawn} drawings are read from the still; "
        + ", ".join(f"{n} says the same in {k}" for n, k in same.items())
    )


def fonts_of(folder: Path | None) -> FontSet:
    if folder is not None:
        return FontSet.from_folder(folder)
    import matplotlib

    paths = sorted(map(str, Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf")))
    return FontSet.from_paths(paths)


if __name__ == "__main__":
    main()
