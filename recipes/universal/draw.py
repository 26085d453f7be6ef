"""`python -m recipes.universal.draw`: draw training pages into shards, as many as wanted, while training already reads them."""

import argparse
import pickle
import random
import time
from pathlib import Path

import torch

from arr_coc.files import replacing
from arr_coc.layer.universal import universal_config
from arr_coc.training.documents.page import Document, FontSet
from arr_coc.training.documents.questions import reading_questions
from recipes.reader.data import Library
from recipes.reader.receipts import Placement, read_receipts, scan, split
from recipes.reader.recipe import MEDIUM_GRIDS, PAGE_GRIDS, SMALL_GRIDS, pixels
from recipes.universal.pages import TrainingPage, make_page

SHARD = 64  # pages
UNCHANGED_SCANS = 0.12  # of the pages: a whole scan as it is


def draw_document(rng: random.Random, library: Library) -> Document:
    """A scan, a rerendered scan, or a drawing of any kind."""
    if library.receipts and rng.random() < UNCHANGED_SCANS:
        chosen = rng.choice(library.receipts)
        width, height = pixels(min(PAGE_GRIDS[:3], key=lambda one: abs(one[0] / one[1] - chosen.image.width / chosen.image.height)))
        document = scan(rng, chosen, width, height, Placement.whole(chosen, width, height))
    else:
        grids = PAGE_GRIDS if rng.random() < 0.65 else MEDIUM_GRIDS if rng.random() < 0.7 else SMALL_GRIDS
        document = library.document(rng, rng.choice(grids), 0.7, rng.random() < 0.15)
    reading = [one for one in reading_questions(rng, document, document.line_starts(28), 3) if one.kind == "after"]
    return Document(document.image, document.lines, (*document.questions, *reading), document.capitals, document.caseless)


def draw_page(seed: int, number: int, library: Library) -> TrainingPage:
    """Page `number` of a seed; always the same."""
    rng = random.Random(f"universal {seed}/{number}")
    strength = rng.random() ** 1.5
    return make_page(rng, draw_document(rng, library), universal_config(), strength)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.universal.draw", description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of .ttf fonts to draw with")
    parser.add_argument("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--shards", type=int, default=200, help=f"of {SHARD} pages (200)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    library = Library.from_receipts(FontSet.from_folder(given.fonts), split(read_receipts(given.receipts))[0])
    for shard in range(given.shards):
        path = given.out / f"pages_{given.seed}_{shard:04d}.pickle"
        if path.exists():
            continue
        start = time.monotonic()
        pages = [draw_page(given.seed, shard * SHARD + one, library) for one in range(SHARD)]
        with replacing(path) as temporary:
            temporary.write_bytes(pickle.dumps(pages))
        print(f"{path.name}: {(time.monotonic() - start) / SHARD * 1e3:.0f} ms a page", flush=True)


if __name__ == "__main__":
    main()
