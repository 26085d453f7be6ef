"""`python -m recipes.texture_vlm`: how well a reader reads from 16, 32 or 64 dimensions of its own tokens.

The principal components of its encoder's tokens are fitted on training pictures. Then two stages: first only the lift from
these dimensions back to the language model learns, then the language model adapts, too. The reader's accuracy on validation
receipts and fresh drawings is measured before, between and after, beside that of the reader as it is.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arr_coc import reader
from arr_coc.adapters.loading import keep_quiet
from arr_coc.cli.console import progress
from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError
from arr_coc.training.documents.page import FontSet
from arr_coc.training.journal import Journal
from recipes.reader.receipts import read_receipts, split
from recipes.reader.settings import Settings
from recipes.reader.source import Library
from recipes.reader.validation import receipt_sheets, rendered_sheets
from recipes.texture_vlm.experiment import Experiment, load_reader
from recipes.texture_vlm.settings import TextureSettings

_EPILOG = """\
One call gives the whole table, OUT/table.md and OUT/table.json, which are also written while it runs:

  python -m recipes.texture_vlm --fonts FONTS --receipts RECEIPTS --out RUN

It stops training early enough to measure within --seconds. SIGTERM or ctrl-C ends it before; the same command then goes on from
OUT/checkpoint.pt, with as many seconds again. OUT/texture16 and so on are what TextureEmbeddingVLM.from_pretrained reads.
"""


def _parser() -> argparse.ArgumentParser:
    default = TextureSettings()
    parser = argparse.ArgumentParser(
        prog="python -m recipes.texture_vlm",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    add("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    add("--reader", type=Path, default=reader.WEIGHTS, help="a reader's model folder (the one that ships)")
    add("--out", type=Path, required=True, help="where the table, the folders, the checkpoint and the log go")
    add("--dims", type=int, nargs="+", default=list(default.dims), metavar="K", help="numbers of dimensions (16 32 64)")
    add(
        "--seconds",
        type=float,
        default=default.common.seconds,
        metavar="S",
        help="time for this call, loading the libraries not counted (420)",
    )
    add("--first-share", type=float, default=default.first_share, help="of the training time, for the lift alone (0.4)")
    add(
        "--lr",
        type=float,
        default=default.lift_lr,
        help=f"highest learning rate of the first stage ({default.lift_lr})",
    )
    add("--language-lr", type=float, default=default.language_lr, help=f"and of the second ({default.language_lr})")
    add(
        "--hidden",
        type=int,
        default=default.hidden,
        help=f"hidden units of the lift, 0 for a linear one ({default.hidden})",
    )
    add("--layers", type=int, metavar="N", help="only the last N layers of the language model adapt (all)")
    add(
        "--restoring",
        type=float,
        default=default.restoring,
        help="weight of restoring the tokens, in the first stage (1)",
    )
    add("--pictures", type=int, default=default.pictures, help=f"to fit the components on ({default.pictures})")
    add("--drawings", type=int, default=24, help="of each family, to measure on (24)")
    add("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    add(
        "--workers",
        type=int,
        default=default.common.workers,
        metavar="N",
        help=f"rendering processes ({default.common.workers})",
    )
    add("--uses", type=int, default=default.common.uses, help=f"how often a batch may be used ({default.common.uses})")
    add("--document-seed", type=int, default=0, help="another one draws other documents")
    add("--device", default="cuda", help="cuda (the default) or cpu")
    add("--eager", action="store_true", help="do not compile")
    return parser


def _settings(given: argparse.Namespace) -> TextureSettings:
    common = Settings(
        seconds=given.seconds,
        warmup_steps=TextureSettings().common.warmup_steps,
        workers=given.workers,
        uses=given.uses,
        document_seed=given.document_seed,
        device=given.device,
        compiled=not given.eager,
    )
    return TextureSettings(
        common=common,
        dims=tuple(given.dims),
        first_share=given.first_share,
        lift_lr=given.lr,
        language_lr=given.language_lr,
        hidden=given.hidden,
        layers=given.layers,
        restoring=given.restoring,
        pictures=given.pictures,
    )


def _run(given: argparse.Namespace, settings: TextureSettings, started: float) -> None:
    fonts, receipts = FontSet.from_folder(given.fonts), read_receipts(given.receipts)
    training, validation = split(receipts, given.validation)
    library = Library.of(fonts, training)
    sheets = receipt_sheets(validation) + rendered_sheets(library, given.drawings)
    model = load_reader(given.reader, given.device)
    with progress() as bar:
        task = bar.add_task("starting", total=None)
        journal = Journal(
            given.out,
            lines=bar.disable or not sys.stdout.isatty(),  # the bar takes their place, but not in a file
            tick=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
        Experiment(settings, model, library, sheets, given.out, journal, started=started).run()


def main(argv: Sequence[str] | None = None) -> None:
    started = time.monotonic()
    parser = _parser()
    given = parser.parse_args(argv)
    keep_quiet()
    try:
        settings = _settings(given)
        check_device(given.device)
        _run(given, settings, started)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
