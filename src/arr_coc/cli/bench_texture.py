"""`arr-coc bench texture`: how fast the texture array is on this machine, beside the obvious implementation."""

from __future__ import annotations

import argparse
from datetime import date
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from arr_coc.bench.timing import Timing, machine
from arr_coc.cli.console import print_json, progress
from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError


def add_parser(subjects: Any) -> None:
    parser = subjects.add_parser(
        "texture",
        help="the texture array, beside scikit-image and scipy",
        description=(
            "Time each family of channels and the whole texture on square images, in interleaved rounds, beside the obvious "
            "implementation (scikit-image and scipy at full size). Ratios come from medians; 'best' is the quiet moment."
        ),
        epilog="example: arr-coc bench texture --sizes 512 1024 --rounds 9",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048], metavar="PX", help="image sides")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of everything (5)")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--threads", type=int, help="torch's threads on the CPU (as many as it takes by itself)")
    parser.add_argument("--alone", action="store_true", help="leave the comparison out; needs no scikit-image")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.rounds < 1 or min(arguments.sizes) < 16:
        raise ArrCocError(
            f"expected at least 1 round and sizes from 16 px, got {arguments.rounds} and {arguments.sizes}"
        )
    check_device(arguments.device)
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ArrCocError(f"expected at least 1 thread, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    from arr_coc.bench.memory import peak_megabytes
    from arr_coc.bench.texture import bench_texture, task_count

    results = {}
    with progress() as bar:
        total = len(arguments.sizes) * (arguments.rounds + 1) * task_count(not arguments.alone)
        task = bar.add_task("timing", total=total)
        for side in arguments.sizes:
            bar.update(task, description=f"timing {side} px")
            results[side] = bench_texture(
                side, arguments.rounds, arguments.device, not arguments.alone, lambda: bar.advance(task)
            )
    # Peak memory is the process's, so it says nothing about a GPU's.
    dtypes = ("float32", "float16") if arguments.device == "cpu" else ()
    memory = {side: {dtype: peak_megabytes(side, dtype) for dtype in dtypes} for side in arguments.sizes}
    if arguments.json:
        print_json(
            {
                "machine": machine(),
                "date": date.today().isoformat(),
                "rounds": arguments.rounds,
                "device": arguments.device,
                "sizes": [
                    {"side": side, "peak_mb": memory[side], "rows": [_record(row) for row in rows]}
                    for side, rows in results.items()
                ],
            }
        )
        return 0
    console = Console()
    console.print(f"{machine()}, {date.today().isoformat()}, {arguments.rounds} interleaved rounds, milliseconds")
    for side, rows in results.items():
        table = Table(
            title=f"{side} x {side} px on {arguments.device}", title_justify="left", box=None, header_style="bold"
        )
        table.add_column("built from the image")
        compared = ("obvious", "obvious best", "faster") if not arguments.alone else ()
        for heading in ("median", "best", *compared):
            table.add_column(heading, justify="right")
        for row in rows:
            cells = [row.what, f"{row.ours.median:.1f}", f"{row.ours.best:.1f}"]
            if row.obvious:
                cells += [f"{row.obvious.median:.1f}", f"{row.obvious.best:.1f}", f"{row.ratio:.1f} x"]
            table.add_row(*cells)
        console.print(table)
        for dtype, megabytes in memory[side].items():
            if megabytes is not None:
                console.print(f"peak memory, all channels and their one-block tensor, {dtype}: {megabytes:.0f} MB")
        console.print()
    if not arguments.alone:
        console.print("The obvious implementation has no text channel; full40 has it.")
    console.print("Nobody supplies embeddings, memory or attention here: those channels are zero and cost nothing.")
    return 0


def _record(row: Any) -> dict[str, object]:
    def times(timing: Timing | None) -> dict[str, float] | None:
        return None if timing is None else {"median_ms": round(timing.median, 3), "best_ms": round(timing.best, 3)}

    ratio = None if row.ratio is None else round(row.ratio, 2)
    return {"what": row.what, "ours": times(row.ours), "obvious": times(row.obvious), "times_faster": ratio}
