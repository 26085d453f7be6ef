"""`arr-coc bench gpu`: the kernels of the GPU path, compared with torch and with a device copy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from arr_coc.bench.timing import machine
from arr_coc.cli.console import print_json, progress
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from arr_coc.bench.gpu import GpuBench, GpuGoal, GpuReport


def add_parser(subjects: Any) -> None:
    parser = subjects.add_parser(
        "gpu",
        help="every stage of the GPU path",
        description=(
            "Time the kernels of the GPU path on square pictures in GPU memory, by CUDA events: median, spread, share of the "
            "bandwidth of a copy and memory, compared with torch. Needs a CUDA device and Triton."
        ),
        epilog="example: arr-coc bench gpu --size 1024 --batch 16 --json",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=1024, metavar="PX", help="the pictures' side (1024)")
    parser.add_argument("--batch", type=int, default=1, help="pictures at once (1)")
    parser.add_argument("--repeats", type=int, default=50, help="repetitions of every stage (50)")
    parser.add_argument("--alone", action="store_true", help="skip the comparison with torch")
    parser.add_argument("--bars", type=Path, metavar="FILE", help="draw the stages as bars into a picture")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.bench.gpu import GOALS, GpuBench

    return run_bench(arguments, GpuBench, GOALS)


def run_bench(arguments: argparse.Namespace, bench: type[GpuBench], goals: Sequence[tuple[str, str, float]]) -> int:
    """Time the stages of a bench and print them."""
    for name, least in (("size", 16), ("batch", 1), ("repeats", 2)):
        if getattr(arguments, name) < least:
            raise ArrCocError(f"expected --{name} of at least {least}, got {getattr(arguments, name)}")
    from arr_coc.bench import gpu
    from arr_coc.texture.kernels import reason, using

    gpu.check_cuda()
    obstacle = reason("cuda")
    if obstacle is not None:
        raise ArrCocError(f"expected a GPU that kernels run on: {obstacle}")
    with progress() as bar, using("auto"):
        task = bar.add_task("timing", total=None)
        report = gpu.measure(
            bench, arguments.size, arguments.batch, arguments.repeats, references=not arguments.alone,
            tick=lambda name: bar.update(task, description=name),
        )  # fmt: skip
    found = gpu.check_goals(report, goals) if (arguments.size, arguments.batch) == (1024, 1) else []
    if arguments.bars:
        gpu.stage_bars(report).save(arguments.bars)
    if arguments.json:
        print_json(record(report, found))
    else:
        print_report(report, found, arguments.repeats)
    return 0


def print_report(report: GpuReport, goals: Sequence[GpuGoal], repeats: int) -> None:
    console = Console()
    console.print(
        f"{machine()}, {date.today().isoformat()}, {report.batch} x {report.side} px, {repeats} repetitions, "
        f"copies at {report.bandwidth / 1e12:.2f} TB/s; milliseconds"
    )
    crops = report.median("baseline")
    table = Table(box=None, header_style="bold")
    table.add_column("stage")
    headings = ("median", "spread", "of a copy", "memory MB", "torch", "faster", *(["than crops"] if crops else []))
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in report.stages:
        share = "" if one.share is None else f"{one.share:.0%}"
        other = "" if one.reference is None else f"{one.reference.median:.3f}"
        faster = "" if one.reference is None else f"{one.reference.median / one.time.median:.1f} x"
        than_crops = [f"{crops * report.batch / one.time.median:.1f} x"] if crops else []
        memory = f"{one.time.peak / 1e6:.0f}"
        table.add_row(
            one.name, f"{one.time.median:.3f}", f"{one.time.spread:.3f}", share, memory, other, faster, *than_crops
        )
    console.print(table)
    texture = report.median("full40, graph") or report.median("full40") or float("nan")
    images = report.batch / (texture / 1e3)
    console.print(f"{images:,.0f} images/s without encoder; {report.texture_bytes / 1e6:.0f} MB an image")
    for goal in goals:
        value = "not measured" if goal.value is None else f"{goal.value:.3g}"
        console.print(f"{goal.what}: {value} (goal {goal.most:g}{'' if goal.reached else ', not reached'})")


def record(report: GpuReport, goals: Sequence[GpuGoal]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "machine": machine(), "date": date.today().isoformat(), "side": report.side, "batch": report.batch,
        "copy_bytes_per_s": round(report.bandwidth), "texture_bytes": report.texture_bytes,
        "stages": [one.record() for one in report.stages],
        "goals": [{"what": one.what, "is": one.value, "most": one.most, "reached": one.reached} for one in goals],
    }  # fmt: skip
