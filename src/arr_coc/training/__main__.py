"""`python -m arr_coc.training`: train the reader from a folder of fonts and a folder of scanned receipts."""

import argparse
from pathlib import Path

from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError
from arr_coc.training.documents.fonts import FontShelf
from arr_coc.training.loop import Settings, Trainer, train
from arr_coc.training.receipts import read_receipts, split
from arr_coc.training.recipe import STEP_KINDS, without_missing
from arr_coc.training.source import Library
from arr_coc.training.validation import receipt_sheets, rendered_sheets


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m arr_coc.training", description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    parser.add_argument("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    parser.add_argument("--out", type=Path, required=True, help="where the model folder, the checkpoint and the log go")
    parser.add_argument(
        "--seconds", type=float, default=1200, help="time for this call, loading the libraries not counted"
    )
    parser.add_argument("--schedule-seconds", type=float, default=1080, help="training time over all calls")
    parser.add_argument("--finish", action="store_true", help="end the schedule within this call")
    parser.add_argument("--start-from", type=Path, help="model folder to start from instead of from scratch")
    parser.add_argument(
        "--mix-from", type=float, default=Settings.mix_from, help="where the mix of documents starts, 0 to 1"
    )
    parser.add_argument("--lr", type=float, default=Settings.lr)
    parser.add_argument(
        "--document-seed", type=int, default=Settings.document_seed, help="another one draws other documents"
    )
    parser.add_argument("--workers", type=int, default=Settings.workers)
    parser.add_argument("--uses", type=int, default=Settings.uses, help="how often a batch may be used")
    parser.add_argument(
        "--measure-every", type=float, default=Settings.measure_every, help="seconds between measurements"
    )
    parser.add_argument("--reserve", type=float, default=Settings.reserve, help="seconds kept for the last measurement")
    parser.add_argument("--all-cells", action="store_true", help="no steps with missing cells, to compare with them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--validation", type=int, default=10, help="one receipt in so many is for validation")
    return parser


def main() -> None:
    parser = _parser()
    given = parser.parse_args()
    try:
        check_device(given.device)
        fonts, receipts = FontShelf.open(given.fonts), read_receipts(given.receipts)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    settings = Settings(
        seconds=given.seconds,
        schedule_seconds=given.schedule_seconds,
        finish=given.finish,
        lr=given.lr,
        mix_from=given.mix_from,
        document_seed=given.document_seed,
        workers=given.workers,
        uses=given.uses,
        measure_every=given.measure_every,
        reserve=given.reserve,
        device=given.device,
        compiled=not given.eager,
    )
    training, validation = split(receipts, given.validation)
    library = Library.of(fonts, training)
    sheets = receipt_sheets(validation) + receipt_sheets(validation, held_out=True) + rendered_sheets(library, 24)
    trainer = Trainer(settings, weights=given.start_from)
    train(trainer, library, sheets, given.out, without_missing(STEP_KINDS) if given.all_cells else STEP_KINDS)


if __name__ == "__main__":
    main()
