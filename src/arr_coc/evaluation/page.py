"""A comparison as one HTML page that needs nothing beside itself: tables, plots, and single cases with the kept cells lit."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from arr_coc.allocation import Allocation
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.contestants import DENSE, ORACLE, RANDOM
from arr_coc.evaluation.data import Picture, Sample
from arr_coc.evaluation.measuring import from_views, unpacked
from arr_coc.evaluation.plots import svg
from arr_coc.texture.image import read_picture

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report, Row

CASES = 4  # best and worst of each selector
SIDE = 420  # longest side of a shown picture, in pixels

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem;color:#1c1c1c;background:#fff}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}th,td{padding:3px 9px;text-align:right;
border-bottom:1px solid #ddd;white-space:nowrap}th:first-child,td:first-child{text-align:left}th{background:#f4f4f2}
.cases{display:flex;flex-wrap:wrap;gap:14px}.case{width:250px;font-size:13px}.case img{max-width:250px;max-height:330px}
.right{color:#18733a}.wrong{color:#a8201a}h2{margin-top:2.2rem}svg{max-width:100%;height:auto}small{color:#666}
"""


def write(report: Report, folder: Path) -> Path:
    """Write `index.html` into the folder."""
    path = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page(report))
    except OSError as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    return path


def page(report: Report) -> str:
    title = f"{report.model} on {report.data.name}"
    try:
        plots = svg(report)
    except ArrCocError as error:  # the rest of the page is worth having
        plots = f"<p>{html.escape(str(error))}</p>"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{report.data.questions} questions about {len(report.data.pictures)} pictures; accuracy is "
        f"{html.escape(report.data.metric)}, intervals are 95% over pictures, times are those of one question.</p>",
        _table(report.table()),
        "<h2>Accuracy against tokens and time</h2>",
        plots,
        "<h2>By kind of question</h2><p>Accuracy, and in brackets the evidence recall.</p>",
        _table(report.table(kinds=True)),
        *_cases(report),
    ]
    if report.problems or report.data.notes:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in (*report.problems, *report.data.notes))
        parts.append(f"<h2>Lines left out or put right</h2><ul>{lines}</ul>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _table(markdown: str) -> str:
    """Our own markdown tables as HTML, and the lines behind them as paragraphs."""
    head, _, *rest = markdown.strip().split("\n")
    rows = [line for line in rest if line.startswith("|")]
    said = [line for line in rest if line and not line.startswith("|")]

    def cells(line: str, tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell.strip())}</{tag}>" for cell in line.strip("|").split("|"))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    notes = "".join(f"<p>{html.escape(line)}</p>" for line in said)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>{notes}"


def _cases(report: Report) -> list[str]:
    """Best and worst cases of every selector that decides something, at the smallest budget it was run with."""
    parts: list[str] = []
    pictures = {picture.name: picture for picture in report.data.pictures}
    names = dict.fromkeys(record["selector"] for record in report.records)
    for name in names:
        if name in (DENSE, RANDOM):
            continue
        budget = min((r for r in report.records if r["selector"] == name), key=lambda r: r["kept"])["budget"]
        found = [
            (picture, row)
            for picture, rows in report.rows.items()
            for row in rows
            if (row["selector"], row["budget"]) == (name, budget) and row.get("keep")
        ]
        ranked = sorted(found, key=_worth)
        worst, best = ranked[:CASES], ranked[max(CASES, len(ranked) - CASES) :][::-1]
        for heading, some in (("worst", worst), ("best", best)):
            if some:
                shown = "".join(_case(pictures[picture], row) for picture, row in some)
                parts.append(
                    f"<h2>{html.escape(name)} at {html.escape(budget)}: {heading} cases</h2><div class='cases'>{shown}</div>"
                )
    if ORACLE in names:
        parts.append("<p><small>The oracle knows where the answer stands: an upper bound, not a method.</small></p>")
    return parts


def _worth(case: tuple[str, Row]) -> tuple[float, float]:
    row = case[1]
    recall = row.get("recall")
    return (row.get("accuracy") or 0.0) + (row.get("anls") or 0.0), -1.0 if recall is None else recall


def _case(picture: Picture, row: Row) -> str:
    sample: Sample = picture.samples[row["question"]]
    right = bool(row.get("accuracy"))
    said = (
        "" if row["said"] is None else f"<b class='{'right' if right else 'wrong'}'>{html.escape(row['said'])}</b><br>"
    )
    wanted = (
        f"<small>expected {html.escape(' / '.join(dict.fromkeys(sample.answers)))}</small><br>"
        if sample.answers
        else ""
    )
    recall = "" if row.get("recall") is None else f", evidence recall {row['recall']:.2f}"
    return (
        f"<div class='case'><img alt='kept cells' src='{_uri(overlay(picture, row))}'><br>{html.escape(sample.question)}<br>"
        f"{said}{wanted}<small>{html.escape(picture.name)}, {row['kept']} of {row['all']} tokens{recall}</small></div>"
    )


def overlay(picture: Picture, row: Mapping[str, Any], colour: tuple[int, int, int] = (230, 60, 40)) -> Image.Image:
    """The picture with its kept cells lit and the evidence framed."""
    from PIL import ImageDraw

    grid = from_views(row["grid"])
    keep = unpacked(row["keep"], grid.n)
    allocation = Allocation(grid, keep, torch.arange(grid.n), row["selector"], picture.size)
    image = read_picture(picture.image, max_side=1280).pixels
    lit = allocation.overlay(image)
    scale = (lit.width / picture.size[0], lit.height / picture.size[1])
    pen = ImageDraw.Draw(lit)
    for group in picture.samples[row["question"]].evidence:
        for box in group:
            pen.rectangle([side * scale[i % 2] for i, side in enumerate(box)], outline=colour, width=3)
    return lit


def _uri(image: Image.Image) -> str:
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
