"""`arr-coc bench`: how fast things are on this machine, one subject a file."""

from __future__ import annotations

from typing import Any

from arr_coc.cli import bench_ask, bench_gpu, bench_realize, bench_texture


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="time things on this machine",
        description="Time things on this machine, in interleaved rounds, so that ratios hold on a busy one too.",
        epilog="example: arr-coc bench texture --sizes 512 1024 --rounds 9",
    )
    subjects = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for module in (bench_texture, bench_ask, bench_realize, bench_gpu):
        module.add_parser(subjects)
