"""`arr-coc index` and `arr-coc find`: which images of a folder show something, and where in them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from arr_coc.cli import console
from arr_coc.errors import ImageError

SHEET = 12  # images on a sheet

_INDEX_EPILOG = """\
Images are encoded once; the same command later encodes what is new or has changed, and forgets what is gone. What is done is
kept every ten seconds: an interrupted or killed run is continued by the same command. Files that cannot be read are named and
skipped, and the exit code is 1.

examples:
  arr-coc index photos
  arr-coc index photos --encoder CLIP_FOLDER --device cuda
  arr-coc index photos --ray 4                       in four worker processes of Ray
"""
_FIND_EPILOG = """\
The nearest images are printed, also where none shows what was asked for: compare the scores.

examples:
  arr-coc find photos "a dog on a sofa"
  arr-coc find photos "a receipt from a bakery" -n 12 -o found.png --why
"""


def add_parser(commands: Any) -> None:
    index = commands.add_parser(
        "index",
        help="encode the images of a folder once, so that they can be found",
        description="Encode the images of a folder into a vector per cell, and keep them for arr-coc find.",
        epilog=_INDEX_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = index.add_argument
    _add_folder(index)
    encoders = "a CLIP or SigLIP checkpoint's folder or hub id, open_clip:FOLDER, vlm:NAME, module:Name"
    add("--encoder", metavar="NAME", help=f"labels (default for a new index), {encoders}")
    add("--projection", metavar="FILE", help="from arr-coc fit-embeddings (the one that ships, or all dimensions)")
    add("--mode", choices=("fast", "native"), default="fast", help="one pass, or overlapping windows (fast)")
    add("--ray", type=int, metavar="N", help="encode in N worker processes of Ray")
    add("--device", default="cpu", help="cpu (default) or cuda")
    add("--fresh", action="store_true", help="discard the index that there is")
    add("--json", action="store_true", help="print what was done as JSON")
    index.set_defaults(run=run_index)

    find = commands.add_parser(
        "find",
        help="find images of a folder by what is in them, and where",
        description="Find images of an indexed folder by what is in them, and where in them.",
        epilog=_FIND_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = find.add_argument
    _add_folder(find)
    add("query", metavar="TEXT", help="what to find, in quotes")
    add("-n", "--count", type=int, default=10, metavar="N", help="how many images (10)")
    add("-o", "--output", type=Path, metavar="FILE", help=f"draw the first {SHEET} with their boxes")
    add("--why", action="store_true", help="with -o: also a heat map of every cell's score")
    add("--json", action="store_true", help="print images, scores and boxes as JSON")
    find.set_defaults(run=run_find)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder of images, searched recursively")
    parser.add_argument("--index", type=Path, metavar="DIR", help="where the index is kept (FOLDER/.arr-coc-index)")


def run_index(arguments: argparse.Namespace) -> int:
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.errors import ArrCocError
    from arr_coc.find.index import CellEncoder

    check_device(arguments.device)
    workers = console.ray_workers(arguments)
    named = arguments.encoder is not None
    if not named and (arguments.projection is not None or arguments.mode != "fast" or arguments.device != "cpu"):
        raise ArrCocError("expected --encoder with --projection, --mode or --device: name the encoder, too")
    encoder = CellEncoder(arguments.encoder, arguments.projection, arguments.mode, arguments.device) if named else None
    index = arr_coc.Index(arguments.folder, encoder=encoder, place=arguments.index)
    keep_quiet()
    try:
        with console.progress() as bar:
            task = bar.add_task("loading the encoder", total=None)

            def show(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total or None, description=f"{done} of {total} images")

            report = index.update(workers=workers, progress=show, fresh=arguments.fresh)
    except KeyboardInterrupt:
        print("arr-coc: interrupted: what is done is kept, the same command continues", file=sys.stderr)
        return 130
    console.print_problems([reason for _, reason in report.unreadable], "skipped")
    if arguments.json:
        console.print_json(report.to_dict() | {"index": str(index.place)})
    else:
        done = f"{report.added} added, {report.changed} changed, {report.removed} removed"
        print(f"{report.images} images in {index.place} ({done}, {len(report.unreadable)} unreadable)")
    return 1 if report.unreadable else 0


def run_find(arguments: argparse.Namespace) -> int:
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.errors import ArrCocError
    from arr_coc.find.sheet import contact_sheet
    from arr_coc.types.question import check_question

    check_question(arguments.query)
    if arguments.output is not None:
        console.check_image_file(arguments.output)
    elif arguments.why:
        raise ArrCocError("expected -o FILE with --why: it is drawn into that picture")
    keep_quiet()
    index = arr_coc.Index(arguments.folder, place=arguments.index)
    found = index.find(arguments.query, arguments.count)
    if arguments.json:
        console.print_json({"query": arguments.query, "found": [one.to_dict() for one in found]})
    else:
        for one in found:
            boxes = "  ".join(",".join(map(str, box)) for box in one.boxes)
            print(f"{one.score:.3f}  {one.path}  {boxes}")
        if not found:
            print("the index is empty")
    sys.stdout.flush()  # before the picture: a full disk loses no result
    if arguments.output is not None and found:
        drawn, problems = [], []
        for one in found[:SHEET]:
            console.check_file(arguments.output, inputs=[one.path])
            try:
                drawn.append((one, one.heat() if arguments.why else one.image()))
            except ImageError as error:
                problems.append(f"{error} (index the folder again)")
        console.print_problems(problems, "not drawn")
        console.save_image(contact_sheet(arguments.query, drawn), arguments.output)
        return 1 if problems else 0
    return 0
