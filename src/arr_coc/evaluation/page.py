"""A comparison, or the robustness suite, as one HTML page that loads nothing else.

The templates in `html/` draw what this module computes. Every picture is in the page once. What was kept, and the heat of
each cell, are small images over it with one pixel per cell, which the browser enlarges; evidence is drawn as lines.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from PIL import Image

from arr_coc.draw import overlay
from arr_coc.evaluation import robustness
from arr_coc.evaluation.data import PictureQuestions
from arr_coc.evaluation.entries import DENSE, ORACLE, RANDOM
from arr_coc.evaluation.measure import grid_from_lists, restore, unpack_cells
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.evaluation.plots import measured_axes, series_of
from arr_coc.evaluation.report import (
    OUTCOMES,
    SIGNIFICANT,
    Record,
    Report,
    Row,
    classify_outcome,
    dense_rows,
    format_count,
    format_share,
)
from arr_coc.types.grid import WHOLE, Cells, Grid, by_moment, split_views
from arr_coc.types.image import read_picture

SIDE, SUITE_SIDE = 640, 420  # longest side of a picture, in pixels
PIXELS_PER_CELL = 8  # where views overlap
DROPPED_ALPHA, HEAT_ALPHA = 0.72, 0.85  # opacity over a dropped cell, and over the hottest one
MAX_MOMENTS = 3  # of a video
WORST, BEST = 4, 2  # cases of each selector
LEFT, WIDTH = 46, 500  # of the drawing area in a plot

Case = tuple[PictureQuestions, Row, Row | None]  # a picture, an answer about it, and the dense model's answer


def render_report(report: Report) -> str:
    """The page of a comparison."""
    thumbnails = Thumbnails(SIDE)
    return _template("report.html").render(
        thumbnails=thumbnails,
        report=report,
        series=list(series_of(report)),
        plots=_make_plots(report),
        leaders=[record for budget in report.budgets for record in report.rank(budget)[:1]],
        selectors=_selector_cases(report, thumbnails),
    )


def render_suite(report: Report) -> str:
    """The page of the robustness suite: who passed what, and what each selector kept of every case."""
    thumbnails = Thumbnails(SUITE_SIDE)
    verdicts = robustness.judge(report)
    cases = [case for case in robustness.PASSED_WHEN if any(case in passed for passed in verdicts.values())]
    galleries: dict[str, list[Any]] = {case: [] for case in cases}
    for one in report.data.pictures:
        rows = report.rows[one.name]
        shown = [
            (robustness.judge_row(one, row), row, make_pane(one, row, kept_layer(row), thumbnails)) for row in rows
        ]
        galleries[one.samples[0].kind].append(shown)
    passes = {key: sum(one is True for some in passed.values() for one in some) for key, passed in verdicts.items()}
    return _template("suite.html").render(
        thumbnails=thumbnails,
        report=report,
        cases=cases,
        verdicts=sorted(verdicts.items(), key=lambda item: -passes[item[0]]),
        questions={one.samples[0].kind: one.samples[0].question for one in report.data.pictures},
        passed_when={case: robustness.PASSED_WHEN[case] for case in cases},
        galleries=galleries,
    )


@cache
def _template(name: str) -> Template:
    loader = FileSystemLoader(Path(__file__).parent / "html")
    found = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    found.filters |= {"share": format_share, "number_of": format_count, "px": "{:.1f}".format}
    found.globals |= {"DENSE": DENSE, "ORACLE": ORACLE, "OUTCOMES": OUTCOMES, "SIGNIFICANT": SIGNIFICANT}
    return found.get_template(name)


def _make_plots(report: Report) -> list[dict[str, Any]]:
    """For each axis its label, the ticks, and the points of each selector."""
    metric = report.main_metric
    plots = []
    by_name = series_of(report)
    for along, label in measured_axes(report):
        x_of, ticks = _scale([r[along] for records in by_name.values() for r in records], logarithmic=along == "read")
        series: dict[str, list[Any]] = {name: [] for name in by_name}
        for name, records in by_name.items():
            for record in records:
                bounds = record[f"{metric}_ci"] or (record[metric], record[metric])
                text = f"{name} at {record['budget']}: {format_share(record[metric], bounds)}, {record[along]:,.0f}"
                series[name].append((x_of(record[along]), record[metric], bounds, text))
        plots.append({"label": label, "ticks": [(x_of(tick), f"{tick:,.0f}") for tick in ticks], "series": series})
    return plots


def _scale(values: Sequence[float], logarithmic: bool) -> tuple[Callable[[float], float], list[float]]:
    """From a value to its x coordinate, and the ticks; budgets are halved from row to row, so their axis is logarithmic."""
    if logarithmic:
        ends = [math.log2(max(value, 1)) for value in (min(values), max(values))]
        ticks: list[float] = []
        for value in sorted({float(round(value)) for value in values}):
            if not ticks or value > 1.25 * ticks[-1]:
                ticks.append(value)
    else:
        ends = [min(values), max(values)]
        step = 10 ** math.floor(math.log10(max(ends[1] - ends[0], 1e-3)))
        step *= next(factor for factor in (0.2, 0.5, 1, 2, 5) if (ends[1] - ends[0]) / (factor * step) <= 6)
        ticks = [step * n for n in range(math.ceil(ends[0] / step), math.floor(ends[1] / step) + 1)]
    margin = 0.05 * (ends[1] - ends[0]) or 1.0
    low, high = ends[0] - margin, ends[1] + margin

    def x_of(value: float) -> float:
        place = math.log2(max(value, 1)) if logarithmic else value
        return LEFT + (place - low) / (high - low) * WIDTH

    return x_of, ticks


def _selector_cases(report: Report, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """For every selector but the dense model and random: its worst answers at the largest budget, its best at the smallest."""
    metric = report.main_metric
    by_name: dict[str, list[Record]] = {}
    for record in report.records:
        if record["selector"] not in (DENSE, RANDOM):
            by_name.setdefault(record["selector"], []).append(record)

    def rank(item: tuple[str, list[Record]]) -> tuple[bool, float]:
        return item[0] == ORACLE, -sum(record[metric] or 0.0 for record in item[1])

    found = []
    for name, records in sorted(by_name.items(), key=rank):
        large, small = max(records, key=lambda r: r["kept"]), min(records, key=lambda r: r["kept"])
        groups = []
        for heading, record, failed, count in (("Worst", large, True, WORST), ("Best", small, False, BEST)):
            ranked = [case for case in rank_cases(report, name, record["budget"]) if _is_failure(case) is failed]
            if cases := _spread_over_pictures(ranked if failed else ranked[::-1], count):
                groups.append((heading, record["budget"], cases))
        scores = [f"{format_share(r[metric])} at {r['budget']}" for r in records if r[metric] is not None]
        found.append(
            {
                "name": name,
                "scores": ", ".join(scores),
                "rows": [row for _, _, cases in groups for _, row, _ in cases],
                "groups": [
                    (heading, at, [_make_case(one, thumbnails) for one in cases]) for heading, at, cases in groups
                ],
            }
        )
    return found


def rank_cases(report: Report, name: str, budget: str) -> list[Case]:
    """A selector's answers from worst to best; of wrong ones first those that the dense model gets right."""
    cases: list[Case] = []
    pictures = {picture.name: picture for picture in report.data.pictures}
    for picture, rows in report.rows.items():
        dense = dense_rows(rows)
        mine = (row for row in rows if (row["selector"], row["budget"]) == (name, budget))
        cases += [(pictures[picture], row, dense.get(row["question"])) for row in mine]

    def rank(case: Case) -> tuple[float, ...]:
        _, row, dense = case
        behind = dense is not None and classify_outcome(row, dense) in ("lost", "misread", "unknown")
        recall = row.get("recall")
        return row.get("accuracy") or 0.0, -behind, -1.0 if recall is None else recall, row.get("anls") or 0.0

    return sorted(cases, key=rank)


def _is_failure(case: Case) -> bool:
    row = case[1]
    if row.get("accuracy") is not None:
        return classify_outcome(row, None) != "right"
    return (row.get("recall") or 0.0) < 1


def _spread_over_pictures(ranked: Sequence[Case], count: int) -> list[Case]:
    """The first case of each picture, then the second of each, in the order of their ranks."""
    seen: dict[str, int] = {}
    places = []
    for rank, (picture, _, _) in enumerate(ranked):
        seen[picture.name] = seen.get(picture.name, -1) + 1
        places.append((seen[picture.name], rank))
    return [ranked[rank] for _, rank in sorted(places)[:count]]


def _make_case(case: Case, thumbnails: Thumbnails) -> dict[str, Any]:
    picture, row, _ = case
    moments = _shown_moments(picture, row) if picture.kind == "video" else [0]
    panes = [make_pane(picture, row, kept_layer(row, moment), thumbnails, moment) for moment in moments]
    if row.get("heat"):
        panes += [make_pane(picture, row, heat_layer(row, m), thumbnails, m, "heat") for m in moments]
    sample = picture.samples[row["question"]]
    return {
        "picture": picture,
        "row": row,
        "film": len(moments) > 1,
        "panes": panes,
        "question": sample.question,
        "right": row["said"] is not None and classify_outcome(row, None) == "right",
        "expected": " / ".join(dict.fromkeys(sample.answers)),
        "why": explain_case(case),
    }


def explain_case(case: Case) -> str:
    """One to three sentences: was the evidence kept, how did the selector rank it, is the dense model better."""
    picture, row, dense = case
    if row["fallback"]:
        return f"The selector failed, and evenly spaced cells were used: {row['fallback']}."
    if not row.get("keep"):
        return _compare_with_dense(row, dense)
    grid = grid_from_lists(row["grid"])
    groups = evidence_cells(picture.samples[row["question"]].evidence, grid, picture.size, len(picture.frames))
    groups = [group for group in groups if len(group)]
    if not groups:
        sentences = ["The data do not say where the answer stands."]
    else:
        keep = unpack_cells(row["keep"], grid.n)
        best = max(groups, key=lambda group: float(torch.isin(group, keep).double().mean()))
        kept, total = int(torch.isin(best, keep).sum()), len(best)
        count = "None of the" if kept == 0 else "All" if kept == total else f"{kept} of the"
        if total == 1:
            sentences = [f"The cell that shows the answer was {'' if kept else 'not '}kept."]
        else:
            sentences = [f"{count} {total} cells that show the answer {'was' if kept < 2 else 'were'} kept."]
        if row.get("heat") and kept < total:
            heat = restore(row["heat"])
            above, ties = int((heat > heat[best].max()).sum()), int((heat == heat[best].max()).sum())
            place = f"{above + 1}" if ties == 1 else f"{above + 1} to {above + ties}"
            sentences.append(f"By its own score the best of them is number {place} of {len(heat)}.")
    return " ".join(sentence for sentence in (*sentences, _compare_with_dense(row, dense)) if sentence)


def _compare_with_dense(row: Row, dense: Row | None) -> str:
    if dense is None or dense is row or classify_outcome(row, None) in (None, "right"):
        return ""
    outcome = classify_outcome(row, dense)
    if outcome == "dense too":
        return f"The dense model errs as well: {dense['said']!r}."
    return "Enough to read from: the dense model is right." if outcome == "misread" else "The dense model is right."


class Thumbnails:
    """Every picture of a page once, as a CSS class that panes refer to."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.uris: dict[tuple[str, int], str] = {}

    def class_name(self, picture: PictureQuestions, frame: int = 0) -> str:
        """The CSS class of a picture, or of one frame of a video."""
        key = (picture.name, frame)
        if key not in self.uris:
            pixels = read_picture(picture.frames[frame], max_side=2 * self.side).pixels
            small = Image.fromarray(pixels.mul(255).round().byte().permute(1, 2, 0).contiguous().numpy())
            small.thumbnail((self.side, self.side))
            self.uris[key] = _data_uri(small, "JPEG", quality=72)
        return f"b{list(self.uris).index(key)}"


def make_pane(
    picture: PictureQuestions, row: Row, layer: str, thumbnails: Thumbnails, moment: int = 0, label: str = "kept cells"
) -> dict[str, Any]:
    """One picture with a layer over it and its evidence as rectangles."""
    grid = grid_from_lists(row["grid"])
    frames = len(picture.frames)
    first_frame = min(moment * -(-frames // getattr(grid, "t", 1)), frames - 1)
    placed = by_moment(picture.samples[row["question"]].evidence, grid, frames)
    return {
        "class_name": thumbnails.class_name(picture, first_frame),
        "size": picture.size,
        "label": label,
        "layer": layer,
        "boxes": sorted({box for group in placed for box, when in group if when == moment}),
    }


def _shown_moments(picture: PictureQuestions, row: Row) -> list[int]:
    """The moments of a video that are shown: those with evidence first, then evenly spaced ones."""
    grid = grid_from_lists(row["grid"])
    count = getattr(grid, "t", 1)
    groups = by_moment(picture.samples[row["question"]].evidence, grid, len(picture.frames))
    wanted = list(dict.fromkeys(moment for group in groups for _, moment in group)) if len(groups) < count else []
    even = [count * (2 * number + 1) // (2 * MAX_MOMENTS) for number in range(MAX_MOMENTS)]
    return sorted(dict.fromkeys([*wanted, *even][:MAX_MOMENTS]))


def kept_layer(row: Row, moment: int = 0) -> str:
    """A dark layer over every cell that was dropped, as a data URI; empty for a downscaled picture."""
    if not row.get("keep"):
        return ""
    grid = grid_from_lists(row["grid"])
    kept = torch.zeros(grid.n)
    kept[unpack_cells(row["keep"], grid.n)] = 1
    plane = _cells_to_plane(grid, kept, moment).numpy()
    return _data_uri(Image.merge("LA", [Image.new("L", plane.shape[::-1], 8), _alpha((1 - plane) * DROPPED_ALPHA)]))


def heat_layer(row: Row, moment: int = 0) -> str:
    """Warm colours by the selector's scores, as a data URI; their square root, because attention has few large values."""
    warmth = _cells_to_plane(grid_from_lists(row["grid"]), restore(row["heat"]).sqrt(), moment)
    colour = Image.fromarray(overlay.colourise(warmth, "ember", -0.35, 1.2))
    colour.putalpha(_alpha(warmth.numpy() * HEAT_ALPHA))
    return _data_uri(colour)


def _cells_to_plane(grid: Cells, values: torch.Tensor, moment: int) -> torch.Tensor:
    """Values `[N]` as an image `[H, W]` with a pixel per cell, or several where views overlap."""
    if isinstance(grid, Grid) and grid.area == WHOLE:
        return values.view(grid.t, grid.h, grid.w)[moment]
    sides = [(one.h / (one.area[3] - one.area[1]), one.w / (one.area[2] - one.area[0])) for one in grid.views]
    side = min(round(PIXELS_PER_CELL * max(map(max, sides))), 512)
    return overlay.plane(split_views(grid, values, moment), (side, side))


def _alpha(opacity: np.ndarray) -> Image.Image:
    return Image.fromarray(np.round(opacity * 255).astype(np.uint8))


def _data_uri(image: Image.Image, format: str = "PNG", **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, format, optimize=True, **options)
    return f"data:image/{format.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
