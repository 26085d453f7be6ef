"""`python -m recipes.reader.export_dataset`: the training documents as a folder, for example for `arr-coc train`.

Pictures and `samples.jsonl` with evidence boxes: scans with swapped words and fields, drawn receipts, forms, tables and
notices, in the phrasings of training. Scans that training keeps for validation are not included.
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
from recipes.reader.data import Library
from recipes.reader.export_exam import SamplesWriter, kind_of, sample_rows
from recipes.reader.model import CELL
from recipes.reader.receipts import Placement, read_receipts, scan, split
from recipes.reader.recipe import MEDIUM_GRIDS, PAGE_GRIDS, SMALL_GRIDS, Grid, pixels

JPEG_QUALITY = 90
READING_QUESTIONS = 2  # about places and prefixes, of each page
UNCHANGED_SHARE = 0.25  # of the scans: the whole scan without swapped words

_library: Library | None = None


def _open_library(fonts: Path, receipts: Path, validation: int) -> None:
    global _library
    _library = Library.from_receipts(FontSet.from_folder(fonts), split(read_receipts(receipts), validation)[0])


def _grid(rng: random.Random) -> Grid:
    if rng.random() < 0.75:
        return rng.choices(PAGE_GRIDS, (0.42, 0.26, 0.12, 0.07, 0.05, 0.04, 0.04))[0]
    return rng.choice((*MEDIUM_GRIDS, *SMALL_GRIDS))


def draw(out: Path, seed: int, number: int) -> list[dict[str, Any]]:
    """Draw one document, write its picture, and return its questions."""
    assert _library is not None
    rng = random.Random(f"workbook {seed}/{number}")
    grid = _grid(rng)
    if grid in PAGE_GRIDS[:3] and rng.random() < UNCHANGED_SHARE:
        width, height = pixels(grid)
        chosen = rng.choice(_library.receipts)
        document = scan(rng, chosen, width, height, Placement.whole(chosen, width, height))
    else:
        document = _library.document(rng, grid, 1.0, rng.random() < 0.2)
    starts = document.line_starts(CELL)
    asked = (*document.questions, *reading_questions(rng, document, starts, READING_QUESTIONS, False))
    name = f"page_{seed}_{number:06d}.jpg"
    Image.fromarray(document.image).save(out / name, quality=JPEG_QUALITY)
    return list(sample_rows(name, document, [(kind_of(question), question) for question in asked]))


def export(
    fonts: Path, receipts: Path, out: Path, count: int, seed: int = 0, workers: int = 1, validation: int = 10
) -> Counter[str]:
    """Write `count` documents; returns counts of questions by kind."""
    with SamplesWriter(out) as writer, progress() as bar:
        task = bar.add_task("drawing", total=count)
        with ProcessPoolExecutor(workers, get_context("spawn"), _open_library, (fonts, receipts, validation)) as pool:
            for rows in pool.map(partial(draw, out, seed), range(count), chunksize=8):
                writer.add_rows(rows)
                bar.advance(task)
    return writer.counts


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
        FontSet.from_folder(given.fonts), read_receipts(given.receipts)  # errors are raised here, not in a worker
        counts = export(
            given.fonts, given.receipts, given.out, given.count, given.seed, given.workers, given.validation
        )
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    print(f"{counts.total()} questions of {len(counts)} kinds about {given.count} documents, in {given.out}")


if __name__ == "__main__":
    main()
