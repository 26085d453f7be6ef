"""`arr-coc bench realize`: what deciding costs, beside what it saves."""

from __future__ import annotations

import argparse
from datetime import date
from typing import Any

from rich.console import Console
from rich.table import Table

from arr_coc.bench.timing import machine
from arr_coc.cli import bench_options
from arr_coc.cli.console import print_json, progress


def add_parser(subjects: Any) -> None:
    parser = subjects.add_parser(
        "realize",
        help="what deciding costs, and whole answers at the default budget",
        description=(
            "Time the texture, realize on a ready texture, a second question about the same picture, and whole answers at the "
            "default budget against dense ones, on the bundled receipt with the reader, in interleaved rounds. Shares and "
            "ratios are medians over rounds, and stand beside their goals."
        ),
        epilog="example: arr-coc bench realize --rounds 9 --json",
    )
    parser.add_argument("--model", default="reader", metavar="FOLDER", help="a model folder or hub id (reader: ours)")
    bench_options.add(parser, side=36, side_is="the grid without a model", tokens=32)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    bench_options.settle(arguments)
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.bench import realize

    keep_quiet()
    with progress() as bar:
        task = bar.add_task("loading", total=arguments.rounds + 2)
        vlm = arr_coc.load(arguments.model)
        bar.update(task, advance=1, description="deciding and answering")
        found = realize.measure(
            vlm, arr_coc.pictures.receipt(), rounds=arguments.rounds, side=arguments.side, tokens=arguments.tokens,
            tick=lambda: bar.advance(task),
        )  # fmt: skip
    goals = realize.goals(found)
    times = {name: {"median": round(found.median(name), 2), "best": round(found.best(name), 2)} for name in found.runs}
    if arguments.json:
        print_json(
            {
                "machine": machine(), "date": date.today().isoformat(), "rounds": arguments.rounds, "side": arguments.side,
                "layer": vlm.adapter.layer is not None, "ms": times,
                "goals": [
                    {"what": one.what, "is": round(one.value, 4), "goal": one.goal, "reached": one.reached} for one in goals
                ],
            }
        )  # fmt: skip
        return 0
    console = Console()
    console.print(f"{machine()}, {date.today().isoformat()}, {arguments.rounds} interleaved rounds, milliseconds")
    table = Table(box=None, header_style="bold")
    table.add_column("what")
    for heading in ("median", "best"):
        table.add_column(heading, justify="right")
    for name, measured in times.items():
        table.add_row(name, f"{measured['median']:.1f}", f"{measured['best']:.1f}")
    console.print(table)
    console.print()
    table = Table(box=None, header_style="bold")
    table.add_column("goal")
    table.add_column("is", justify="right")
    table.add_column("should be", justify="right")
    table.add_column("")
    for one in goals:
        table.add_row(one.what, f"{one.value:.3g}", one.goal, "" if one.reached else "not reached")
    console.print(table)
    return 0
