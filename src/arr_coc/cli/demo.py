"""`arr-coc demo`: the web page."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from arr_coc.cli.console import print_problems
from arr_coc.demo.limits import Limits
from arr_coc.errors import ArrCocError

_EPILOG = """\
The page listens on this machine only, unless --host names another address. It loads nothing from other servers and sends
no statistics. --share opens a public tunnel through gradio's servers. Uploaded images are kept in memory and in one
temporary folder, which is deleted when the server ends.

examples:
  arr-coc demo                                 ask about any image, in a browser
  arr-coc demo --data receipts                 with the annotated images of a folder with samples.jsonl
  arr-coc demo --model reader MODEL_FOLDER     with several models
  arr-coc demo --find photos                   find images of an indexed folder
  arr-coc demo --files runs                    open reports and layers below the folder runs
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a web page to try everything",
        description=(
            "Serve a web page: ask questions, compare selectors, see the channels, the scores behind a selection and the "
            "reports of arr-coc eval. Ctrl-C ends it."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", nargs="+", default=["reader"], metavar="FOLDER", help="one or more models (the bundled reader)")
    add("--data", type=Path, metavar="FOLDER", help="annotated images, in the layout of arr-coc eval")
    add("--files", type=Path, default=Path(), metavar="FOLDER", help="folder of reports and layers (the current one)")
    add("--find", type=Path, metavar="FOLDER", help="a folder that arr-coc index was run on: adds the tab Find")
    add("--port", type=int, help="port (the first free one from 7860 on)")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    add("--share", action="store_true", help="also open a public tunnel")
    add("--embeddings", metavar="NAME", help="image-text encoder for selectors that need one (none)")
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    limits = parser.add_argument_group("limits")
    for one in fields(Limits):
        option, kind = f"--{one.name.replace('_', '-')}", int if one.type == "int" else float
        limits.add_argument(option, type=kind, default=one.default, metavar="N", help=one.metadata["help"])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.demo.app import load_app
    from arr_coc.demo.inputs import read_examples
    from arr_coc.demo.server import Address, find_port, import_gradio, serve
    from arr_coc.devices import check_device
    from arr_coc.hosting import limit_malloc_arenas

    limits = Limits(**{one.name: getattr(arguments, one.name) for one in fields(Limits)})
    if not arguments.files.is_dir():
        raise ArrCocError(f"expected a folder for --files, and there is no folder {str(arguments.files)!r}")
    check_device(arguments.device)
    index = None
    if arguments.find is not None:
        from arr_coc.find.index import Index

        index = Index(arguments.find)
        if not len(index):
            raise ArrCocError(f"expected an indexed folder for --find: run `arr-coc index {arguments.find}` first")
    address = Address(arguments.host, find_port(arguments.host, arguments.port), arguments.share)
    examples, problems = ({}, []) if arguments.data is None else read_examples(arguments.data)
    print_problems(problems)
    limit_malloc_arenas()
    import_gradio()
    keep_quiet()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="arr-coc: %(message)s")
    app = load_app(arguments.model, limits, arguments.files, examples, arguments.device, arguments.embeddings, index)
    with serve(app, address) as url:
        print(f"The page is at {url} (Ctrl-C ends it).", flush=True)
        if arguments.host not in ("127.0.0.1", "localhost", "::1"):
            print(f"arr-coc: everyone who can reach {arguments.host} can use it", file=sys.stderr)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("arr-coc: the page is closed", file=sys.stderr)
    return 0
