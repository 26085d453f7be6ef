"""`arr-coc bench`: time things on this machine, as tables or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli.console import check_image_file, print_json, progress, save_image
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from rich.table import Table

    from arr_coc.bench.gpu import GpuBench, GpuReport
    from arr_coc.bench.timing import Goal, Timing

STAGES = ("encode", "prefill", "overhead", "first", "decode")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="time things on this machine",
        description="Time things on this machine, in interleaved rounds, so that ratios hold on a busy one too.",
        epilog="example: arr-coc bench texture --sizes 512 1024 --rounds 9",
    )
    subjects = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    texture = subjects.add_parser(
        "texture",
        help="the texture array, compared with scikit-image and scipy",
        description=(
            "Time each family of channels and the whole texture on square images, in interleaved rounds, compared with "
            "scikit-image and scipy at full size. Ratios come from medians; 'best' is the fastest round."
        ),
        epilog="example: arr-coc bench texture --sizes 512 1024 --rounds 9",
    )
    texture.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048], metavar="PX", help="image sides")
    texture.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    texture.add_argument("--alone", action="store_true", help="leave the comparison out; needs no scikit-image")
    texture.set_defaults(run=run_texture)
    ask = subjects.add_parser(
        "ask",
        help="dense answers against sparse ones",
        description=(
            "Time answers about a picture of 1,024 visual tokens with a random model (Qwen2-VL architecture, width 512, 8 "
            "layers): the stock model, everything kept, and several budgets, in interleaved rounds. Times are shown as "
            "times faster than the stock model."
        ),
        epilog="example: arr-coc bench ask --rounds 3 --side 16",
    )
    _add_answer_options(ask, side=32, grid="the picture", tokens=16)
    ask.set_defaults(run=run_ask)
    realize = subjects.add_parser(
        "realize",
        help="what deciding costs, and whole answers at the default budget",
        description=(
            "Time the texture, realize on a ready texture, a second question about the same picture, and whole answers at the "
            "default budget against dense ones, on the bundled receipt with the reader, in interleaved rounds. Shares and "
            "ratios are medians over rounds, shown with their goals."
        ),
        epilog="example: arr-coc bench realize --rounds 9 --json",
    )
    realize.add_argument(
        "--model", default="reader", metavar="FOLDER", help="a model folder or hub id (the bundled reader)"
    )
    _add_answer_options(realize, side=36, grid="the grid without a model", tokens=32)
    realize.set_defaults(run=run_realize)
    for subject in (texture, ask, realize):
        subject.add_argument("--rounds", type=int, default=5, help="repetitions of everything (5)")
        subject.add_argument("--threads", type=int, help="torch's threads on the CPU (torch's own default)")
        subject.add_argument("--json", action="store_true", help="print everything as JSON")
    gpu = subjects.add_parser(
        "gpu",
        help="every stage of the GPU path",
        description=(
            "Time the kernels of the GPU path on square pictures in GPU memory, by CUDA events: median, spread, share of the "
            "bandwidth of a copy and memory, compared with torch. Needs a CUDA device and Triton."
        ),
        epilog="example: arr-coc bench gpu --size 1024 --batch 16 --json",
    )
    add_gpu_options(gpu)
    gpu.set_defaults(run=run_gpu)


def _add_answer_options(parser: argparse.ArgumentParser, side: int, grid: str, tokens: int) -> None:
    parser.add_argument("--side", type=int, default=side, help=f"cells along each side of {grid} ({side})")
    parser.add_argument("--tokens", type=int, default=tokens, help=f"longest answer in tokens ({tokens})")


def add_gpu_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=1024, metavar="PX", help="the pictures' side (1024)")
    parser.add_argument("--batch", type=int, default=1, help="pictures at once (1)")
    parser.add_argument("--repeats", type=int, default=50, help="repetitions of every stage (50)")
    parser.add_argument("--alone", action="store_true", help="skip the comparison with torch")
    parser.add_argument("--bars", type=Path, metavar="FILE", help="draw the stages as bars into a picture")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _start(arguments: argparse.Namespace, **least: int) -> dict[str, Any]:
    """Check that counts are large enough and set the threads; returns the head of the JSON record."""
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            raise ArrCocError(f"expected --{name} of at least {smallest}, got {value}")
    import torch

    from arr_coc.bench.timing import machine

    if getattr(arguments, "threads", None) is not None:
        torch.set_num_threads(arguments.threads)
    return {"machine": machine(), "date": date.today().isoformat()}


def run_texture(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from arr_coc.devices import check_device

    if arguments.rounds < 1 or min(arguments.sizes) < 16:
        raise ArrCocError(
            f"expected at least 1 round and sizes from 16 px, got {arguments.rounds} and {arguments.sizes}"
        )
    check_device(arguments.device)
    head = _start(arguments, threads=1) | {"rounds": arguments.rounds}
    from arr_coc.bench.texture import channel_sets, texture_tasks
    from arr_coc.bench.timing import interleave, peak_megabytes

    compare = not arguments.alone
    tasks = {side: texture_tasks(side, arguments.device, compare) for side in arguments.sizes}
    times = {}
    with progress() as bar:
        task = bar.add_task("timing", total=(arguments.rounds + 1) * sum(map(len, tasks.values())))
        for side in arguments.sizes:
            bar.update(task, description=f"timing {side} px")
            times[side] = interleave(tasks[side], arguments.rounds, lambda: bar.advance(task))
    results = {
        side: [(what, found[f"ours {what}"], found.get(f"baseline {what}")) for what in channel_sets()]
        for side, found in times.items()
    }
    dtypes = ("float32", "float16") if arguments.device == "cpu" else ()  # the process's memory, not the GPU's
    memory = {side: {dtype: peak_megabytes(side, dtype) for dtype in dtypes} for side in arguments.sizes}
    if arguments.json:
        sizes = [
            {"side": side, "peak_mb": memory[side], "rows": [_texture_record(*row) for row in rows]}
            for side, rows in results.items()
        ]
        print_json({**head, "device": arguments.device, "sizes": sizes})
        return 0
    console = Console()
    console.print(_headline(head, "milliseconds"))
    for side, rows in results.items():
        headings = ["built from the image", "median", "best"]
        headings += ["skimage", "skimage best", "faster"] if compare else []
        lines = []
        for what, ours, baseline in rows:
            line = [what, f"{ours.median:.1f}", f"{ours.best:.1f}"]
            if baseline:
                faster = f"{baseline.median / ours.median:.1f} x"
                line += [f"{baseline.median:.1f}", f"{baseline.best:.1f}", faster]
            lines.append(line)
        console.print(_table(headings, lines, title=f"{side} x {side} px on {arguments.device}"))
        for dtype, megabytes in memory[side].items():
            if megabytes is not None:
                console.print(f"peak memory, all channels and their one-block tensor, {dtype}: {megabytes:.0f} MB")
        console.print()
    if compare:
        console.print("The baseline (scikit-image and scipy) has no text channel; full40 has it.")
    console.print("Embeddings, memory and attention are not supplied here: those channels are zero and cost nothing.")
    return 0


def _texture_record(what: str, ours: Timing, baseline: Timing | None) -> dict[str, object]:
    def times(timing: Timing) -> dict[str, float]:
        return {"median_ms": round(timing.median, 3), "best_ms": round(timing.best, 3)}

    record: dict[str, object] = {"what": what, "ours": times(ours), "obvious": None, "times_faster": None}
    if baseline is not None:
        record |= {"obvious": times(baseline), "times_faster": round(baseline.median / ours.median, 2)}
    return record


def run_ask(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    head = _start(arguments, side=1, rounds=1, tokens=1, threads=1) | {"rounds": arguments.rounds}
    from arr_coc.bench.answers import CONFIGS, compare_budgets, random_model, random_prompt

    vlm = random_model()
    inputs = random_prompt(vlm, arguments.side)
    with progress() as bar:
        task = bar.add_task("answering", total=(arguments.rounds + 1) * len(CONFIGS))
        found = compare_budgets(
            vlm, inputs, rounds=arguments.rounds, new_tokens=arguments.tokens, tick=lambda: bar.advance(task)
        )
    medians = {name: {stage: times[stage].median for stage in STAGES} for name, times in found.items()}
    for stages in medians.values():
        stages["answer"] = stages["first"] + stages["decode"]
    stock = medians["stock"]
    records: list[dict[str, Any]] = []
    for name, stages in medians.items():
        faster = {stage: round(stock[stage] / stages[stage], 2) for stage in ("encode", "prefill", "first", "answer")}
        rounded = {stage: round(stages[stage], 2) for stage in STAGES}
        records.append({"setting": name, "median_ms": rounded, "times_faster": faster})
    share = max(times["assemble"].median for times in found.values()) / stock["prefill"]
    if arguments.json:
        counts = {"visual_tokens": arguments.side**2, "new_tokens": arguments.tokens}
        print_json(head | counts | {"settings": records, "prepare_share_of_prefill": round(share, 4)})
        return 0
    console = Console()
    console.print(_headline(head, f"{arguments.side**2} visual tokens"))
    lines = [[one["setting"], *(f"{ratio:.2f} x" for ratio in one["times_faster"].values())] for one in records]
    headings = ["kept", "encoder", "prefill", "first token", f"{arguments.tokens} tokens"]
    console.print(_table(headings, lines, title="times faster than the stock model"))
    console.print(f"Preparing without encoder and selector: {share:.1%} of the stock prefill.")
    return 0


def run_realize(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    head = _start(arguments, side=1, rounds=1, tokens=1, threads=1) | {"rounds": arguments.rounds}
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.bench.answers import measure_selection, selection_goals

    keep_quiet()
    with progress() as bar:
        task = bar.add_task("loading", total=arguments.rounds + 2)
        vlm = arr_coc.load(arguments.model)
        bar.update(task, advance=1, description="deciding and answering")
        found = measure_selection(
            vlm, arr_coc.pictures.receipt(), rounds=arguments.rounds, side=arguments.side, tokens=arguments.tokens,
            tick=lambda: bar.advance(task),
        )  # fmt: skip
    goals = selection_goals(found)
    times = {name: {"median": round(time.median, 2), "best": round(time.best, 2)} for name, time in found.items()}
    if arguments.json:
        record = [
            {"what": one.what, "is": round(one.value or 0.0, 4), "goal": one.bound, "reached": one.reached}
            for one in goals
        ]
        layer = vlm.layer is not None
        print_json({**head, "side": arguments.side, "layer": layer, "ms": times, "goals": record})
        return 0
    console = Console()
    console.print(_headline(head, "milliseconds"))
    lines = [[name, f"{one['median']:.1f}", f"{one['best']:.1f}"] for name, one in times.items()]
    console.print(_table(["what", "median", "best"], lines))
    console.print()
    rows = [[one.what, f"{one.value:.3g}", one.bound, "" if one.reached else "not reached"] for one in goals]
    console.print(_table(["goal", "is", "should be", ""], rows))
    return 0


def run_gpu(arguments: argparse.Namespace) -> int:
    from arr_coc.bench.gpu import GOALS, GpuBench

    return run_gpu_bench(arguments, GpuBench, GOALS)


def run_gpu_bench(arguments: argparse.Namespace, bench: type[GpuBench], goals: Sequence[tuple[str, str, float]]) -> int:
    """Time the stages of a bench and print them."""
    head = _start(arguments, size=16, batch=1, repeats=2)
    if arguments.bars:
        check_image_file(arguments.bars)
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
    if arguments.json:
        print_json(head | gpu_record(report, found))
    else:
        _print_gpu_report(report, found, f"{head['machine']}, {head['date']}", arguments.repeats)
    if arguments.bars:
        save_image(gpu.stage_bars(report), arguments.bars)
    return 0


def gpu_record(report: GpuReport, goals: Sequence[Goal]) -> dict[str, Any]:
    """All stages and goals, ready for JSON."""
    return {
        "side": report.side, "batch": report.batch,
        "copy_bytes_per_s": round(report.bandwidth), "texture_bytes": report.texture_bytes,
        "stages": [one.record() for one in report.stages],
        "goals": [{"what": one.what, "is": one.value, "most": one.at_most, "reached": one.reached} for one in goals],
    }  # fmt: skip


def _print_gpu_report(report: GpuReport, goals: Sequence[Goal], where: str, repeats: int) -> None:
    from rich.console import Console

    console = Console()
    console.print(
        f"{where}, {report.batch} x {report.side} px, {repeats} repetitions, "
        f"copies at {report.bandwidth / 1e12:.2f} TB/s; milliseconds"
    )
    crops = report.median("baseline")
    headings = ["stage", "median", "spread", "of a copy", "memory MB", "torch", "faster"]
    rows = []
    for one in report.stages:
        row = [one.name, f"{one.time.median:.3f}", f"{one.time.spread:.3f}"]
        row += ["" if one.share is None else f"{one.share:.0%}", f"{one.time.peak / 1e6:.0f}"]
        if one.reference is not None:
            row += [f"{one.reference.median:.3f}", f"{one.reference.median / one.time.median:.1f} x"]
        elif crops:
            row += ["", ""]
        rows.append([*row, f"{crops * report.batch / one.time.median:.1f} x"] if crops else row)
    console.print(_table([*headings, "than crops"] if crops else headings, rows))
    texture = report.median("full40, graph") or report.median("full40") or float("nan")
    images = report.batch / (texture / 1e3)
    console.print(f"{images:,.0f} images/s without encoder; {report.texture_bytes / 1e6:.0f} MB an image")
    for goal in goals:
        value = "not measured" if goal.value is None else f"{goal.value:.3g}"
        console.print(f"{goal.what}: {value} (goal {goal.at_most:g}{'' if goal.reached else ', not reached'})")


def _headline(head: dict[str, Any], unit: str) -> str:
    return f"{head['machine']}, {head['date']}, {head['rounds']} interleaved rounds, {unit}"


def _table(headings: Iterable[str], rows: Iterable[list[str]], title: str | None = None) -> Table:
    """A table with names at the left and figures at the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number and heading else "left")
    for row in rows:
        table.add_row(*row)
    return table
