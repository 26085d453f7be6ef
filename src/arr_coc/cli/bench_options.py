"""What the benches of answers are told: cells along a side, rounds, tokens, threads."""

from __future__ import annotations

import argparse

import torch

from arr_coc.errors import ArrCocError


def add(parser: argparse.ArgumentParser, side: int, side_is: str, tokens: int) -> None:
    parser.add_argument("--side", type=int, default=side, help=f"cells along each side of {side_is} ({side})")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of everything (5)")
    parser.add_argument("--tokens", type=int, default=tokens, help=f"longest answer in tokens ({tokens})")
    parser.add_argument("--threads", type=int, help="torch's threads (as many as it takes by itself)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def settle(arguments: argparse.Namespace) -> None:
    """Complain about what cannot be, and set the threads."""
    for name in ("side", "rounds", "tokens", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ArrCocError(f"expected --{name} of at least 1, got {value}")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
