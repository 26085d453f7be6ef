"""`arr-coc eval`: compare selectors on the same questions with the same model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli.console import check_file, check_folder, print_problems, progress, ray_workers, save_text
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from arr_coc.evaluation import Data, Report

MORE = " (--json lists all)"
_EPILOG = """\
A cell is the part of an image that one visual token covers. A selector chooses which cells the model reads; arr-coc is the default of
arr-coc ask, all is the stock model, random and uniform are controls.

DATA is a folder with pictures and samples.jsonl, one question a line:
  {"image": "a.jpg", "question": "What is the total?", "answer": "12.50", "kind": "total", "evidence": [[[40, 60, 90, 80]]]}
Only image and question are required. evidence is a list of groups of pixel boxes: all boxes of a group are needed, any one
group suffices. Lines that cannot be used are named with their number, the rest runs, and the exit code is 1.
"video" in place of "image" lists the files of a clip's frames, or names a folder of them.

examples:
  arr-coc eval receipts --selectors all arr-coc random --budgets 25% 12.5% --limit 20    a first look
  arr-coc eval receipts --selectors mymodule:MySelector,divprune --json out.json --report out    your own selector
  arr-coc eval photos --evidence-only              which cells are kept, without generating answers
  arr-coc eval photos --selectors coupling centre --embeddings labels
  arr-coc eval photos --glance 25% --budgets all    what each selector lets the vision encoder see
  arr-coc eval val2014 --format vqav2 --model FOLDER
  arr-coc eval gaze --format fixations             saliency against where people looked (AUC, NSS, CC)
  arr-coc eval --suite robustness                  drawn cases that are hard for selectors

An interrupted run (ctrl-C) keeps its finished pictures; the same command continues, --fresh starts again.
Your own selector is a class or a function in a module of the working folder: --selectors module:name
"""

_NOT_WITH_SUITE: dict[str, tuple[str, Any]] = {
    "--format": ("format", "samples"),
    "--plot": ("plot", None),
    "--run": ("run_folder", None),
    "--evidence-only": ("evidence_only", False),
    "--tokens": ("tokens", 160),
    "--seeds": ("seeds", 3),
    "--ray": ("ray", None),
}
_NOT_WITH_FIXATIONS: dict[str, tuple[str, Any]] = {  # nothing is asked there, and no model reads anything
    "--selectors": ("selectors", None),
    "--budgets": ("budgets", None),
    "--glance": ("glance", "all"),
    "--glance-selector": ("glance_selector", None),
    "--embeddings": ("embeddings", None),
    "--kinds": ("kinds", None),
    "--report": ("report", None),
} | {name: given for name, given in _NOT_WITH_SUITE.items() if name not in ("--format", "--tokens", "--seeds")}
_RUN_OPTIONS = (  # that distinguish one unfinished run from another
    "model", "device", "selectors", "budgets", "glance", "glance_selector", "format", "limit", "kinds", "seed", "seeds",
    "tokens", "evidence_only", "embeddings", "layer",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="compare selectors on a folder of questions",
        description=(
            "Let selectors answer the same questions with the same model, and compare how many answers stay right, whether "
            "the cells that show the answer were kept, and what it cost. Confidence intervals are computed over pictures."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("data", nargs="?", metavar="DATA", help="a folder with samples.jsonl, or in another --format")
    add("--model", default="reader", metavar="FOLDER", help="a model folder or hub id (the bundled reader)")
    add(
        "--selectors",
        nargs="+",
        metavar="NAME",
        help="selectors to compare, split by spaces or commas (all, random, uniform, ink, divprune, arr-coc)",
    )
    budgets = 'counts, shares or "mass 90%%" (25%% 12.5%% 6.25%%); "all" keeps all cells'
    add("--budgets", nargs="+", metavar="B", help=budgets)
    add("--glance", default="all", help="cells that the vision encoder encodes at all (all)")
    add(
        "--glance-selector",
        metavar="NAME",
        help="selector that chooses the cells to encode (the compared selector itself)",
    )
    add("--embeddings", metavar="NAME", help="an image-text encoder for selectors that need one (labels)")
    add(
        "--layer",
        default="auto",
        metavar="DIR",
        help="layer from arr-coc train, its hub id, universal, or none (the model's own, else universal)",
    )
    add("--format", default="samples", metavar="NAME", help="the layout of DATA (samples)")
    add("--kinds", nargs="+", metavar="KIND", help="only questions of these kinds (all)")
    add("--limit", type=int, metavar="N", help="only the first N pictures (all)")
    add("--seed", type=int, default=0, help="random seed (0)")
    add("--seeds", type=int, default=3, metavar="N", help="seeds of the random selector (3)")
    add("--tokens", type=int, default=160, metavar="N", help="longest answer in tokens (160)")
    add("--evidence-only", action="store_true", help="judge the kept cells, generate no answers")
    add("--device", default="cpu", help="cpu (the default) or cuda")
    add("--ray", type=int, metavar="N", help="measure in N worker processes of Ray (in this process)")
    add("--json", type=Path, metavar="FILE", help="write all numbers as JSON")
    page = "write a page with plots and the worst and best cases, and report.json for arr-coc demo"
    add("--report", type=Path, metavar="DIR", help=page)
    add("--plot", type=Path, metavar="FILE", help="write accuracy against tokens and time (matplotlib)")
    add("--run", type=Path, dest="run_folder", metavar="DIR", help="where an unfinished run is kept (the user's cache)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue an interrupted run (the default)")
    again.add_argument("--fresh", action="store_true", help="start again")
    add("--suite", choices=("robustness",), help="drawn cases in place of DATA")
    add("--photos", type=Path, metavar="DIR", help="with --suite: cases from a folder of photographs, too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.evaluation import Interrupted

    if (arguments.data is None) == (arguments.suite is None):
        raise ArrCocError(
            "expected a folder of questions or --suite robustness, exactly one of the two (see arr-coc eval --help)"
        )
    if arguments.photos is not None and arguments.suite is None:
        raise ArrCocError("expected --photos with --suite robustness: name a folder of questions as DATA")
    if arguments.suite is not None:
        given = [option for option, (name, default) in _NOT_WITH_SUITE.items() if getattr(arguments, name) != default]
        if given:
            raise ArrCocError(f"expected {given[0]} with a folder of questions, not with --suite: leave it out")
    for path in (arguments.json, arguments.plot):
        if path is not None:
            check_folder(check_file(path).parent)
            read = [place for place in (arguments.data, arguments.model, arguments.layer) if place is not None]
            if path.exists() and any(path.resolve().is_relative_to(Path(place).resolve()) for place in read):
                raise ArrCocError(f"{str(path)!r} exists inside what is read: choose a name outside of it")
    if arguments.report is not None:
        check_folder(arguments.report)
    if arguments.plot is not None:
        from arr_coc.evaluation.plots import check_suffix

        check_suffix(arguments.plot)
    check_device(arguments.device)
    keep_quiet()
    arguments.selectors = _split_commas(arguments.selectors)
    arguments.budgets = _split_commas(arguments.budgets)
    try:
        if arguments.format == "fixations":
            return _compare_fixations(arguments)
        if arguments.suite is None:
            return _compare(arguments)
        from arr_coc.evaluation.robustness import make_suite

        _evaluate(
            arguments, make_suite(photos=arguments.photos), ["25%"], _print_suite, seeds=1, answers=False
        )  # only kept cells are judged
        return 0
    except Interrupted as stopped:
        print(f"arr-coc: {stopped}", file=sys.stderr)
        return 130


def _split_commas(given: Sequence[str] | None) -> list[str] | None:
    """`a,b c` as `a`, `b`, `c`."""
    return None if given is None else [part.strip() for one in given for part in one.split(",") if part.strip()]


def _evaluate(
    arguments: argparse.Namespace,
    data: str | Data,
    budgets: Sequence[str],
    then: Callable[[Report, argparse.Namespace], None],
    **options: Any,
) -> Report:
    """Evaluate with a progress bar; `then` prints the report and writes the files, before a run's records are deleted."""
    from arr_coc.evaluation.runner import evaluate

    with progress() as bar:
        task = bar.add_task("loading the model", total=None)

        def finish(report: Report) -> None:
            bar.stop()
            print_problems(report.data.notes, "note", MORE)
            then(report, arguments)

        return evaluate(
            arguments.model,
            data,
            arguments.selectors,
            arguments.budgets or budgets,
            glance=arguments.glance,
            glance_selector=arguments.glance_selector,
            kinds=arguments.kinds,
            limit=arguments.limit,
            seed=arguments.seed,
            device=arguments.device,
            embeddings=arguments.embeddings,
            layer=None if arguments.layer == "none" else arguments.layer,
            tick=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
            then=finish,
            **options,
        )


def _compare(arguments: argparse.Namespace) -> int:
    from arr_coc.evaluation.entries import make_entries
    from arr_coc.evaluation.records import cache_folder, fingerprint
    from arr_coc.evaluation.runner import BUDGETS

    settings = {name: getattr(arguments, name) for name in _RUN_OPTIONS}
    settings["data"] = str(Path(arguments.data).resolve())
    sources = [entry.source for entry in make_entries(arguments.selectors)]
    report = _evaluate(
        arguments,
        arguments.data,
        BUDGETS,
        _print_report,
        format=arguments.format,
        seeds=arguments.seeds,
        tokens=arguments.tokens,
        answers=not arguments.evidence_only,
        workers=ray_workers(arguments),
        run=arguments.run_folder or cache_folder() / fingerprint(settings, sources),
        fresh=arguments.fresh,
    )
    print_problems(report.problems, "left out", MORE)
    invalid = [f"{one['selector']} at {one['budget']}" for one in report.records if not one["valid"]]
    print_problems(invalid, "invalid, because the selector failed", MORE)
    return 1 if report.problems or invalid else 0


def _compare_fixations(arguments: argparse.Namespace) -> int:
    """Saliency maps against human gaze."""
    from arr_coc.evaluation import fixations

    given = [option for option, (name, default) in _NOT_WITH_FIXATIONS.items() if getattr(arguments, name) != default]
    if given:
        raise ArrCocError(
            f"expected no {given[0]} with --format fixations, which compares maps and asks nothing: leave it out"
        )
    if arguments.limit is not None and arguments.limit < 1:
        raise ArrCocError(f"expected --limit of at least 1, got {arguments.limit}")
    with progress() as bar:
        task = bar.add_task("reading pictures", total=None)
        found = fixations.compare(
            arguments.data, arguments.limit, lambda done, name: bar.update(task, completed=done, description=name)
        )
    print(f"{found['pictures']} pictures, maps against fixations:\n\n{fixations.to_table(found)}")
    if arguments.json is not None:
        save_text(json.dumps(found, indent=2) + "\n", arguments.json)
    return 0


def _print_report(report: Report, arguments: argparse.Namespace) -> None:
    """Print the tables and write the files. If this fails, the run can still be continued."""
    from arr_coc.evaluation.report import format_count

    if report.resumed:
        print(f"arr-coc: resumed an interrupted run ({report.resumed} pictures were done)", file=sys.stderr)
    data = report.data
    asked = f"{format_count(data.questions, 'question')} about {format_count(len(data.pictures), 'picture')}"
    print(f"{report.model} on {data.name}: {asked}\n")
    print(report.table())
    if 1 < len(report.kinds) <= 12:
        print(report.table(kinds=True))
    if arguments.json is not None:
        save_text(report.to_json() + "\n", arguments.json)
    if arguments.plot is not None:
        report.plot(arguments.plot)
    if arguments.report is not None:
        print(f"page written to {report.page(arguments.report)}")


def _print_suite(report: Report, arguments: argparse.Namespace) -> None:
    from arr_coc.evaluation import robustness
    from arr_coc.evaluation.export import write_report
    from arr_coc.evaluation.page import render_suite

    print(f"{report.model}: drawn cases, passed by selector (what each case asks for: arr_coc.evaluation.robustness)\n")
    print(robustness.to_table(report))
    if arguments.json is not None:
        save_text(json.dumps(robustness.to_dict(report), indent=2) + "\n", arguments.json)
    if arguments.report is not None:
        print(f"page written to {write_report(report, render_suite(report), arguments.report)}")
