"""`python -m recipes.universal.draw`: draw training pages into shards, as many as wanted, while training already reads them."""

import argparse
import pickle
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from arr_coc.errors import ArrCocError
from arr_coc.files import replacing
from arr_coc.layer.universal import universal_config
from arr_coc.training.documents import draw_any, enrich, mix
from arr_coc.training.documents.drawing import Drawing, as_drawing
from arr_coc.training.documents.page import FontSet, machine_fonts
from arr_coc.training.documents.questions import reading_questions
from recipes.reader.data import Library
from recipes.reader.receipts import FIELDS, Placement, read_receipts, scan, split
from recipes.reader.recipe import FIRST_FAMILIES, MEDIUM_GRIDS, PAGE_GRIDS, pixels
from recipes.universal.pages import TrainingPage, make_page

SHARD = 64  # pages
SCANS, LIBRARY = 0.15, 0.40  # of the pages: whole scans as they are, and what the reader's recipe makes of scans
SCENES = 0.2  # of the other drawings


def draw_picture(rng: random.Random, library: Library) -> Drawing:
    """A scan as it is, a scan with changed words, a rerendered scan, or a drawing of any kind."""
    style = rng.random()
    if not library.receipts:
        style = SCANS + LIBRARY + style * (1 - SCANS - LIBRARY)  # drawings only
    if style < SCANS:
        chosen = rng.choice(library.receipts)
        ratio = chosen.image.width / chosen.image.height
        width, height = pixels(min(PAGE_GRIDS[:3], key=lambda one: abs(one[0] / one[1] - ratio)))
        document = scan(rng, chosen, width, height, Placement.whole(chosen, width, height))
    elif style < SCANS + LIBRARY:
        grids = PAGE_GRIDS if rng.random() < 0.75 else MEDIUM_GRIDS
        document = replace(library, mix=FIRST_FAMILIES).document(rng, rng.choice(grids), 0.7, rng.random() < 0.1)
    else:
        return draw_any(rng.getrandbits(48), mix(SCENES), fonts=library.fonts, invented=rng.random() < 0.3)
    reading = [one for one in reading_questions(rng, document, document.line_starts(28), 3) if one.kind == "after"]
    fields_only = all(one.kind in FIELDS for one in document.questions)
    document = enrich(rng, document, "receipt", rephrase=fields_only and rng.random() < 0.6)
    return as_drawing(replace(document, questions=(*document.questions, *reading)), "scan")


def draw_page(seed: int, number: int, library: Library) -> TrainingPage:
    """Page `number` of a seed; always the same."""
    rng = random.Random(f"universal {seed}/{number}")
    strength = rng.random() ** 1.5
    return make_page(rng, draw_picture(rng, library), universal_config(), strength)


def draw_shards(out: Path, library: Library, shards: int, seed: int = 0, size: int = SHARD) -> None:
    """Write the shards that are missing."""
    out.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        path = out / f"pages_{seed}_{shard:04d}.pickle"
        if path.exists():
            continue
        start = time.monotonic()
        pages = [draw_page(seed, shard * size + one, library) for one in range(size)]
        with replacing(path) as temporary:
            temporary.write_bytes(pickle.dumps(pages))
        print(f"{path.name}: {(time.monotonic() - start) / size * 1e3:.0f} ms a page", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.universal.draw", description=__doc__)
    parser.add_argument("--fonts", type=Path, help="folder of .ttf fonts to draw with (bundled and this machine's)")
    parser.add_argument("--receipts", type=Path, help="folder of scanned receipts with recs.json (none: drawings only)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--shards", type=int, default=200, help=f"of {SHARD} pages (200)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        fonts = machine_fonts() if given.fonts is None else FontSet.from_folder(given.fonts)
        receipts = [] if given.receipts is None else split(read_receipts(given.receipts))[0]
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    draw_shards(given.out, Library.from_receipts(fonts, receipts), given.shards, given.seed)


if __name__ == "__main__":
    main()
