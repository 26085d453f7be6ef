"""`python -m recipes.reader`: train the reader from a folder of fonts and a folder of scanned receipts."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arr_coc.cli.console import progress
from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError
from arr_coc.training.distributed import Team, joined
from arr_coc.training.documents.page import FontSet
from arr_coc.training.journal import Journal, writer_class
from recipes.reader.loop import train
from recipes.reader.receipts import Receipt, read_receipts, split
from recipes.reader.recipe import STEP_KINDS, without_missing
from recipes.reader.settings import Settings
from recipes.reader.source import Library
from recipes.reader.trainer import Trainer
from recipes.reader.validation import receipt_sheets, rendered_sheets

_EPILOG = """\
The three folders are enough: one call trains from scratch over the whole schedule, measures
and writes the model folder OUT/reader, and ends by itself.

  python -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN

On machines that are lent for a short time, split it into calls. Each goes on where the last one ended; a call that the schedule
would outlast can be made the last one with --finish.

  python -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN --seconds 600
  python -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN --seconds 600 --finish

On several GPUs, each step on as many batches as there are GPUs:

  torchrun --nproc-per-node 8 -m arr_coc.training --fonts FONTS --receipts RECEIPTS --out RUN

SIGTERM or ctrl-C ends a call early, after writing what was learned.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.reader",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    parser.add_argument("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    parser.add_argument("--out", type=Path, required=True, help="where the model folder, the checkpoint and the log go")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="time for this call, loading the libraries not counted (as long as the schedule takes)",
    )
    parser.add_argument(
        "--schedule-seconds",
        type=float,
        default=Settings.schedule_seconds,
        metavar="S",
        help=f"training time over all calls, compiling and measuring not counted ({Settings.schedule_seconds:.0f})",
    )
    parser.add_argument("--finish", action="store_true", help="bring the schedule to its end within --seconds")
    parser.add_argument("--start-from", type=Path, help="model folder to start from instead of from scratch")
    parser.add_argument(
        "--mix-from", type=float, default=Settings.mix_from, help="where the mix of documents starts, 0 to 1"
    )
    parser.add_argument("--lr", type=float, default=Settings.lr, help=f"highest learning rate ({Settings.lr})")
    parser.add_argument(
        "--document-seed", type=int, default=Settings.document_seed, help="another one draws other documents"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=Settings.workers,
        metavar="N",
        help=f"rendering processes, for each GPU ({Settings.workers})",
    )
    parser.add_argument("--uses", type=int, default=Settings.uses, help="how often a batch may be used")
    parser.add_argument(
        "--measure-every", type=float, default=Settings.measure_every, help="seconds between measurements"
    )
    parser.add_argument("--reserve", type=float, default=Settings.reserve, help="seconds kept for the last measurement")
    parser.add_argument("--all-cells", action="store_true", help="no steps with missing cells, to compare with them")
    parser.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, to OUT/tensorboard")
    parser.add_argument("--device", default="cuda", help="cuda (the default) or cpu")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--validation", type=int, default=10, help="one receipt in so many is for validation")
    return parser


def _settings(given: argparse.Namespace, device: str) -> Settings:
    return Settings(
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
        device=device,
        compiled=not given.eager,
    )


def _run(given: argparse.Namespace, fonts: FontSet, receipts: list[Receipt], team: Team) -> None:
    training, validation = split(receipts, given.validation)
    library = Library.of(fonts, training)
    sheets = []
    if team.leads:
        sheets = receipt_sheets(validation) + receipt_sheets(validation, held_out=True) + rendered_sheets(library, 24)
    trainer = Trainer(_settings(given, team.device), weights=given.start_from, team=team)
    with progress(shown=team.leads) as bar:
        task = bar.add_task("starting", total=None)
        journal = Journal(
            given.out,
            events=given.tensorboard and team.leads,
            lines=bar.disable or not sys.stdout.isatty(),  # the bar takes their place, but not in a file
            tick=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
        kinds = without_missing(STEP_KINDS) if given.all_cells else STEP_KINDS
        train(trainer, library, sheets, given.out, kinds, journal)


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    given = parser.parse_args(argv)
    if given.finish and given.seconds is None:
        parser.error("--finish brings the schedule to its end within --seconds: give both")
    try:
        if given.tensorboard:
            writer_class()
        check_device(given.device)
        fonts, receipts = FontSet.from_folder(given.fonts), read_receipts(given.receipts)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    try:
        with joined(given.device) as team:
            _run(given, fonts, receipts, team)
    except ArrCocError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
