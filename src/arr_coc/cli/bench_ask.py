"""`arr-coc bench ask`: dense answers against sparse ones, stage by stage."""

from __future__ import annotations

import argparse
from datetime import date
from typing import Any

from rich.console import Console
from rich.table import Table

from arr_coc.bench.timing import machine
from arr_coc.cli import bench_options
from arr_coc.cli.console import print_json, progress

STAGES = ("encode", "prefill", "overhead", "first", "decode")


def add_parser(subjects: Any) -> None:
    parser = subjects.add_parser(
        "ask",
        help="dense answers against sparse ones",
        description=(
            "Time answers about a picture of 1,024 visual tokens with a random model (Qwen2-VL architecture, width 512, 8 "
            "layers): the stock model, everything kept, and several budgets, in interleaved rounds. Times are shown as "
            "times faster than the stock model."
        ),
        epilog="example: arr-coc bench ask --rounds 3 --side 16",
    )
    bench_options.add(parser, side=32, side_is="the picture", tokens=16)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    bench_options.settle(arguments)
    from arr_coc.bench import ask

    vlm = ask.medium()
    inputs = ask.prompt(vlm, arguments.side)
    with progress() as bar:
        task = bar.add_task("answering", total=(arguments.rounds + 1) * len(ask.SETTINGS))
        found = ask.compare(
            vlm, inputs, rounds=arguments.rounds, new_tokens=arguments.tokens, tick=lambda: bar.advance(task)
        )
    stock = found["stock"]
    records: list[dict[str, Any]] = [
        {
            "setting": name,
            "median_ms": {stage: round(measured.median(stage), 2) for stage in STAGES},
            "times_faster": {
                "encode": round(stock.median("encode") / measured.median("encode"), 2),
                "prefill": round(stock.median("prefill") / measured.median("prefill"), 2),
                "first": round(stock.median("first") / measured.median("first"), 2),
                "answer": round(_whole(stock) / _whole(measured), 2),
            },
        }
        for name, measured in found.items()
    ]
    dearest = max(measured.median("assemble") for measured in found.values())
    share = dearest / stock.median("prefill")
    if arguments.json:
        print_json(
            {
                "machine": machine(), "date": date.today().isoformat(), "rounds": arguments.rounds,
                "visual_tokens": arguments.side**2, "new_tokens": arguments.tokens, "settings": records,
                "prepare_share_of_prefill": round(share, 4),
            }
        )  # fmt: skip
        return 0
    console = Console()
    console.print(
        f"{machine()}, {date.today().isoformat()}, {arguments.rounds} interleaved rounds, {arguments.side**2} visual tokens"
    )
    table = Table(title="times faster than the stock model", title_justify="left", box=None, header_style="bold")
    table.add_column("kept")
    for heading in ("encoder", "prefill", "first token", f"{arguments.tokens} tokens"):
        table.add_column(heading, justify="right")
    for record in records:
        table.add_row(record["setting"], *(f"{ratio:.2f} x" for ratio in record["times_faster"].values()))
    console.print(table)
    console.print(f"Preparing without encoder and selector: {share:.1%} of the stock prefill.")
    return 0


def _whole(measured: Any) -> float:
    return float(measured.median("first") + measured.median("decode"))
