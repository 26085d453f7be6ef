"""A comparison as one HTML page that needs nothing beside itself: who leads, plots, all measures, and single cases."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from arr_coc.errors import ArrCocError
from arr_coc.evaluation import bars, cases, layers
from arr_coc.evaluation.curves import curves
from arr_coc.evaluation.style import CSS
from arr_coc.evaluation.summary import competing, counted, sentences
from arr_coc.evaluation.table import columns, filled, remarks

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

_METRICS = {
    "exact": "exact match",
    "vqa": "VQA accuracy",
    "anls": "ANLS",
    "yes_no": "yes or no",
}


def write(text: str, folder: Path) -> Path:
    """Write `index.html` into the folder, at once: a page that was there before stays until the new one is whole."""
    path = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        spare = path.with_suffix(".new")
        spare.write_text(text, encoding="utf-8")
        spare.replace(path)
    except OSError as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    return path


def page(report: Report) -> str:
    """The whole page as text."""
    pictures = layers.Pictures()
    shown = cases.section(report, pictures)
    answered = any(record["accuracy"] is not None for record in report.records)
    metric = (
        f"accuracy is {_METRICS[report.data.metric]}; " if answered else "nothing was answered, only cells are judged; "
    )
    first = "Of wrong answers those come first that the dense model gets right. " if answered else ""
    body = [
        f"<p>{counted(report.data.questions, 'question')} about {counted(len(report.data.pictures), 'picture')}; "
        f"{metric}intervals are 95% "
        "bootstrap intervals over pictures, p-values those of paired permutation tests over pictures.</p>",
        _short(report),
        "<h2>Who leads, by budget</h2>",
        bars.intervals(report),
        f"<h2>Against tokens{' and time' if answered else ''}</h2>",
        curves(report),
    ]
    why = bars.reasons(report)
    if why:
        body += ["<h2>Why answers are wrong</h2>", why]
    body += [
        bars.kinds(report),
        "<h2>All measures</h2><p class='quiet'>Times are those of one question asked alone, medians over pictures.</p>",
        _table(report),
        "<h2>Worst and best cases</h2><p class='quiet'>First the kept cells, then the selector's own score as warm colours; "
        f"red frames show where the answer stands. {first}A click enlarges.</p>",
        shown,
        _lines(report),
    ]
    return document(f"{report.model} on {report.data.name}", "".join(body), pictures)


def document(title: str, body: str, pictures: layers.Pictures) -> str:
    """A page around its body."""
    title = html.escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><title>{title}</title><style>{CSS}{pictures.css()}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>\n"
    )


def _short(report: Report) -> str:
    found = sentences(report)
    if not found:
        return ""
    items = "".join(f"<li><b>{html.escape(budget)}</b><span>{html.escape(said)}</span></li>" for budget, said in found)
    return f"<ul class='short'>{items}</ul>"


def _table(report: Report) -> str:
    """Every record, the leader of each budget in bold, rows that do not count struck through."""
    shown = filled(columns(report), report.records)
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading, _ in shown)
    leads = {id(ranked[0]) for b in {r["budget"] for r in report.records} if (ranked := competing(report, b))}
    rows = []
    for number, record in enumerate(report.records):
        names = []
        if number and record["budget"] != report.records[number - 1]["budget"]:
            names.append("first")
        if id(record) in leads:
            names.append("lead")
        if not record["valid"]:
            names.append("out")
        cells = "".join(f"<td>{html.escape(cells[number])}</td>" for _, cells in shown)
        rows.append(f"<tr class='{' '.join(names)}'>{cells}</tr>")
    notes = "".join(f"<p>{html.escape(line)}</p>" for line in remarks(report.records))
    return f"<div class='scroll'><table><tr>{head}</tr>{''.join(rows)}</table></div>{notes}"


def _lines(report: Report) -> str:
    said = (*report.problems, *report.data.notes)
    if not said:
        return ""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in said)
    return f"<h2>Lines left out or put right</h2><ul>{lines}</ul>"
