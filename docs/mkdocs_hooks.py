"""Hooks that mkdocs runs for every page (see mkdocs.yml).

- Links to source files work in the repository but not on the site: there they become plain names.
- The command reference is made from the help texts of the commands.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

SOURCE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:src|tests|benchmarks|recipes|docs|\.ci)/[^)]*\)")
COMMANDS = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's text as the site shows it."""
    named = SOURCE.sub(lambda link: link[1] if link[1].startswith("`") else f"`{link[1]}`", markdown)
    return named.replace(COMMANDS, commands()) if COMMANDS in named else named


def commands() -> str:
    """The help text of every subcommand."""
    os.environ["COLUMNS"] = "110"  # argparse asks the terminal how wide it is
    from arr_coc.cli import build_parser

    return "\n\n".join(f"## {name}\n\n```text\n{text.rstrip()}\n```" for name, text in _helps(build_parser()))


def _helps(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    found = [(parser.prog, parser.format_help())]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in dict.fromkeys(action.choices.values()):
                found += _helps(one)
    return found
