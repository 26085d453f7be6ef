"""The tab Report: a report of `arr-coc eval --report`, and two of them compared."""

from __future__ import annotations

import json
from collections.abc import Iterator

from markupsafe import Markup

from arr_coc.demo import snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.inputs import resolve_folder
from arr_coc.demo.markup import macros
from arr_coc.errors import DataError
from arr_coc.evaluation.export import ReportChange, SavedReport, changed_answers, compare_reports, read_report
from arr_coc.evaluation.report import format_count, format_p

MAX_LISTED = 40  # changed answers that are listed


def run(request: PageRequest) -> Iterator[Output]:
    state = request.state
    if not state.report.strip():
        raise DataError("there is no report yet: name a folder that arr-coc eval --report wrote")
    first = _open(request, state.report)
    second = _open(request, state.against) if state.against.strip() else None
    found: Output = {"report": state.report, "numbers": {k: v for k, v in first.numbers.items() if k != "answers"}}
    comparison = ""
    if second is not None:
        changes = compare_reports(first, second)
        found |= {"against": state.against, "changes": [one.to_dict() for one in changes]}
        comparison = _comparison(first, second, changes)
    yield {
        "report_changes": comparison,
        "report_page": macros.report(first.title, first.page),
        "report_python": snippets.report(
            str(request.app.root / state.report.strip()),
            "" if second is None else str(request.app.root / state.against.strip()),
        ),
        "report_json": json.dumps(found, indent=1),
        "report_link": state.to_query(),
    }


def _open(request: PageRequest, name: str) -> SavedReport:
    return read_report(resolve_folder(request.app.root, name, "a report's folder"))


def _comparison(first: SavedReport, second: SavedReport, changes: list[ReportChange]) -> Markup:
    """A table with the paired differences, and the answers that became right or wrong."""
    metric = "accuracy" if changes[0].on == "accuracy" else "evidence recall"
    rows = []
    for one in changes:
        difference = "–" if one.difference is None else f"{one.difference:+.3f}"
        if one.ci is not None and one.p is not None:
            difference += f" [{one.ci[0]:+.3f}, {one.ci[1]:+.3f}], p {format_p(one.p)}"
        numbers = ["–" if value is None else f"{value:.3f}" for value in (one.first, one.second)]
        name = one.selector if one.selector == one.budget else f"{one.selector} at {one.budget}"  # "all" has one budget
        rows.append([name, *numbers, difference, one.pictures])
    head = [metric, first.folder.name, second.folder.name, "paired difference, 95% interval over images", "images"]
    changed = changed_answers(first, second)
    right = sum(one["better"] for one in changed)
    wrong = len(changed) - right
    summary = f"{format_count(right, 'answer')} became right, {format_count(wrong, 'answer')} became wrong."
    lines = [
        f"{one['picture']} ({one['selector']} at {one['budget']}): {one['first']!r} became {one['second']!r}, "
        f"{'now right' if one['better'] else 'now wrong'}"
        for one in changed[:MAX_LISTED]
    ]
    return macros.comparison(rows, head, summary if changed else "No answer became right or wrong.", lines)
