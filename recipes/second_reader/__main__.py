"""`python -m recipes.second_reader`: fine-tune the second reader, a Qwen3-VL that starts from the first reader's weights."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import arr_coc.reader
from arr_coc.errors import ArrCocError
from arr_coc.training.documents.page import FontSet
from recipes.reader.data import Library
from recipes.reader.receipts import read_receipts, split
from recipes.second_reader.train import Settings, start, train


def main(argv: Sequence[str] | None = None) -> None:
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m recipes.second_reader", description=__doc__)
    add = parser.add_argument
    add("--fonts", type=Path, help="folder of .ttf fonts")
    add("--receipts", type=Path, help="folder of scanned receipts with recs.json")
    add("--out", type=Path, required=True, help="where the model folder, the checkpoint and the log go")
    add(
        "--seconds",
        type=float,
        default=default.seconds,
        help=f"of training over all calls; 0 writes the start ({default.seconds:.0f})",
    )
    add(
        "--start-from", type=Path, default=arr_coc.reader.WEIGHTS, help="the first reader's folder (the one that ships)"
    )
    add("--lr", type=float, default=default.lr, help=f"highest learning rate ({default.lr})")
    add("--seed", type=int, default=0, help="of the documents (0)")
    add("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    add("--scans", type=int, metavar="N", help="measure on the first N validation scans (all)")
    given = parser.parse_args(argv)
    settings = replace(default, seconds=given.seconds, lr=given.lr, seed=given.seed)
    if given.seconds > 0 and None in (given.fonts, given.receipts):
        parser.error("training needs --fonts and --receipts; --seconds 0 writes the start without them")
    try:
        if given.fonts is None or given.receipts is None:
            train(start(settings, source=given.start_from), Library(FontSet((), ())), [], given.out, settings)
            return
        fonts, receipts = FontSet.from_folder(given.fonts), read_receipts(given.receipts)
        training, validation = split(receipts, given.validation)
        run, library = start(settings, source=given.start_from), Library.from_receipts(fonts, training)
        train(run, library, validation[: given.scans], given.out, settings)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
