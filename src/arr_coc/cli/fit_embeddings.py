"""`arr-coc fit-embeddings`: fit a projection of an encoder's features to a few dimensions on a folder of pictures."""

from __future__ import annotations

import argparse
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from arr_coc.cli.console import check_file, check_folder, print_json, progress, ray_workers
from arr_coc.errors import ArrCocError

LISTED = 10  # unreadable files on stderr; the report has all

_EPILOG = """\
Pictures are read one by one, so memory does not grow with their number. One in ten (at most 64) is held out and validates the
fit. If 16 dimensions miss a threshold, 32 are fitted, and the report says so; --exactly keeps the number that you asked for.
Files that cannot be read are named and skipped, and the exit code is 1.

examples:
  arr-coc fit-embeddings photos -o embeddings.safetensors
  arr-coc fit-embeddings photos scans -o embeddings.safetensors --encoder CLIP_FOLDER --workers 8 --questions asked.txt
  arr-coc fit-embeddings photos -o mine.safetensors --encoder mymodule:MyEncoder --dims 32 --sample 64

An interrupted run (ctrl-C) keeps what it has done next to the output. The same command resumes it; --fresh starts over.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "fit-embeddings",
        help="fit the compression of an encoder's features on a folder of pictures",
        description=(
            "Fit the projection of an image-text encoder's dense features to a few dimensions, so that questions rank the "
            "cells of a picture as they would in full, and validate it on pictures and questions that were held out."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGES", help="folders of pictures, or pictures")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="where to write it (.safetensors)")
    encoders = "a CLIP or SigLIP checkpoint's folder or hub id, open_clip:FOLDER, vlm:NAME, module:Name"
    add("--encoder", default="labels", metavar="NAME", help=f"labels (default), {encoders}")
    add("--dims", type=int, default=16, metavar="K", help="dimensions (16)")
    add("--exactly", action="store_true", help="no step up to 32 dimensions")
    add("--sample", type=int, metavar="N", help="cells drawn from each picture (all)")
    add("--mode", choices=("fast", "native"), default="fast", help="one pass, or overlapping windows (fast)")
    add("--questions", metavar="FILE", help="one per line, or a folder with samples.jsonl (everyday objects)")
    add("--text-weight", type=float, default=0.0, metavar="W", help="how much the questions steer the fit, 0 to 1 (0)")
    add("--workers", type=int, default=1, metavar="N", help="processes that encode (1)")
    add("--ray", type=int, metavar="N", help="encode in N worker processes of Ray, in place of --workers")
    add("--device", default="cpu", help="cpu (default) or cuda")
    add("--seed", type=int, default=0, help="for --sample (0)")
    add("--report", type=Path, metavar="DIR", help="where to write the report (next to the output)")
    add("--fresh", action="store_true", help="do not resume an interrupted run")
    add("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.embedding.encoder import open_encoder
    from arr_coc.training.projection import fit, report
    from arr_coc.training.projection.gather import CellSampling, find_images

    output: Path = check_file(arguments.output, "embeddings.safetensors")
    for name, least in (("dims", 1), ("sample", 1), ("workers", 1), ("seed", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ArrCocError(f"expected --{name} of at least {least}, got {value}")
    if not 0 <= arguments.text_weight <= 1:
        raise ArrCocError(f"expected --text-weight from 0 to 1, got {arguments.text_weight:g}")
    check_device(arguments.device)
    folder: Path = arguments.report or output.with_name(f"{output.stem}_report")
    for place in (output.parent, folder):
        check_folder(place)
    spread = ray_workers(arguments)
    questions = None if arguments.questions is None else fit.read_questions(arguments.questions)
    images = find_images(arguments.images)
    encoder = Path(arguments.encoder.rpartition(":")[2])
    weights = encoder.rglob("*") if encoder.is_dir() else ()
    check_file(output, inputs=[*images, *weights, *([] if arguments.questions is None else [arguments.questions])])
    keep_quiet()
    state = output.with_name(f"{output.name}.part")
    try:
        with warnings.catch_warnings(), progress() as bar:
            warnings.showwarning = lambda message, *_, **__: print(f"arr-coc: note: {message}", file=sys.stderr)
            task = bar.add_task("loading the encoder", total=None)

            def show(done: int, total: int) -> None:
                if done < total:
                    bar.update(task, completed=done, total=total, description=f"{done} of {total} pictures")
                else:
                    bar.reset(task, total=None, description="validating the fit")

            result = fit.fit_images(
                images,
                partial(open_encoder, arguments.encoder, arguments.device),
                dims=arguments.dims,
                sampling=CellSampling(arguments.mode, arguments.sample, arguments.seed),
                questions=questions,
                text_weight=arguments.text_weight,
                step_up=not arguments.exactly,
                workers=arguments.workers if spread is None else spread,
                state=state,
                fresh=arguments.fresh,
                progress=show,
            )
    except KeyboardInterrupt:
        kept = f"what is done is kept in {str(state)!r}, the same command resumes"
        print(f"arr-coc: interrupted: {kept if state.exists() else 'nothing was kept'}", file=sys.stderr)
        return 130
    result.projection.save(output)
    state.unlink(missing_ok=True)
    lines = [f"note: {note}" for note in (*result.notes, *report.write_report(result, folder))]
    if result.resumed:
        lines.insert(0, f"resumed an interrupted run ({result.resumed} pictures were done)")
    lines += [f"left out: {why}" for _, why in result.unreadable[:LISTED]]
    if len(result.unreadable) > LISTED:
        lines.append(f"left out: {len(result.unreadable) - LISTED} more files, all named in the report")
    for line in lines:
        print(f"arr-coc: {line}", file=sys.stderr)
    if arguments.json:
        print_json(result.to_dict() | {"output": str(output), "report": str(folder)})
    else:
        made = result.projection
        source = f"{made.cells} cells of {made.pictures} pictures"
        print(f"{made.encoder}: {made.width} dimensions to {made.dims}, {source}\n")
        print(report.quality_table(result.tried))
        print(f"\nprojection written to {output}, report to {folder / report.PAGE}")
    return 1 if result.unreadable else 0
