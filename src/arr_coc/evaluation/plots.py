"""Accuracy against tokens read and against time. matplotlib is imported when a plot is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError
from arr_coc.evaluation.contestants import DENSE

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

AXES = (("read", "visual tokens that a language layer reads"), ("answer_ms", "milliseconds for one question"))


def figure_class() -> Any:
    """matplotlib's figure, or one sentence."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArrCocError("plots need matplotlib, which is not installed: pip install matplotlib") from None
    return Figure


def check_ending(path: Path) -> None:
    """One sentence where matplotlib is not there, or cannot write files of that ending."""
    canvas = figure_class()().canvas
    known = canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise ArrCocError(f"cannot write {path.name!r} in a format of that ending; use .png, .svg or .pdf")


def save(report: Report, path: Path) -> None:
    """Both plots as one picture; the file's ending says the format."""
    figure = draw(report)
    try:
        figure.savefig(path, dpi=144)
    except (OSError, ValueError) as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def draw(report: Report) -> Any:
    figure = figure_class()(figsize=(11, 4.2), layout="constrained")
    answered = any(record["accuracy"] is not None for record in report.records)
    what, said = ("accuracy", "accuracy") if answered else ("evidence_recall", "evidence recall")
    names = list(dict.fromkeys(record["selector"] for record in report.records))
    shown = [(along, label) for along, label in AXES if all(r[along] is not None for r in report.records)]
    for axis, (along, label) in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        for name in names:
            points = sorted(
                (r for r in report.records if r["selector"] == name and r[what] is not None), key=lambda r: r[along]
            )
            if not points:
                continue
            x, y = [r[along] for r in points], [r[what] for r in points]
            bounds = [r[f"{what}_ci"] or (r[what], r[what]) for r in points]
            around = [
                [max(0.0, v - b[0]) for v, b in zip(y, bounds, strict=True)],
                [max(0.0, b[1] - v) for v, b in zip(y, bounds, strict=True)],
            ]
            if name == DENSE:
                axis.axhline(y[0], color="0.75", linewidth=1, zorder=0)
            axis.errorbar(x, y, yerr=around, marker="o", markersize=4, linewidth=1.2, capsize=2, label=name)
        axis.set_xlabel(label)
        if along == "read":  # budgets are halved from row to row
            axis.set_xscale("log", base=2)
            ticks = sorted({round(r[along]) for r in report.records})
            axis.set_xticks([t for t, last in zip(ticks, [0, *ticks], strict=False) if t > 1.2 * last])
            axis.xaxis.set_major_formatter(lambda value, at: f"{value:.0f}")
            axis.minorticks_off()
        axis.grid(alpha=0.25)
    first = figure.axes[0]
    first.set_ylabel(f"{said}, 95% over pictures")
    first.set_ylim(-0.03, 1.03)
    figure.axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
