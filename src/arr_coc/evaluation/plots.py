"""Accuracy against tokens read and against time, with matplotlib, which is imported only when a plot is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError
from arr_coc.evaluation.entries import DENSE
from arr_coc.files import replacing

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Record, Report

AXES = (("read", "visual tokens that a language layer reads"), ("answer_ms", "milliseconds for one question"))


def figure_class() -> Any:
    """matplotlib's Figure; an error if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArrCocError("plots need matplotlib, which is not installed: pip install matplotlib") from None
    return Figure


def check_suffix(path: Path) -> None:
    """An error if matplotlib is not installed or cannot write this format."""
    if path.suffix.lower().removeprefix(".") not in figure_class()().canvas.get_supported_filetypes():
        raise ArrCocError(f"cannot write {path.name!r} in a format of that ending; use .png, .svg or .pdf")


def measured_axes(report: Report) -> list[tuple[str, str]]:
    """Key and label of each axis that has a value in every record."""
    return [(key, label) for key, label in AXES if all(record[key] is not None for record in report.records)]


def series_of(report: Report) -> dict[str, list[Record]]:
    """The records of each selector that have the main metric, by tokens read."""
    series: dict[str, list[Record]] = {}
    for record in report.records:
        if record[report.main_metric] is not None:
            series.setdefault(record["selector"], []).append(record)
    return {name: sorted(records, key=lambda record: record["read"]) for name, records in series.items()}


def save_plot(report: Report, path: Path) -> None:
    """Both plots as one picture; the file's suffix decides the format."""
    figure = figure_class()(figsize=(11, 4.2), layout="constrained")
    metric = report.main_metric
    shown = measured_axes(report)
    for axis, (along, label) in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        for name, records in series_of(report).items():
            points = sorted(records, key=lambda record: record[along])
            x, y = [r[along] for r in points], [r[metric] for r in points]
            bounds = [r[f"{metric}_ci"] or (r[metric], r[metric]) for r in points]
            errors = [[max(0.0, v - low), max(0.0, high - v)] for v, (low, high) in zip(y, bounds, strict=True)]
            if name == DENSE:
                axis.axhline(y[0], color="0.75", linewidth=1, zorder=0)
            bars = list(zip(*errors, strict=True))  # [2, points]
            axis.errorbar(x, y, yerr=bars, marker="o", markersize=4, linewidth=1.2, capsize=2, label=name)
        axis.set_xlabel(label)
        if along == "read":  # budgets are halved from row to row
            axis.set_xscale("log", base=2)
            ticks = sorted({round(r[along]) for r in report.records})
            axis.set_xticks([t for t, last in zip(ticks, [0, *ticks], strict=False) if t > 1.2 * last])
            axis.xaxis.set_major_formatter(lambda value, at: f"{value:.0f}")
            axis.minorticks_off()
        axis.grid(alpha=0.25)
    first = figure.axes[0]
    first.set_ylabel(f"{metric.replace('_', ' ')}, 95% over pictures")
    first.set_ylim(-0.03, 1.03)
    figure.axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=144, format=path.suffix.removeprefix("."))
    except (OSError, ValueError) as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
