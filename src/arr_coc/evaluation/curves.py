"""Accuracy against tokens and against time as SVG for a page: it takes its colours from the page, and needs no library."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from arr_coc.evaluation.contestants import DENSE, ORACLE
from arr_coc.evaluation.summary import measure
from arr_coc.evaluation.table import share

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

AXES = (("read", "visual tokens that a language layer reads"), ("answer_ms", "milliseconds for one question"))
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 380, 46, 14, 12, 46

Record = dict[str, Any]


def curves(report: Report) -> str:
    """Both plots with one key; pointing at a name dims the others."""
    what = measure(report)
    names = list(dict.fromkeys(record["selector"] for record in report.records if record[what] is not None))
    plots = "".join(
        _plot(report, what, along, label, names)
        for along, label in AXES
        if all(record[along] is not None for record in report.records)
    )
    key = "".join(
        f"<span class='s{n}'><i style='background:{colour(n)}'></i>{html.escape(name)}</span>"
        for n, name in enumerate(names)
    )
    dim = "".join(f".curves:has(.s{n}:hover) g:not(.s{n}):not(.axes){{opacity:.12}}" for n in range(len(names)))
    return f"<style>{dim}</style><div class='curves'><div class='plots'>{plots}</div><p class='key'>{key}</p></div>"


def colour(number: int) -> str:
    """Hues as far apart as can be, readable on light and on dark."""
    return f"hsl({round(number * 137.508 + 8) % 360} 62% {(46, 56, 51)[number % 3]}%)"


def _plot(report: Report, what: str, along: str, label: str, names: Sequence[str]) -> str:
    values = [record[along] for record in report.records if record[what] is not None]
    across, ticks = _scale(values, along == "read")
    lines = "".join(
        f"<line class='tick' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{_down(v):.1f}' y2='{_down(v):.1f}'/>"
        f"<text x='{LEFT - 7}' y='{_down(v) + 4:.1f}' text-anchor='end'>{v:g}</text>"
        for v in (0, 0.2, 0.4, 0.6, 0.8, 1)
    )
    lines += "".join(
        f"<text x='{across(v):.1f}' y='{HEIGHT - BOTTOM + 18}' text-anchor='middle'>{v:,.0f}</text>" for v in ticks
    )
    told = "accuracy" if what == "accuracy" else "evidence recall"
    lines += (
        f"<text x='{(LEFT + WIDTH - RIGHT) / 2}' y='{HEIGHT - 6}' text-anchor='middle'>{label}</text>"
        f"<text transform='translate(12 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)' text-anchor='middle'>{told}</text>"
    )
    drawn = "".join(_line(report, name, number, what, along, across) for number, name in enumerate(names))
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{told} against {label}'>"
        f"<g class='axes'>{lines}</g>{drawn}</svg>"
    )


def _line(
    report: Report, name: str, number: int, what: str, along: str, across: Callable[[float], float]
) -> str:  # fmt: skip
    points = sorted(
        (r for r in report.records if r["selector"] == name and r[what] is not None), key=lambda r: r["read"]
    )
    tone = colour(number)
    if name == DENSE:
        y = _down(points[0][what])
        rule = f"<line class='dense' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
    else:
        rule = ""
    path = " ".join(f"{across(r[along]):.1f},{_down(r[what]):.1f}" for r in points)
    dashes = " stroke-dasharray='5 4'" if name == ORACLE else ""
    marks = ""
    for record in points:
        x, y = across(record[along]), _down(record[what])
        low, high = record[f"{what}_ci"] or (record[what], record[what])
        title = f"{name} at {record['budget']}: {share(record[what], (low, high))}, {record[along]:,.0f}"
        marks += (
            f"<line class='whisker' x1='{x:.1f}' x2='{x:.1f}' y1='{_down(low):.1f}' y2='{_down(high):.1f}'/>"
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.6'><title>{html.escape(title)}</title></circle>"
        )
    return f"<g class='s{number}' style='--tone:{tone}'>{rule}<polyline points='{path}'{dashes}/>{marks}</g>"


def _down(value: float) -> float:
    return HEIGHT - BOTTOM - max(0.0, min(1.0, value)) * (HEIGHT - BOTTOM - TOP)


def _scale(values: Sequence[float], doubling: bool) -> tuple[Callable[[float], float], list[float]]:
    """From a value to its place, and the ticks; budgets are halved from row to row, so their axis counts doublings."""
    room = WIDTH - LEFT - RIGHT
    if doubling:
        ends = [math.log2(max(value, 1)) for value in (min(values), max(values))]
        ticks: list[float] = []
        for value in sorted({float(round(value)) for value in values}):
            if not ticks or value > 1.25 * ticks[-1]:
                ticks.append(value)
    else:
        ends = [min(values), max(values)]
        step = 10 ** math.floor(math.log10(max(ends[1] - ends[0], 1e-3)))
        step *= next(many for many in (0.2, 0.5, 1, 2, 5) if (ends[1] - ends[0]) / (many * step) <= 6)
        ticks = [step * n for n in range(math.ceil(ends[0] / step), math.floor(ends[1] / step) + 1)]
    margin = 0.05 * (ends[1] - ends[0]) or 1.0
    low, high = ends[0] - margin, ends[1] + margin

    def across(value: float) -> float:
        place = math.log2(max(value, 1)) if doubling else value
        return LEFT + (place - low) / (high - low) * room

    return across, ticks
