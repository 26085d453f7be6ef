"""Single cases for a page: a selector's worst and best answers, what it kept, where it looked, and why it failed."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.evaluation import layers
from arr_coc.evaluation.contestants import DENSE, ORACLE, RANDOM
from arr_coc.evaluation.data import Picture
from arr_coc.evaluation.failures import dense_rows, outcome
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.evaluation.notation import from_views, released, unpacked
from arr_coc.evaluation.summary import measure
from arr_coc.evaluation.table import share

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

WORST, BEST = 4, 2  # cases of each selector

Row = Mapping[str, Any]
Record = dict[str, Any]
Case = tuple[Picture, Row, Row | None]  # a picture, an answer about it, and the dense model's


def section(report: Report, pictures: layers.Pictures) -> str:
    """Of every selector that decides something: its worst answers with most tokens, and its best with fewest."""
    what = measure(report)
    by_name: dict[str, list[Record]] = {}
    for record in report.records:
        if record["selector"] not in (DENSE, RANDOM):
            by_name.setdefault(record["selector"], []).append(record)
    parts: list[str] = []

    def standing(item: tuple[str, list[Record]]) -> tuple[bool, float]:
        return item[0] == ORACLE, -sum(record[what] or 0.0 for record in item[1])

    for name, records in sorted(by_name.items(), key=standing):
        large, small = max(records, key=lambda r: r["kept"]), min(records, key=lambda r: r["kept"])
        worst = [case for case in ranked(report, name, large["budget"]) if _failed(case)]
        best = [case for case in reversed(ranked(report, name, small["budget"])) if not _failed(case)]
        groups = (("Worst", large, _in_turn(worst, WORST)), ("Best", small, _in_turn(best, BEST)))
        scores = ", ".join(f"{share(r[what])} at {html.escape(r['budget'])}" for r in records if r[what] is not None)
        shown = "".join(
            f"<h4>{heading} at {html.escape(record['budget'])}</h4><div class='cases'>"
            f"{''.join(_case(one, pictures) for one in some)}</div>"
            for heading, record, some in groups
            if some
        )
        about = _about(name, [case for _, _, some in groups for case in some])
        opened = " open" if not parts else ""
        parts.append(
            f"<details{opened}><summary><b>{html.escape(name)}</b> <span class='quiet'>{scores}</span></summary>"
            f"{about}{shown}</details>"
        )
    return "".join(parts)


def ranked(report: Report, name: str, budget: str) -> list[Case]:
    """A selector's answers from the worst to the best; of wrong ones first those that the dense model gets right."""
    found: list[Case] = []
    known = {picture.name: picture for picture in report.data.pictures}
    for picture, rows in report.rows.items():
        dense = dense_rows(rows)
        found += [
            (known[picture], row, dense.get(row["question"]))
            for row in rows
            if (row["selector"], row["budget"]) == (name, budget)
        ]
    return sorted(found, key=_worth)


def _failed(case: Case) -> bool:
    row = case[1]
    if row.get("accuracy") is not None:
        return outcome(row, None) != "right"
    return (row.get("recall") or 0.0) < 1


def _worth(case: Case) -> tuple[float, ...]:
    _, row, dense = case
    behind = -1.0 if dense is not None and outcome(row, dense) in ("lost", "misread", "unknown") else 0.0
    recall = row.get("recall")
    return row.get("accuracy") or 0.0, behind, -1.0 if recall is None else recall, row.get("anls") or 0.0


def _in_turn(ranked: Sequence[Case], count: int) -> list[Case]:
    """The first of each picture, then the second of each, in the order of their ranks."""
    turns: dict[str, int] = {}
    places = []
    for rank, case in enumerate(ranked):
        turn = turns[case[0].name] = turns.get(case[0].name, -1) + 1
        places.append((turn, rank))
    return [ranked[rank] for _, rank in sorted(places)[:count]]


def _about(name: str, cases: Sequence[Case]) -> str:
    """What the warm colours mean, or that there are none."""
    told = next((row["heat_of"] for _, row, _ in cases if row.get("heat")), None)
    if name == ORACLE:
        said = "The oracle knows where the answer stands: an upper bound, not a method. Warm: how much of a cell is evidence."
    elif not any(row.get("keep") for _, row, _ in cases):
        said = "This selector shows the whole picture smaller: it drops no cells."
    elif told is None:
        said = "This selector gives its cells no scores, so there is no heat to show."
    elif told == "relevance":
        said = "Warm: what the selector thinks a cell is worth."
    else:
        said = f"Warm: the selector's {told!r} of each cell."
    return f"<p class='quiet'>{html.escape(said)}</p>"


def _case(case: Case, pictures: layers.Pictures) -> str:
    picture, row, _ = case
    sample = picture.samples[row["question"]]
    moments = layers.moments(picture, row) if picture.kind == "video" else [0]
    panes = "".join(
        layers.pane(picture, row, layers.kept(row, m) if row.get("keep") else "", pictures, m, "kept cells")
        for m in moments
    )
    if row.get("heat"):
        panes += "".join(layers.pane(picture, row, layers.heat(row, m), pictures, m, "heat") for m in moments)
    said = wanted = ""
    if row["said"] is not None:
        right = outcome(row, None) == "right"
        words = html.escape(row["said"]) or "(nothing)"
        said = f"<span class='{'right' if right else 'wrong'}'>{'✓' if right else '✗'} {words}</span><br>"
        if not right and sample.answers:
            wanted = f"<span class='wanted'>{html.escape(' / '.join(dict.fromkeys(sample.answers)))}</span><br>"
    return (
        f"<figure class='case{' film' if len(moments) > 1 else ''}'><label><input type='checkbox' hidden><div class='panes'>{panes}</div></label>"
        f"<figcaption><b>{html.escape(sample.question)}</b><br>{said}{wanted}{html.escape(why(case))}<br>"
        f"<span class='quiet'>{html.escape(picture.name)}, {row['kept']} of {row['all']} tokens</span></figcaption></figure>"
    )


def why(case: Case) -> str:
    """One or two sentences: was the evidence kept, how did the selector rank it, and does the dense model do better."""
    picture, row, dense = case
    if row["fallback"]:
        return f"The selector failed, and evenly spaced cells were used: {row['fallback']}."
    said = []
    grid = from_views(row["grid"])
    if not row.get("keep"):
        return _beside_dense(row, dense)
    groups = evidence_cells(picture.samples[row["question"]].evidence, grid, picture.size, len(picture.frames))
    groups = [group for group in groups if len(group)]
    if not groups:
        said.append("The data do not say where the answer stands.")
    else:
        keep = unpacked(row["keep"], grid.n)
        best = max(groups, key=lambda group: float(torch.isin(group, keep).double().mean()))
        held = int(torch.isin(best, keep).sum())
        said.append(_held(held, len(best)))
        if row.get("heat") and held < len(best):
            said.append(_rank(released(row["heat"]), best))
    said.append(_beside_dense(row, dense))
    return " ".join(part for part in said if part)


def _beside_dense(row: Row, dense: Row | None) -> str:
    if dense is None or dense is row or outcome(row, None) in (None, "right"):
        return ""
    told = outcome(row, dense)
    if told == "dense too":
        return f"The dense model errs as well: {dense['said']!r}."
    return "Enough to read from: the dense model is right." if told == "misread" else "The dense model is right."


def _held(held: int, total: int) -> str:
    if total == 1:
        return f"The cell that shows the answer was {'' if held else 'not '}kept."
    count = "None of the" if held == 0 else "All" if held == total else f"{held} of the"
    return f"{count} {total} cells that show the answer {'was' if held < 2 else 'were'} kept."


def _rank(heat: torch.Tensor, group: torch.Tensor) -> str:
    """Where the evidence stands in the selector's own order."""
    before = int((heat > heat[group].max()).sum())
    level = int((heat == heat[group].max()).sum())
    place = f"{before + 1}" if level == 1 else f"{before + 1} to {before + level}"
    return f"By its own score the best of them is number {place} of {len(heat)}."
