"""`python -m recipes.reader`: train the reader from a folder of fonts and a folder of scanned receipts."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arr_coc.cli.console import progress
from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError
from arr_coc.training.distributed import World, init_world
from arr_coc.training.documents.page import FontSet
from arr_coc.training.journal import Journal, writer_class
from recipes.reader.data import Library
from recipes.reader.receipts import Receipt, read_receipts, split
from recipes.reader.recipe import STEP_KINDS, Settings, with_batches, without_dropped_cells
from recipes.reader.train import ReaderTrainer, train
from recipes.reader.validation import receipt_sheets, rendered_sheets

_EPILOG = """\
The three folders are enough: one call trains from scratch over the whole schedule, validates and writes the model folder
OUT/reader.

  python -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN

With limited machine time, split it into calls. Each resumes where the last one ended. --finish ends the schedule with the call.

  python -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN --seconds 600
  python -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN --seconds 600 --finish

On several GPUs, each step uses as many batches as there are GPUs:

  torchrun --nproc-per-node 8 -m recipes.reader --fonts FONTS --receipts RECEIPTS --out RUN

SIGTERM or ctrl-C ends a call early, after it has written its state.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.reader",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, default = parser.add_argument, Settings()
    add("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    add("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    add("--out", type=Path, required=True, help="where the model folder, the checkpoint and the log go")
    add("--seconds", type=float, metavar="S", help="time limit of this call, without imports (the whole schedule)")
    add(
        "--schedule-seconds",
        type=float,
        default=default.schedule_seconds,
        metavar="S",
        help=f"training time over all calls, without compiling and validation ({default.schedule_seconds:.0f})",
    )
    add("--finish", action="store_true", help="end the schedule within --seconds")
    add("--start-from", type=Path, help="model folder to start from instead of random weights")
    add("--mix-from", type=float, default=default.mix_from, help="where the mix of documents starts, 0 to 1 (0)")
    share = "share of the pictures in a batch (1); .1 suits a CPU"
    add("--batch-share", type=float, default=default.batch_share, metavar="X", help=share)
    add("--frozen-encoder", action="store_true", help="train the language model alone: needs --start-from")
    add(
        "--photos",
        type=Path,
        help="folder of photographs without documents: asked about one, the answer is that it is not there",
    )
    add("--drawings", type=int, default=24, metavar="N", help="drawings of each family in the validation (24)")
    add("--lr", type=float, default=default.lr, help=f"highest learning rate ({default.lr})")
    add(
        "--warmup-steps",
        type=int,
        default=default.warmup_steps,
        metavar="N",
        help=f"steps to the highest rate ({default.warmup_steps})",
    )
    decay = f"decay of the moving average of the weights ({default.average}); less for a short run"
    add("--average", type=float, default=default.average, metavar="X", help=decay)
    add("--document-seed", type=int, default=default.document_seed, help="seed of the documents (0)")
    workers = f"rendering processes, for each GPU ({default.workers})"
    add("--workers", type=int, default=default.workers, metavar="N", help=workers)
    add("--uses", type=int, default=default.uses, help=f"how often a batch may be used ({default.uses})")
    add("--measure-every", type=float, default=default.measure_every, help="seconds between validations (150)")
    add("--reserve", type=float, default=default.reserve, help="seconds kept for the last validation (25)")
    add("--all-cells", action="store_true", help="no steps with dropped cells, as a baseline")
    add("--tensorboard", action="store_true", help="also log for TensorBoard, to OUT/tensorboard")
    add("--device", default="cuda", help="cuda (the default) or cpu")
    add("--bfloat16", action="store_true", help="compute in bfloat16 on a CPU, too: faster where it has AVX-512 BF16")
    add("--eager", action="store_true", help="do not compile")
    add("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    return parser


def _settings(given: argparse.Namespace, device: str) -> Settings:
    names = [
        "seconds",
        "schedule_seconds",
        "finish",
        "lr",
        "mix_from",
        "batch_share",
        "warmup_steps",
        "average",
        "document_seed",
        "workers",
        "uses",
        "measure_every",
        "reserve",
    ]
    return Settings(
        **{name: getattr(given, name) for name in names},
        device=device,
        compiled=not given.eager,
        encoder=not given.frozen_encoder,
        bfloat16=given.bfloat16,
    )


def _run(given: argparse.Namespace, fonts: FontSet, receipts: list[Receipt], world: World) -> None:
    training, validation = split(receipts, given.validation)
    photos = sorted(given.photos.glob("*.jpg")) if given.photos else []
    library = Library.from_receipts(fonts, training, photos=photos)
    sheets = []
    if world.is_main:
        sheets = (
            receipt_sheets(validation)
            + receipt_sheets(validation, held_out=True)
            + rendered_sheets(library, given.drawings)
        )
    trainer = ReaderTrainer(_settings(given, world.device), weights=given.start_from, world=world)
    with progress(shown=world.is_main) as bar:
        task = bar.add_task("starting", total=None)
        journal = Journal(
            given.out,
            events=given.tensorboard and world.is_main,
            lines=bar.disable or not sys.stdout.isatty(),  # the bar replaces them, but not in a file
            tick=lambda share, what: bar.update(task, completed=share, total=1.0, description=what),
        )
        kinds = without_dropped_cells(STEP_KINDS) if given.all_cells else STEP_KINDS
        kinds = with_batches(kinds, given.batch_share)
        train(trainer, library, sheets, given.out, kinds, journal)


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    given = parser.parse_args(argv)
    if given.finish and given.seconds is None:
        parser.error("--finish brings the schedule to its end within --seconds: give both")
    if given.frozen_encoder and given.start_from is None:
        parser.error("--frozen-encoder trains the language model on the tokens of a trained encoder: give --start-from")
    if given.photos is not None and not any(given.photos.glob("*.jpg")):
        parser.error(f"expected a folder with .jpg photographs, found none in {given.photos}")
    try:
        if given.tensorboard:
            writer_class()
        check_device(given.device)
        fonts, receipts = FontSet.from_folder(given.fonts), read_receipts(given.receipts)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    try:
        with init_world(given.device) as world:
            _run(given, fonts, receipts, world)
    except ArrCocError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
