"""`arr-coc bench gpu`: every stage of the GPU path, beside torch alone and beside the obvious way."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arr_coc.bench.timing import machine
from arr_coc.cli.console import print_json, progress
from arr_coc.errors import ArrCocError


def add_parser(subjects: Any) -> None:
    parser = subjects.add_parser(
        "gpu",
        help="every stage of the GPU path",
        description=(
            "Time every stage of the GPU path on square pictures that lie on the GPU, by its own clock: median and spread, the "
            "share of the bandwidth of a copy, memory; beside the same in torch alone, and beside the obvious way, 273 crops "
            "through an encoder of the shape of CLIP-B/32 in one batch. Needs a CUDA device and Triton."
        ),
        epilog="example: arr-coc bench gpu --size 1024 --batch 16 --json",
    )
    parser.add_argument("--size", type=int, default=1024, metavar="PX", help="the pictures' side (1024)")
    parser.add_argument("--batch", type=int, default=1, help="pictures at once (1)")
    parser.add_argument("--repeats", type=int, default=50, help="repetitions of every stage (50)")
    parser.add_argument("--alone", action="store_true", help="leave the comparison with torch out")
    parser.add_argument("--bars", type=Path, metavar="FILE", help="draw the stages as bars into a picture")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    for name, least in (("size", 16), ("batch", 1), ("repeats", 2)):
        if getattr(arguments, name) < least:
            raise ArrCocError(f"expected --{name} of at least {least}, got {getattr(arguments, name)}")
    from arr_coc.bench import gpu
    from arr_coc.bench.events import check_cuda
    from arr_coc.texture.kernels import reason, using

    check_cuda()
    hindrance = reason("cuda")
    if hindrance is not None:
        raise ArrCocError(f"expected a GPU that kernels run on: {hindrance}")
    with progress() as bar, using("auto"):
        task = bar.add_task("timing", total=None)
        report = gpu.measure(
            arguments.size, arguments.batch, arguments.repeats, references=not arguments.alone,
            tick=lambda name: bar.update(task, description=name),
        )  # fmt: skip
    goals = gpu.goals(report) if (arguments.size, arguments.batch) == (1024, 1) else []
    if arguments.bars:
        from arr_coc.bench.bars import stage_bars

        stage_bars(report).save(arguments.bars)
    if arguments.json:
        print_json(record(report, goals))
        return 0
    console = Console()
    console.print(
        f"{machine()}, {date.today().isoformat()}, {report.batch} x {report.side} px, {arguments.repeats} repetitions, "
        f"copies at {report.bandwidth / 1e12:.2f} TB/s; milliseconds"
    )
    table = Table(box=None, header_style="bold")
    table.add_column("stage")
    for heading in ("median", "spread", "of a copy", "memory MB", "torch", "faster", "than crops"):
        table.add_column(heading, justify="right")
    crops = report.median("baseline")
    for one in report.stages:
        share = "" if one.share is None else f"{one.share:.0%}"
        other = "" if one.reference is None else f"{one.reference.median:.3f}"
        faster = "" if one.reference is None else f"{one.reference.median / one.time.median:.1f} x"
        table.add_row(
            one.name, f"{one.time.median:.3f}", f"{one.time.spread:.3f}", share, f"{one.time.peak / 1e6:.0f}", other, faster,
            "" if crops is None else f"{crops * report.batch / one.time.median:.1f} x",
        )  # fmt: skip
    console.print(table)
    images = report.batch / ((report.median("full40, graph") or float("nan")) / 1e3)
    console.print(f"{images:,.0f} images/s without encoder; {report.texture_bytes / 1e6:.0f} MB an image")
    for goal in goals:
        word = "not measured" if goal.value is None else f"{goal.value:.3g}"
        console.print(f"{goal.what}: {word} (goal {goal.most:g}{'' if goal.reached else ', not reached'})")
    return 0


def record(report: Any, goals: Any) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "machine": machine(), "date": date.today().isoformat(), "side": report.side, "batch": report.batch,
        "copy_bytes_per_s": round(report.bandwidth), "texture_bytes": report.texture_bytes,
        "stages": [one.record() for one in report.stages],
        "goals": [{"what": one.what, "is": one.value, "most": one.most, "reached": one.reached} for one in goals],
    }  # fmt: skip
