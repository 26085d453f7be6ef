"""`python -m recipes.texture_vlm`: how well a reader reads from 16, 32 or 64 dimensions of its own tokens.

The principal components of its encoder's tokens are fitted on training pictures. Two stages follow: the first trains only the
lift from these dimensions back to the language model, the second also the language model. Accuracy on validation receipts and
new drawings is measured before, between and after the stages, and for the reader as it is.
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
from recipes.reader.data import Library
from recipes.reader.receipts import read_receipts, split
from recipes.reader.recipe import Settings
from recipes.reader.validation import receipt_sheets, rendered_sheets
from recipes.texture_vlm.branch import TextureSettings
from recipes.texture_vlm.experiment import Experiment, load_reader

_EPILOG = """\
One call writes the whole table, OUT/table.md and OUT/table.json, and updates it while it runs:

  python -m recipes.texture_vlm --fonts FONTS --receipts RECEIPTS --out RUN

It stops training early enough to measure within --seconds. SIGTERM or ctrl-C ends it before. The same command then resumes from
OUT/checkpoint.pt, with as many seconds again. TextureEmbeddingVLM.from_pretrained reads OUT/texture16 and so on.
"""


def _parser() -> argparse.ArgumentParser:
    default = TextureSettings()
    common = default.common
    parser = argparse.ArgumentParser(
        prog="python -m recipes.texture_vlm",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--fonts", type=Path, required=True, help="folder of .ttf fonts")
    add("--receipts", type=Path, required=True, help="folder of scanned receipts with recs.json")
    add("--reader", type=Path, default=reader.WEIGHTS, help="a reader's model folder (the shipped one)")
    add("--out", type=Path, required=True, help="where the table, the folders, the checkpoint and the log go")
    add("--dims", type=int, nargs="+", default=list(default.dims), metavar="K", help="numbers of dimensions (16 32 64)")
    add("--seconds", type=float, default=common.seconds, metavar="S", help="time limit, without imports (420)")
    add("--first-share", type=float, default=default.first_share, help="share of the training time of stage one (0.4)")
    add("--lr", type=float, default=default.lift_lr, help=f"learning rate of stage one ({default.lift_lr})")
    add("--language-lr", type=float, default=default.language_lr, help=f"and of stage two ({default.language_lr})")
    hidden = f"hidden units of the lift, 0 for a linear one ({default.hidden})"
    add("--hidden", type=int, default=default.hidden, help=hidden)
    add("--layers", type=int, metavar="N", help="train only the last N layers of the language model (all)")
    restoring = "weight of the reconstruction loss, in stage one (1)"
    add("--restoring", type=float, default=default.restoring, help=restoring)
    add("--pictures", type=int, default=default.pictures, help=f"to fit the components on ({default.pictures})")
    add("--drawings", type=int, default=24, help="of each family, to measure on (24)")
    add("--validation", type=int, default=10, help="one receipt in so many is for validation (10)")
    add("--workers", type=int, default=common.workers, metavar="N", help=f"rendering processes ({common.workers})")
    add("--uses", type=int, default=common.uses, help=f"how often a batch may be used ({common.uses})")
    add("--document-seed", type=int, default=0, help="seed of the documents (0)")
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
    names = ("first_share", "language_lr", "hidden", "layers", "restoring", "pictures")
    same = {name: getattr(given, name) for name in names}
    return TextureSettings(common=common, dims=tuple(given.dims), lift_lr=given.lr, **same)


def _run(given: argparse.Namespace, settings: TextureSettings, started: float) -> None:
    fonts, receipts = FontSet.from_folder(given.fonts), read_receipts(given.receipts)
    training, validation = split(receipts, given.validation)
    library = Library.from_receipts(fonts, training)
    sheets = receipt_sheets(validation) + rendered_sheets(library, given.drawings)
    model = load_reader(given.reader, given.device)
    with progress() as bar:
        task = bar.add_task("starting", total=None)
        journal = Journal(
            given.out,
            lines=bar.disable or not sys.stdout.isatty(),  # the bar replaces them, but not in a file
            tick=lambda share, what: bar.update(task, completed=share, total=1.0, description=what),
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
