"""The robustness suite as one HTML page: who passed what, and every case with what each selector kept of it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from arr_coc.evaluation import layers, robustness
from arr_coc.evaluation.page import document

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report, Row

SIDE = 420  # of a drawn picture on the page
MARKS = {True: ("p", "✓"), False: ("f", "✗"), None: ("n", "–")}

Verdicts = dict[tuple[str, str], dict[str, list[bool | None]]]


def page(report: Report) -> str:
    """The whole page as text."""
    found = robustness.judge(report)
    pictures = layers.Pictures(SIDE)
    cases = [case for case in robustness.CASES if any(case in passed for passed in found.values())]
    body = [
        "<p>Drawn cases that ways of choosing stumble over. Cells alone are judged: what a model makes of them is another "
        "question.</p>",
        _matrix(found, cases),
        "<p class='quiet'>✓ passed, ✗ failed, – not judged (a smaller picture holds every place; or the evidence is more "
        "than the budget). One mark a variant.</p>",
        *(_case(report, case, pictures) for case in cases),
    ]
    return document(f"{report.model}: robustness", "".join(body), pictures)


def _matrix(found: Verdicts, cases: list[str]) -> str:
    """Cases by selectors, best first."""
    head = "".join(f"<th>{html.escape(case)}</th>" for case in cases)
    rows = []
    ranked = sorted(found.items(), key=lambda item: -_passed(item[1]))
    for (selector, budget), passed in ranked:
        cells = "".join(_cell(passed.get(case, [])) for case in cases)
        judged = sum(one is not None for some in passed.values() for one in some)
        total = f"{_passed(passed)} of {judged}" if judged else "not judged"
        rows.append(
            f"<tr><td>{html.escape(selector)}</td><td>{html.escape(budget)}</td>{cells}<td><b>{total}</b></td></tr>"
        )
    return (
        f"<div class='scroll'><table class='matrix'><tr><th>selector</th><th>budget</th>{head}<th>passed</th></tr>"
        f"{''.join(rows)}</table></div>"
    )


def _passed(cases: dict[str, list[bool | None]]) -> int:
    return sum(one is True for some in cases.values() for one in some)


def _cell(some: list[bool | None]) -> str:
    marks = "".join(f"<span class='{MARKS[one][0]}'>{MARKS[one][1]}</span>" for one in some)
    judged = [one for one in some if one is not None]
    kind = "" if not judged else " class='all-p'" if all(judged) else "" if any(judged) else " class='all-f'"
    return f"<td{kind}>{marks}</td>"


def _case(report: Report, case: str, pictures: layers.Pictures) -> str:
    """One case: what it asks for, and what was kept of its first variant; the others on demand."""
    mine = [picture for picture in report.data.pictures if picture.samples[0].kind == case]
    galleries = []
    for picture in mine:
        rows = report.rows[picture.name]
        shown = "".join(_figure(picture.name, row, report, pictures) for row in rows)
        galleries.append(f"<div class='gallery'>{shown}</div>")
    sample = mine[0].samples[0]
    more = ""
    if len(galleries) > 1:
        more = f"<details><summary>{len(galleries) - 1} more</summary>{'<hr>'.join(galleries[1:])}</details>"
    return (
        f"<h2>{html.escape(case)}</h2><p>{html.escape(robustness.PASSED_WHEN[case])} "
        f"<span class='quiet'>Asked: {html.escape(sample.question)}</span></p>{galleries[0]}{more}"
    )


def _figure(name: str, row: Row, report: Report, pictures: layers.Pictures) -> str:
    picture = next(one for one in report.data.pictures if one.name == name)
    mark, sign = MARKS[robustness.passed(picture, row)]
    layer = layers.kept(row) if row.get("keep") else ""
    recall = "" if row.get("recall") is None else f" <span class='quiet'>{row['recall']:.2f}</span>"
    return (
        f"<figure>{layers.pane(picture, row, layer, pictures, words='kept cells')}<figcaption class='matrix'>"
        f"<span class='{mark}'>{sign}</span> {html.escape(row['selector'])}{recall}</figcaption></figure>"
    )
