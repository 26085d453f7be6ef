"""The tab Report: what `arr-coc eval --report` wrote, and two such runs beside each other."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from arr_coc.demo import drawing, snippets
from arr_coc.demo.folders import inside
from arr_coc.demo.visit import Visit
from arr_coc.errors import DataError
from arr_coc.evaluation.summary import counted
from arr_coc.evaluation.table import p_value
from arr_coc.evaluation.written import Change, Written, beside, read, turned

Output = dict[str, Any]
TURNED = 40  # answers that are listed one by one


def report(visit: Visit) -> Iterator[Output]:
    """Outputs by name."""
    view = visit.view
    if not view.report.strip():
        raise DataError("there is no report here: name a folder that arr-coc eval --report wrote")
    first = _opened(visit, view.report)
    second = _opened(visit, view.against) if view.against.strip() else None
    found: Output = {"report": view.report, "numbers": {k: v for k, v in first.numbers.items() if k != "answers"}}
    beside_each_other = ""
    if second is not None:
        changes = beside(first, second)
        found |= {"against": view.against, "changes": [one.to_dict() for one in changes]}
        beside_each_other = _changes(first, second, changes)
    yield {
        "report_changes": beside_each_other,
        "report_page": _framed(first),
        "report_python": snippets.report(str(first.folder), "" if second is None else str(second.folder)),
        "report_json": json.dumps(found, indent=1),
        "report_link": view.query(),
    }


def _opened(visit: Visit, name: str) -> Written:
    return read(inside(visit.house.root, name, "a report's folder"))


def _framed(written: Written) -> str:
    """The report's own page in a frame that may run nothing; its braces are no templates of ours."""
    page = html.escape(written.page, quote=True).replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")
    return f"<iframe class='report' sandbox='' title='{drawing.text(written.title)}' srcdoc=\"{page}\"></iframe>"


def _changes(first: Written, second: Written, changes: list[Change]) -> str:
    on = "accuracy" if changes[0].on == "accuracy" else "evidence recall"
    rows = []
    for one in changes:
        told = "–" if one.difference is None else f"{one.difference:+.3f}"
        if one.ci is not None and one.p is not None:
            told += f" [{one.ci[0]:+.3f}, {one.ci[1]:+.3f}], p {p_value(one.p)}"
        rows.append([f"{one.selector} at {one.budget}", _share(one.first), _share(one.second), told, one.pictures])
    head = [on, first.folder.name, second.folder.name, "paired difference, 95% over pictures", "pictures"]
    moved = turned(first, second)
    lines = [
        f"{one['picture']} ({one['selector']} at {one['budget']}): {one['first']!r} became {one['second']!r}, "
        f"{'now right' if one['better'] else 'now wrong'}"
        for one in moved[:TURNED]
    ]
    better = sum(one["better"] for one in moved)
    said = (
        f"{counted(better, 'answer')} turned right, {counted(len(moved) - better, 'answer')} turned wrong."
        if moved
        else "No answer changed sides."
    )
    return f"{drawing.table(rows, head)}<p>{said}</p><details><summary>one by one</summary>{drawing.sentences(lines)}</details>"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
