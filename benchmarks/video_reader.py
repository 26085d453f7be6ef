"""Does a camera that pans over a receipt tell the reader the same as a scan of it?

    python benchmarks/video_reader.py --cases 30 -o video_reader.jsonl

Receipts are drawn as for the reader's validation, one question about each (total, date or company in turn). The still is the
whole page; the clip shows two fifths of its height at a time, panning down, and goes in as `video=` at the same share of
tokens. The peer `evs` gets the same frames. FONTS is a folder of .ttf files; without it, those that matplotlib brings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.bench.timing import machine
from arr_coc.training.documents.fonts import FontShelf
from arr_coc.training.documents.questions import NOT_FOUND
from arr_coc.training.validation import drawing
from arr_coc.video import rendering

KINDS = ("total", "date", "company")
SHOWN = 0.4  # of the page's height in one frame
STEPS = 7  # frames from top to foot
FPS = 2.0
BUDGET = "25%"


def pan(page: np.ndarray) -> list[np.ndarray]:
    """Frames of a camera that goes down a page, all of its width in view."""
    height, width = page.shape[:2]
    size = (round(SHOWN * height), width)
    still = rendering.Still(page, "", (0, 0, 0, 0))
    places = np.linspace((size[0] - 1) / 2, height - 1 - (size[0] - 1) / 2, STEPS)
    views = [rendering.View((width - 1) / 2, float(y)) for y in places]
    return rendering.filmed("", still, views, size).frames


def cases(fonts: FontShelf, count: int) -> list[tuple[np.ndarray, str, str, str]]:
    """Pages in colour, each with the kind of its question, the question and its answer."""
    made: list[tuple[np.ndarray, str, str, str]] = []
    number = 0
    while len(made) < count:
        document, _ = drawing(fonts, "receipt", number)
        number += 1
        wanted = KINDS[len(made) % len(KINDS)]
        for question in document.questions:
            if question.kind == wanted and question.answer not in (NOT_FOUND, ""):
                page = np.repeat(document.image[..., None], 3, 2) if document.image.ndim == 2 else document.image
                made.append((np.ascontiguousarray(page), wanted, question.text, question.answer))
                break
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--fonts", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_quiet()
    print(machine())
    vlm = arr_coc.load("reader")
    same: dict[str, list[bool]] = {}
    right: dict[str, list[bool]] = {}
    for number, (page, kind, question, answer) in enumerate(cases(fonts_of(arguments.fonts), arguments.cases)):
        look = vlm.look(video=pan(page), fps=FPS)
        said: dict[str, Any] = {"still": vlm.ask(page, question, budget=BUDGET)}
        for name, selector, budget in (
            ("video", "arr-coc", BUDGET),
            ("video, all", "arr-coc", "all"),
            ("evs", "evs", BUDGET),
        ):
            said[name] = vlm.ask(look, question, budget=budget, selector=selector)
        for name, one in said.items():
            same.setdefault(name, []).append(one.text == said["still"].text)
            right.setdefault(name, []).append(one.text == answer)
        record = {"case": number, "kind": kind, "question": question, "answer": answer} | {
            name: {"text": one.text, "tokens": one.tokens} for name, one in said.items()
        }
        print(json.dumps(record), flush=True)
        if arguments.output is not None:
            with arguments.output.open("a") as file:
                file.write(json.dumps(record) + "\n")
    for name in same:
        print(f"{name}: as from the still {sum(same[name])} of {len(same[name])}, right {sum(right[name])}")


def fonts_of(folder: Path | None) -> FontShelf:
    if folder is not None:
        return FontShelf.open(folder)
    import matplotlib

    paths = sorted(map(str, Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf")))
    return FontShelf.of(paths)


if __name__ == "__main__":
    main()
