"""`arr-coc demo`: the web page that looks into the system."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from arr_coc.demo.limits import Limits
from arr_coc.errors import ArrCocError

MOST_LINES = 20  # of the data that are complained about one by one

_EPILOG = """\
The page listens on this machine alone unless --host says otherwise. It fetches nothing from elsewhere and reports to nobody; only
--share opens a tunnel through a server of gradio's makers. What visitors send is kept in memory and in one temporary folder, which
goes with the page.

examples:
  arr-coc demo                                 answers, channels and relevance of any picture, in a browser
  arr-coc demo --data receipts                 with the annotated pictures of a folder with samples.jsonl
  arr-coc demo --model reader MODEL_FOLDER     several models to choose from
  arr-coc demo --files runs                    reports and layers below another folder than this one
"""
_SAID = {
    "megabytes": "of an uploaded file", "megapixels": "of an uploaded picture", "letters": "of a question",
    "tokens": "of an answer", "queue": "requests that wait", "visitors": "whose pictures are kept at once",
    "minutes": "for which they are kept", "kept_megapixels": "of all visitors' pictures",
}  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a web page that looks into the system",
        description=(
            "A web page for looking into the system: ask, compare selectors, see the channels, the ways of knowing and the "
            "reports of arr-coc eval. Ctrl-C ends it."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, help="where to listen (the first free one from 7860 on)")
    parser.add_argument("--share", action="store_true", help="also through a public tunnel (off)")
    parser.add_argument(
        "--model", nargs="+", default=["reader"], metavar="FOLDER", help="models to choose from (reader)"
    )
    parser.add_argument(
        "--embeddings", metavar="NAME", help="an image-text encoder for selectors that ask one (labels)"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="annotated pictures, as arr-coc eval takes them")
    parser.add_argument(
        "--files",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="reports and layers are opened below it (this folder)",
    )
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    for one in fields(Limits):
        kind = int if one.type == "int" else float
        option = f"--{one.name.replace('_', '-')}"
        parser.add_argument(
            option, type=kind, default=one.default, metavar="N", help=f"{_SAID[one.name]}, at most ({one.default:g})"
        )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.demo.examples import of_folder
    from arr_coc.demo.memory import few_pools
    from arr_coc.demo.serving import Place, free_port, gradio_module, house_of, served
    from arr_coc.devices import check_device

    limits = Limits(**{one.name: getattr(arguments, one.name) for one in fields(Limits)})
    if not arguments.files.is_dir():
        raise ArrCocError(f"expected a folder for --files, and there is no folder {str(arguments.files)!r}")
    check_device(arguments.device)
    place = Place(arguments.host, free_port(arguments.host, arguments.port), arguments.share)
    more, said = ({}, []) if arguments.data is None else of_folder(arguments.data)
    for line in said[:MOST_LINES]:
        print(f"arr-coc: {line}", file=sys.stderr)
    if len(said) > MOST_LINES:
        print(f"arr-coc: {len(said) - MOST_LINES} more like these", file=sys.stderr)
    few_pools()
    gradio_module()
    keep_quiet()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="arr-coc: %(message)s")
    house = house_of(arguments.model, limits, arguments.files, more, arguments.device, arguments.embeddings)
    with served(house, place) as address:
        print(f"The page is at {address} (Ctrl-C ends it).", flush=True)
        if arguments.host not in ("127.0.0.1", "localhost", "::1"):
            print(f"arr-coc: everybody who reaches {arguments.host} can use it", file=sys.stderr)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("arr-coc: the page is closed", file=sys.stderr)
    return 0
