"""`arr-coc fit-embeddings`: a projection of an encoder's features to a few dimensions, fitted on a folder of pictures."""

from __future__ import annotations

import argparse
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from arr_coc.cli.console import check_file, check_folder, print_json, progress
from arr_coc.errors import ArrCocError

NAMED = 10  # unreadable files on stderr; the report has all

_EPILOG = """\
Pictures are read one by one, in any number: memory stays that of a few of them. One in ten (64 at most) is held out and judges
the fit. Where 16 dimensions miss a threshold, 32 are fitted, and the report says so; --exactly keeps what was asked for.
Files that cannot be read are named, the rest runs, and the exit code is 1.

examples:
  arr-coc fit-embeddings photos -o embeddings.safetensors
  arr-coc fit-embeddings photos scans -o embeddings.safetensors --encoder CLIP_FOLDER --workers 8 --questions asked.txt
  arr-coc fit-embeddings photos -o mine.safetensors --encoder mymodule:MyEncoder --dims 32 --sample 64

An interrupted run (ctrl-C) keeps what it has done beside the output; the same command goes on from there, --fresh starts anew.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "fit-embeddings",
        help="fit the compression of an encoder's features on a folder of pictures",
        description=(
            "Fit the projection that takes an image-text encoder's dense features to a few dimensions, so that questions rank "
            "the places of a picture as they would in full, and judge it on pictures and questions that had no say."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("images", nargs="+", metavar="IMAGES", help="folders of pictures, or pictures")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="where to write it (.safetensors)"
    )
    parser.add_argument(
        "--encoder", default="labels", metavar="NAME",
        help="labels (the default), the folder or hub id of a CLIP or SigLIP checkpoint, open_clip:FOLDER, vlm:NAME, module:Name",
    )  # fmt: skip
    parser.add_argument("--dims", type=int, default=16, metavar="K", help="dimensions (16)")
    parser.add_argument("--exactly", action="store_true", help="no step up to 32 dimensions")
    parser.add_argument("--sample", type=int, metavar="N", help="cells drawn from each picture (all)")
    parser.add_argument(
        "--mode", choices=("fast", "native"), default="fast", help="one pass, or overlapping windows (fast)"
    )
    parser.add_argument(
        "--questions", metavar="FILE", help="one a line, or a folder with samples.jsonl (everyday things)"
    )
    parser.add_argument(
        "--text-weight", type=float, metavar="W", help="how much the questions steer the fit, 0 to 1 (0)"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that encode (1)")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--seed", type=int, default=0, help="for --sample (0)")
    parser.add_argument("--report", type=Path, metavar="DIR", help="where the report goes (beside the output)")
    parser.add_argument("--fresh", action="store_true", help="do not go on from an interrupted run")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.embedding.compression import TEXT_WEIGHT
    from arr_coc.embedding.opening import open_named
    from arr_coc.training.projection import report as fit_report
    from arr_coc.training.projection.fit import enough, fit_images
    from arr_coc.training.projection.gather import Rules, find_images
    from arr_coc.training.projection.questions import read_questions

    output: Path = check_file(arguments.output, "embeddings.safetensors")
    for name, least in (("dims", 1), ("sample", 1), ("workers", 1), ("seed", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ArrCocError(f"expected --{name} of at least {least}, got {value}")
    weight = TEXT_WEIGHT if arguments.text_weight is None else arguments.text_weight
    if not 0 <= weight <= 1:
        raise ArrCocError(f"expected --text-weight from 0 to 1, got {weight:g}")
    check_device(arguments.device)
    folder: Path = arguments.report or output.with_name(f"{output.stem}_report")
    for place in (output.parent, folder):
        check_folder(place)
    questions = None if arguments.questions is None else read_questions(arguments.questions)
    images = find_images(arguments.images)
    enough(len(images), arguments.dims)
    keep_quiet()
    state = output.with_name(f"{output.name}.part")
    try:
        with warnings.catch_warnings(), progress() as bar:
            warnings.showwarning = lambda message, *_, **__: print(f"arr-coc: note: {message}", file=sys.stderr)
            task = bar.add_task("loading the encoder", total=None)

            def tick(done: int, total: int) -> None:
                if done < total:
                    bar.update(task, completed=done, total=total, description=f"{done} of {total} pictures")
                else:
                    bar.reset(task, total=None, description="judging the fit")

            fitted = fit_images(
                images, partial(open_named, arguments.encoder, arguments.device), dims=arguments.dims,
                rules=Rules(arguments.mode, arguments.sample, arguments.seed), questions=questions, text_weight=weight,
                step_up=not arguments.exactly, workers=arguments.workers, state=state, fresh=arguments.fresh, tick=tick,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = (
            f"what is done is kept in {str(state)!r}, and the same command goes on"
            if state.exists()
            else "nothing was kept"
        )
        print(f"arr-coc: interrupted: {kept}", file=sys.stderr)
        return 130
    fitted.projection.save(output)
    state.unlink(missing_ok=True)
    said = fit_report.write(fitted, folder)
    if fitted.resumed:
        print(f"arr-coc: went on from an interrupted run ({fitted.resumed} pictures were done)", file=sys.stderr)
    for note in (*fitted.notes, *said):
        print(f"arr-coc: note: {note}", file=sys.stderr)
    for _, why in fitted.unreadable[:NAMED]:
        print(f"arr-coc: left out: {why}", file=sys.stderr)
    if len(fitted.unreadable) > NAMED:
        print(
            f"arr-coc: left out: {len(fitted.unreadable) - NAMED} more files, all named in the report", file=sys.stderr
        )
    if arguments.json:
        print_json(fitted.to_dict() | {"output": str(output), "report": str(folder)})
    else:
        made = fitted.projection
        print(
            f"{made.encoder}: {made.width} dimensions to {made.dims}, {made.cells} cells of {made.pictures} pictures\n"
        )
        print(fit_report.table(fitted.tried))
        print(f"\nprojection written to {output}, report to {folder / fit_report.PAGE}")
    return 1 if fitted.unreadable else 0
