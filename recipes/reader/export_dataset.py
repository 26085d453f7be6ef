"""`python -m recipes.reader.export_dataset`: a folder of documents as training draws them, for whatever else learns from them.

Pictures and `samples.jsonl` with evidence boxes, such as `arr-coc train` takes: scans with exchanged words, drawn receipts,
forms, tables and notices, in the phrasings of training. No scan that training keeps for validation is among them.
"""

import argparse
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.cli.console import progress
from arr_coc.errors import ArrCocError
from arr_coc.training.documents.page import FontSet
from arr_coc.training.documents.questions import reading_questions
from recipes.reader.export_exam import Paper, kind_of, rows_of
from recipes.reader.receipts import Placement, read_receipts, scan, split
from recipes.reader.recipe import MEDIUM_GRIDS, PAGE_GRIDS, SMALL_GRIDS, Grid, pixels
from recipes.reader.source import Library

QUALITY = 90
READINGS = 2  # questions about places and prefixes to a page
AS_IT_IS = 0.25  # of the scans: whole and with its own words

_library: Library | None = None


def _open(fonts: Path, receipts: Path, validation: int) -> None:
    global _library
    _library = Library.of(FontSet.from_folder(fonts), split(read_receipts(receipts), validation)[0])


def _grid(rng: random.Random) -> Grid:
    if rng.random() < 0.75:
        return rng.choices(PAGE_GRIDS, (0.42, 0.26, 0.12, 0.07, 0.05, 0.04, 0.04))[0]
    return rng.choice((*MEDIUM_GRIDS, *SMALL_GRIDS))


def draw(out: Path, seed: int, number: int) -> list[dict[str, Any]]:
    """Draw one document, write its picture, and return its questions."""
    assert _library is not None
    rng = random.Random(f"workbook {seed}/{number}")
    grid = _grid(rng)
    if grid in PAGE_GRIDS[:3] and rng.random() < AS_IT_IS:
        width, height = pixels(grid)
        chosen = rng.choice(_library.receipts)
        document = scan(rng, chosen, width, height, Placement.whole(chosen, width, height))
    else:
        document = _library.document(rng, grid, 1.0, rng.random() < 0.2)
    starts = [
        (int((line.box[1] + line.box[3]) / 2 / 28), int(line.middles[0] / 28)) if line.text else (-1, -1)
        for line in document.lines
    ]
    asked = (*document.questions, *reading_questions(rng, document, starts, READINGS, False))
    name = f"page_{seed}_{number:06d}.jpg"
    Image.fromarray(document.image).save(out / name, quality=QUALITY)
    return list(rows_of(name, document, [(kind_of(question), question) for question in asked]))


def write(
    fonts: Path, receipts: Path, out: Path, count: int, seed: int = 0, workers: int = 1, validation: int = 10
) -> Counter[str]:
    """Write `count` documents; returns questions by kind."""
    with Paper(out) as paper, progress() as bar:
        task = bar.add_task("drawing", total=count)
        with ProcessPoolExecutor(workers, get_context("spawn"), _open, (fonts, receipts, validation)) as pool:
            for rows in pool.map(partial(draw, out, seed), range(count), chunksize=8):
                paper.add_rows(rows)
                bar.advance(task)
    return paper.counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.reader.export_dataset", description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of .ttf fonts to draw with")
    parser.add_argument("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    parser.add_argument("--out", type=Path, required=True, help="where the pictures and samples.jsonl go")
    parser.add_argument("--count", type=int, default=4000, help="documents (4000)")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other documents (0)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that draw (1)")
    parser.add_argument("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    given = parser.parse_args()
    if given.count < 1 or given.workers < 1:
        parser.error(f"expected --count and --workers from 1 on, got {given.count} and {given.workers}")
    try:
        FontSet.from_folder(given.fonts), read_receipts(given.receipts)  # complains here, not in a worker
        counts = write(given.fonts, given.receipts, given.out, given.count, given.seed, given.workers, given.validation)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    print(f"{counts.total()} questions of {len(counts)} kinds about {given.count} documents, in {given.out}")


if __name__ == "__main__":
    main()
