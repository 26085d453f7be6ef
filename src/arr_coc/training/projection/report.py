"""The report of a fit: a page in markdown, the same as JSON, and a plot of the variance.

The plot needs matplotlib; without it the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.embedding.projection import DIMS
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.plots import figure_class
from arr_coc.files import replacing
from arr_coc.training.projection.fit import FitResult
from arr_coc.training.projection.quality import ProjectionQuality

PAGE, NUMBERS, PLOT = "report.md", "report.json", "variance.png"
LISTED = 20  # unreadable files on the page; the JSON has all

COLUMNS = (
    ("dims", "dimensions", "{:d}"),
    ("variance", "variance", "{:.3f}"),
    ("error", "error", "{:.4f}"),
    ("overlap", "top-10 overlap", "{:.3f}"),
    ("survival", "ranking survival", "{:.3f}"),
    ("kept", "best eighth kept", "{:.3f}"),
    ("found", "best cell found", "{:.3f}"),
    ("largest", "largest component", "{:.3f}"),
)


def write_report(result: FitResult, folder: Path) -> list[str]:
    """Write the report's files into `folder`; returns notes about what could not be done."""
    notes: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / NUMBERS) as temporary:
            temporary.write_text(json.dumps(result.to_dict(), indent=2) + "\n")
        try:
            plot = plot_variance(result)
        except ArrCocError as error:
            (folder / PLOT).unlink(missing_ok=True)
            notes.append(f"the variance was not drawn: {error}")
        else:
            with replacing(folder / PLOT) as temporary:
                plot.savefig(temporary, dpi=144, format="png")
        with replacing(folder / PAGE) as temporary:
            temporary.write_text(render_page(result, notes, plot=not notes))
    except OSError as error:
        raise ArrCocError(f"cannot write the report into {str(folder)!r}: {error.strerror or error}") from None
    return notes


def render_page(result: FitResult, extra_notes: Sequence[str] = (), plot: bool = True) -> str:
    """The report in markdown."""
    projection, limits, quality = result.projection, result.thresholds, result.tried[-1]
    verdict = "good enough" if result.good else "not good enough"
    notes = [f"- {note}" for note in (*result.notes, *extra_notes)]
    lines = [
        f"# Embeddings of {projection.encoder} in {projection.dims} dimensions",
        "",
        f"{projection.width} dimensions to {projection.dims}, fitted on {projection.cells} cells of {projection.pictures} "
        f"pictures and {projection.questions} questions (text weight {projection.text_weight:g}, {projection.mode} mode): "
        f"**{verdict}**.",
        "",
        *([*notes, ""] if notes else []),
        quality_table(result.tried),
        "",
        f"Judged on {quality.pictures} pictures and {quality.questions} questions. Good enough is a variance of at least "
        f"{limits.variance:g}, an error of at most {limits.error:g}, a top-10 overlap of at least {limits.overlap:g}, a "
        f"ranking survival of at least {limits.survival:g} and a largest component of at most {limits.largest:g}.",
        "",
        *([f"![Variance by component]({PLOT})", ""] if plot else []),
    ]
    if result.unreadable:
        more = len(result.unreadable) - LISTED
        lines += [f"{len(result.unreadable)} files could not be read and were left out:", ""]
        lines += [f"- {why}" for _, why in result.unreadable[:LISTED]]
        lines += [f"- and {more} more, all in {NUMBERS}"] if more > 0 else []
        lines += [""]
    return "\n".join(lines)


def quality_table(qualities: Sequence[ProjectionQuality]) -> str:
    """One row for each number of dimensions."""
    rows = [[title for _, title, _ in COLUMNS]]
    for one in qualities:
        values = [(getattr(one, name), form) for name, _, form in COLUMNS]
        rows.append(["" if value is None else form.format(value) for value, form in values])
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(COLUMNS), *body])


def plot_variance(result: FitResult) -> Any:
    """Each component's share of the variance and their cumulative sum, compared with plain principal components."""
    figure = figure_class()(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    shares = result.projection.variance.double().numpy()
    shown = min(len(result.spectrum), max(64, len(shares)))
    pca = result.spectrum[:shown].numpy()
    numbers = np.arange(1, shown + 1)
    own = numbers[: len(shares)]
    left.bar(own, shares, color="tab:blue", label="this projection")
    left.step(numbers, pca, where="mid", color="0.35", linewidth=1, label="principal components")
    left.axhline(result.thresholds.largest, color="tab:red", linestyle=":", linewidth=1, label="largest allowed")
    left.set(xlabel="component", ylabel="share of the variance")
    left.legend(fontsize="small")
    right.plot(numbers, pca.cumsum(0), color="0.35", linewidth=1, label="principal components")
    right.plot(own, shares.cumsum(0), color="tab:blue", marker="o", markersize=3, label="this projection")
    right.axhline(result.thresholds.variance, color="tab:red", linestyle=":", linewidth=1, label="wanted")
    for dims in sorted({DIMS, len(shares)}):
        if dims <= shown:
            right.axvline(dims, color="0.8", linewidth=1, zorder=0)
    right.set(xlabel="components", ylabel="variance explained (pictures of the fit)", ylim=(0, 1.02))
    right.legend(fontsize="small", loc="lower right")
    figure.suptitle(f"{result.projection.encoder}, {result.projection.cells} cells", fontsize="medium")
    return figure
