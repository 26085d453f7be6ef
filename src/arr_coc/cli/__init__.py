"""The command `arr-coc`, one file per subcommand. Bad input is one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from functools import partial

from arr_coc import __version__
from arr_coc.cli import ask, bench, channels, demo, eval, find, fit_embeddings, serve, show, tour, train, video
from arr_coc.errors import ArrCocError

_EPILOG = """\
start here:
  arr-coc tour                              answers about a bundled receipt, with pictures
  arr-coc demo                              a web page on this machine, to try everything
  arr-coc serve                             an OpenAI-compatible endpoint
  arr-coc ask receipt.jpg "What is the total amount?" --where where.png
  arr-coc show receipt.jpg "What is the total amount?" -o why.png    which cells matter, and why
  arr-coc video clip.mp4 "Where is the dog?" --embeddings labels -o out.mp4    the same for a video
  arr-coc eval FOLDER --limit 20            compare selectors on your own questions
  arr-coc index photos; arr-coc find photos "a dog on a sofa"    images by what is in them, and where
  arr-coc channels photo.jpg -o sheet.png   draw the channels of the texture array
  arr-coc channels --json                   every channel: meaning, range, pooling, cost
  arr-coc fit-embeddings photos -o e.safetensors    compress an encoder's features
  arr-coc train FOLDER --model MODEL -o layer       train a layer that scores the cells for a model
  arr-coc bench texture                     speed on this machine, compared with scikit-image
  arr-coc bench ask                         speed of answers from all tokens and from a part of them
  arr-coc bench realize                     what selecting costs, and what it saves
"""

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="arr-coc",
        description="Let a vision-language model read only the visual tokens it needs, and see an image as 40 named channels.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"arr-coc {__version__}")
    parser.set_defaults(run=partial(_print_help, parser))  # without a command
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (ask, show, video, eval, channels, find, fit_embeddings, train, bench, tour, demo, serve):
        module.add_parser(commands)
    return parser


def _print_help(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    parser.print_help()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 (partly done), 2 (bad input) or 130 (interrupted)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may hold characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()  # inside the try: a full disk is reported as one sentence, too
        return code
    except ArrCocError as error:
        print(f"arr-coc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the program that reads our output (head, less) has ended
        _discard_output()
        return 1
    except OSError as error:
        if error.filename is not None:
            what = f"cannot read or write {str(error.filename)!r}"
        else:  # an error of a write, such as to stdout, names no file
            what = "cannot write the output" if error.errno in _WRITE_ERRORS else "the system refused a request"
        print(f"arr-coc: {what}: {error.strerror or error}", file=sys.stderr)
        _discard_output()
        return 2
    except KeyboardInterrupt:
        print("arr-coc: interrupted", file=sys.stderr)
        return 130
    finally:
        gc.enable()


def _discard_output() -> None:
    """Drop what is still buffered for stdout: Python would try to write it again at exit, and print a traceback."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
