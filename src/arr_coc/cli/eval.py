"""`arr-coc eval`: selectors beside each other, on the same questions with the same model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli.console import check_file, check_folder, progress, save_text
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from arr_coc.evaluation import Report

MOST_LINES = 20  # of the data that are complained about one by one

_EPILOG = """\
DATA is a folder with pictures and samples.jsonl, one question a line:
  {"image": "a.jpg", "question": "What is the total?", "answer": "12.50", "kind": "total", "evidence": [[[40, 60, 90, 80]]]}
Only image and question must be there. evidence is a list of groups of pixel boxes: all boxes of a group are needed, any one
group suffices. Lines that cannot be used are named with their number, the rest runs, and the exit code is 1.
"video" in place of "image" lists the files of a clip's frames, or names a folder of them.

examples:
  arr-coc eval receipts --selectors all random uniform --budgets 25%% 12.5%% --limit 20
  arr-coc eval receipts --selectors mymodule:MySelector divprune --json out.json --report out
  arr-coc eval photos --evidence-only              which cells are kept, without a single answer
  arr-coc eval photos --selectors coupling centre --embeddings labels
  arr-coc eval val2014 --format vqav2 --model FOLDER
  arr-coc eval --suite robustness                  drawn cases that selectors stumble over

An interrupted run (ctrl-C) keeps what it has done; the same command goes on from there, --fresh starts anew.
Your own selector is a class or a function of a sight in a module of the working folder: --selectors module:name
"""


_NOT_BESIDE_SUITE: dict[str, tuple[str, Any]] = {
    "--format": ("format", "samples"), "--plot": ("plot", None), "--run": ("run_folder", None),
    "--evidence-only": ("evidence_only", False), "--tokens": ("tokens", 160), "--seeds": ("seeds", 3),
}  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="compare selectors on a folder of questions",
        description=(
            "Let selectors answer the same questions with the same model, and compare how many answers stay right, whether "
            "the cells that show the answer were kept, and what it cost. Intervals are over pictures."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", nargs="?", metavar="DATA", help="a folder with samples.jsonl, or as --format says")
    parser.add_argument("--model", default="reader", metavar="FOLDER", help="a model folder or hub id (reader: ours)")
    parser.add_argument("--selectors", nargs="+", metavar="NAME", help="who takes part (the usual ones)")
    parser.add_argument(
        "--budgets", nargs="+", metavar="B", help='counts, shares or "mass 90%%" (25%% 12.5%% 6.25%%); "all" once'
    )
    parser.add_argument("--glance", default="all", help="cells that the vision encoder sees at all (all)")
    parser.add_argument("--glance-selector", metavar="NAME", help="who chooses those (each selector itself)")
    parser.add_argument(
        "--embeddings", metavar="NAME", help="an image-text encoder for selectors that ask one (labels)"
    )
    parser.add_argument(
        "--layer",
        default="auto",
        metavar="DIR",
        help="what arr-coc train learned for the model, or none (the model's own)",
    )
    parser.add_argument("--format", default="samples", metavar="NAME", help="the data's layout (samples)")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="only questions of these kinds")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pictures")
    parser.add_argument("--seed", type=int, default=0, help="for everything that draws lots (0)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how often the random choice is drawn (3)")
    parser.add_argument("--tokens", type=int, default=160, metavar="N", help="longest answer in tokens (160)")
    parser.add_argument("--evidence-only", action="store_true", help="look at the kept cells, generate no answers")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers as JSON")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write a page: who leads, plots, the worst and best cases; and report.json for arr-coc demo",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write accuracy against tokens and time (matplotlib)")
    parser.add_argument(
        "--run", type=Path, dest="run_folder", metavar="DIR", help="where an unfinished run is kept (the user's cache)"
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on from an interrupted run (the default)")
    again.add_argument("--fresh", action="store_true", help="start anew")
    parser.add_argument("--suite", choices=("robustness",), help="drawn cases in place of DATA")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.evaluation import Interrupted

    if (arguments.data is None) == (arguments.suite is None):
        raise ArrCocError("expected a folder of questions or --suite robustness, one of both (see arr-coc eval --help)")
    if arguments.suite is not None:
        given = [option for option, (name, usual) in _NOT_BESIDE_SUITE.items() if getattr(arguments, name) != usual]
        if given:
            raise ArrCocError(f"expected {given[0]} beside a folder of questions, not beside --suite: leave it out")
    for path in (arguments.json, arguments.plot):
        if path is not None:
            check_folder(check_file(path).parent)
    if arguments.report is not None:
        check_folder(arguments.report)
    if arguments.plot is not None:
        from arr_coc.evaluation.plots import check_ending

        check_ending(arguments.plot)
    check_device(arguments.device)
    keep_quiet()
    try:
        return _robustness(arguments) if arguments.suite else _compare(arguments)
    except Interrupted as stopped:
        print(f"arr-coc: {stopped}", file=sys.stderr)
        return 130


def _compare(arguments: argparse.Namespace) -> int:
    from arr_coc.evaluation.contestants import contestants
    from arr_coc.evaluation.harness import BUDGETS, check, evaluate
    from arr_coc.evaluation.records import cache_folder, fingerprint

    options: dict[str, Any] = {
        "selectors": arguments.selectors, "budgets": arguments.budgets or BUDGETS, "glance": arguments.glance,
        "glance_selector": arguments.glance_selector, "format": arguments.format, "limit": arguments.limit,
        "kinds": arguments.kinds, "seed": arguments.seed, "seeds": arguments.seeds, "tokens": arguments.tokens,
        "answers": not arguments.evidence_only,
    }  # fmt: skip
    data = check(arguments.data, **options)  # what can be wrong is looked at before a model is loaded
    _complain("note", data.notes)
    said = {"data": str(Path(arguments.data).resolve()), "model": arguments.model, "device": arguments.device}
    said |= options | {"embeddings": arguments.embeddings, "layer": arguments.layer}
    sources = [one.source for one in contestants(arguments.selectors)]
    folder = arguments.run_folder or cache_folder() / fingerprint(said, sources)
    with progress() as bar:
        task = bar.add_task("loading the model", total=None)

        def tick(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        def finish(report: Report) -> None:
            bar.stop()
            _say(report, arguments)

        report = evaluate(
            arguments.model, arguments.data, **options, device=arguments.device, embeddings=arguments.embeddings,
            layer=_layer(arguments), run=folder, fresh=arguments.fresh, tick=tick, then=finish,
        )  # fmt: skip
    _complain("left out", report.problems)
    invalid = [f"{one['selector']} at {one['budget']}" for one in report.records if not one["valid"]]
    _complain("invalid, because the selector failed", invalid)
    return 1 if report.problems or invalid else 0


def _layer(arguments: argparse.Namespace) -> str | None:
    return None if arguments.layer == "none" else arguments.layer


def _complain(what: str, lines: Sequence[str]) -> None:
    """On stderr, the first few; all are in the JSON and on the page."""
    for line in lines[:MOST_LINES]:
        print(f"arr-coc: {what}: {line}", file=sys.stderr)
    if len(lines) > MOST_LINES:
        print(f"arr-coc: {what}: {len(lines) - MOST_LINES} more like these (--json lists all)", file=sys.stderr)


def _say(report: Report, arguments: argparse.Namespace) -> None:
    """The tables, and whatever is to be written; while this can fail, the run is still kept."""
    from arr_coc.evaluation.summary import counted

    if report.resumed:
        print(f"arr-coc: went on from an interrupted run ({report.resumed} pictures were done)", file=sys.stderr)
    kinds = {kind for record in report.records for kind in record["by_kind"]}
    data = report.data
    asked = f"{counted(data.questions, 'question')} about {counted(len(data.pictures), 'picture')}"
    print(f"{report.model} on {data.name}: {asked}\n")
    print(report.table())
    if 1 < len(kinds) <= 12:
        print(report.table(kinds=True))
    if arguments.json is not None:
        save_text(report.to_json() + "\n", arguments.json)
    if arguments.plot is not None:
        report.plot(arguments.plot)
    if arguments.report is not None:
        print(f"page written to {report.page(arguments.report)}")


def _robustness(arguments: argparse.Namespace) -> int:
    """Cells alone are judged: what a model makes of them is another question."""
    from arr_coc.evaluation import robustness
    from arr_coc.evaluation.harness import evaluate
    from arr_coc.evaluation.page import write
    from arr_coc.evaluation.suite_page import page
    from arr_coc.evaluation.written import write_numbers

    data = robustness.suite()
    with progress() as bar:
        task = bar.add_task("loading the model", total=None)
        report = evaluate(
            arguments.model, data, arguments.selectors, arguments.budgets or ["25%"], glance=arguments.glance,
            glance_selector=arguments.glance_selector, kinds=arguments.kinds, limit=arguments.limit, seed=arguments.seed, seeds=1,
            answers=False, device=arguments.device, embeddings=arguments.embeddings, layer=_layer(arguments),
            tick=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )  # fmt: skip
    print(f"{report.model}: drawn cases, passed by selector (what each case asks for: arr_coc.evaluation.robustness)\n")
    print(robustness.verdicts(report))
    if arguments.json is not None:
        save_text(json.dumps(robustness.to_dict(report), indent=2) + "\n", arguments.json)
    if arguments.report is not None:
        print(f"page written to {write(page(report), arguments.report)}")
        write_numbers(report, arguments.report)
    return 0
