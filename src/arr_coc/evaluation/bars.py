"""Panels of a page that are made of boxes and lines in HTML: intervals by budget, reasons for wrong answers, kinds."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arr_coc.evaluation.contestants import DENSE, ORACLE
from arr_coc.evaluation.failures import OUTCOMES
from arr_coc.evaluation.summary import SURE, measure
from arr_coc.evaluation.table import share

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

Record = dict[str, Any]

_AXIS = "<div class='bar axis'><span></span><div><span>0</span><span>.5</span><span>1</span></div><span></span></div>"
_TOLD = {
    "right": "right",
    "lost": "wrong, evidence lost",
    "misread": "wrong although it was kept",
    "unknown": "wrong, evidence unknown",
    "dense too": "wrong with all tokens, too",
}


def intervals(report: Report) -> str:
    """A panel for each budget: selectors best first, a dot with its interval, the dense model as a line through all."""
    what = measure(report)
    dense = next((record for record in report.records if record["selector"] == DENSE), None)
    line = "" if dense is None or dense[what] is None else f"<i class='dense' style='left:{_at(dense[what])}'></i>"
    panels = []
    for budget in _budgets(report):
        rows = [r for r in report.records if r["budget"] == budget and r["selector"] != DENSE and r[what] is not None]
        rows.sort(key=lambda record: -record[what])
        shown = "".join(_interval(record, what, line) for record in rows)
        panels.append(f"<div class='panel'><h3>{html.escape(budget)} of the tokens</h3>{_AXIS}{shown}</div>")
    words = "accuracy" if what == "accuracy" else "evidence recall"
    known = "" if not line else f" The line is the dense model's {share(dense[what])}." if dense is not None else ""
    return (
        f"<p class='quiet'>{words.capitalize()} with 95% intervals.{known} Pale: behind the leader with p &lt; {SURE:g}. "
        f"Hollow: the oracle, which knows where the answer stands.</p><div class='panels'>{''.join(panels)}</div>"
    )


def _interval(record: Record, what: str, line: str) -> str:
    low, high = record[f"{what}_ci"] or (record[what], record[what])
    versus = record["versus"]
    behind = versus is not None and versus["difference"] < 0 and versus["p"] < SURE
    kind = " hollow" if record["selector"] == ORACLE else " behind" if behind else ""
    wrong = "invalid" if not record["valid"] else "over" if record["over_budget"] else ""
    return (
        f"<div class='bar{kind}'><span>{html.escape(record['selector'])}{f' <em>{wrong}</em>' if wrong else ''}</span>"
        f"<div class='track'>{line}<i class='span' style='left:{_at(low)};width:{_at(high - low)}'></i>"
        f"<i class='dot' style='left:{_at(record[what])}'></i></div><span class='number'>{share(record[what])}</span></div>"
    )


def reasons(report: Report) -> str:
    """For each budget and selector, how many answers are right, and why the others are wrong; the dense model on top."""
    if not any(record["outcomes"] for record in report.records):
        return ""
    there = [name for name in OUTCOMES if any((r["outcomes"] or {}).get(name) for r in report.records)]
    key = "".join(f"<span><i class='{_class(name)}'></i>{_TOLD[name]}</span>" for name in there)
    dense = [record for record in report.records if record["selector"] == DENSE and record["outcomes"]]
    panels = []
    for budget in _budgets(report):
        rows = [r for r in report.records if r["budget"] == budget and r["selector"] != DENSE and r["outcomes"]]
        rows.sort(key=lambda record: -record["outcomes"]["right"])
        shown = "".join(_parts(record, there) for record in [*dense, *rows])
        panels.append(f"<div class='panel'><h3>{html.escape(budget)} of the tokens</h3>{shown}</div>")
    return f"<p class='key'>{key}</p><div class='panels'>{''.join(panels)}</div>"


def _parts(record: Record, names: Iterable[str]) -> str:
    found = record["outcomes"]
    said = ", ".join(f"{_TOLD[name]} {share(found[name])}" for name in names if found.get(name))
    parts = "".join(
        f"<i class='{_class(name)}' style='width:{_at(found[name])}'></i>" for name in names if found.get(name)
    )
    return (
        f"<div class='bar' title='{html.escape(said)}'><span>{html.escape(record['selector'])}</span>"
        f"<div class='stack'>{parts}</div><span class='number'>{share(found['right'])}</span></div>"
    )


def kinds(report: Report) -> str:
    """Selectors by kinds of questions, the better the deeper the colour; a table for each budget."""
    what = measure(report)
    names = sorted({kind for record in report.records for kind in record["by_kind"]})
    if len(names) < 2:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    dense = [record for record in report.records if record["selector"] == DENSE]
    panels = []
    for budget in _budgets(report):
        rows = "".join(
            f"<tr><td>{html.escape(r['selector'])}</td>"
            + "".join(_shade(r["by_kind"].get(name, {}), what) for name in names)
            + "</tr>"
            for r in [*dense, *(r for r in report.records if r["budget"] == budget and r["selector"] != DENSE)]
        )
        panels.append(
            f"<div class='panel'><h3>{html.escape(budget)} of the tokens</h3><div class='scroll'><table class='kinds'>"
            f"<tr><th>selector</th>{head}</tr>{rows}</table></div></div>"
        )
    told = "Accuracy, and small beside it the evidence recall." if what == "accuracy" else "Evidence recall."
    return f"<h2>By kind of question</h2><p class='quiet'>{told}</p><div class='panels'>{''.join(panels)}</div>"


def _shade(found: Record, what: str) -> str:
    value = found.get(what)
    if value is None:
        return "<td></td>"
    recall = found.get("evidence_recall") if what == "accuracy" else None
    beside = "" if recall is None else f" <small>{share(recall)}</small>"
    return f"<td style='--v:{round(100 * value)}%'>{share(value)}{beside}</td>"


def _budgets(report: Report) -> list[str]:
    return list(dict.fromkeys(r["budget"] for r in report.records if r["selector"] != DENSE))


def _class(outcome: str) -> str:
    return outcome.replace(" ", "-")


def _at(value: float) -> str:
    return f"{100 * max(0.0, min(1.0, value)):.1f}%"
