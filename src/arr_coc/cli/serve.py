"""`arr-coc serve`: an OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from arr_coc.cli.console import add_model_options, load_model
from arr_coc.errors import ArrCocError
from arr_coc.serve.limits import EndpointLimits

KEY = "ARR_COC_API_KEY"
LOCAL = ("127.0.0.1", "localhost", "::1")
_EPILOG = f"""\
Unmodified OpenAI clients work. They send images as data: URIs. Budget, glance and selector of one request are in its object arr_coc:
  client.chat.completions.create(..., extra_body={{"arr_coc": {{"budget": "12.5%", "glance": "50%"}}}})
The API key is read from the environment variable {KEY}. Without one, every client is served.
A signal (Ctrl-C, SIGTERM) ends the accepting of requests; what was accepted is answered. A second signal ends at once.

examples:
  arr-coc serve                                          the bundled reader, on this machine
  arr-coc serve --model MODEL_FOLDER --budget 25% --glance 50%    unmodified clients read a quarter
  {KEY}=... arr-coc serve --host 0.0.0.0 --port 8000
  arr-coc serve --allow-folder pictures                  also file: addresses below the folder pictures
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="an OpenAI-compatible endpoint",
        description=(
            "Serve a model at an OpenAI-compatible endpoint, /v1/chat/completions, with streaming, batches of concurrent requests, a bounded queue, "
            "/health and /metrics."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="reader", metavar="FOLDER", help="model folder or hub id (the bundled reader)")
    add("--name", metavar="NAME", help="the model's name in requests (the folder's name)")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    add("--port", type=int, help="port (the first free one from 8000 on)")
    add("--budget", default="auto", help="visual tokens that the language model reads, unless a request says (auto)")
    add("--glance", default="auto", help="visual tokens that the vision encoder computes, unless a request says (auto)")
    add("--selector", default="arr-coc", help="method that selects the tokens, unless a request says (arr-coc)")
    add_model_options(parser)
    access = parser.add_argument_group("images by address")
    access.add_argument(
        "--allow-folder", action="append", default=[], type=Path, metavar="DIR", help="open file: addresses below DIR"
    )
    access.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST", help="fetch images from HOST or HOST:PORT"
    )
    limits = parser.add_argument_group("limits")
    for one in fields(EndpointLimits):
        option, kind = f"--{one.name.replace('_', '-')}", int if one.type == "int" else float
        limits.add_argument(option, type=kind, default=one.default, metavar="N", help=one.metadata["help"])
    limits.add_argument(
        "--grace", type=float, default=30.0, metavar="N", help="seconds to finish accepted requests after a signal (30)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.devices import check_device
    from arr_coc.hosting import find_port, limit_malloc_arenas
    from arr_coc.serve.settings import AddressPolicy, Selection, ServeSettings

    settings = ServeSettings(
        name=arguments.name or Path(arguments.model).name or "model",
        limits=EndpointLimits(**{one.name: getattr(arguments, one.name) for one in fields(EndpointLimits)}),
        selection=Selection(arguments.budget, arguments.glance, arguments.selector),
        addresses=AddressPolicy(tuple(arguments.allow_folder), tuple(arguments.allow_host)),
        api_key=os.environ.get(KEY),
        grace=arguments.grace,
    )
    check_device(arguments.device)
    try:
        from arr_coc.serve.engine import Engine
        from arr_coc.serve.server import PORTS, serve
    except ImportError as error:
        raise ArrCocError(
            f"the endpoint needs {error.name}, which is not installed: pip install 'arr-coc[serve]'"
        ) from None
    port = find_port(arguments.host, arguments.port, PORTS)
    limit_malloc_arenas()
    engine = Engine(load_model(arguments), settings.limits)
    engine.warm_up()
    if arguments.host not in LOCAL and settings.api_key is None:
        print(f"arr-coc: everyone who can reach {arguments.host} can use it: set {KEY}", file=sys.stderr)
    if not serve(engine, settings, arguments.host, port):
        print("arr-coc: stopped without finishing what ran", file=sys.stderr)
        return 130
    print("arr-coc: the endpoint is closed", file=sys.stderr)
    return 0
