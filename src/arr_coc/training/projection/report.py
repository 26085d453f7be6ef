"""A fitted projection on paper: a page in markdown, the same as JSON, and the variance as a picture.

The picture needs matplotlib; without it the page says that it is missing and why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.embedding.compression import DIMS
from arr_coc.errors import ArrCocError
from arr_coc.training.projection.fit import Fitted
from arr_coc.training.projection.quality import Quality, Thresholds

PAGE, NUMBERS, PICTURE = "report.md", "report.json", "variance.png"
NAMED = 20  # unreadable files on the page; the JSON has all

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


def write(fitted: Fitted, folder: Path) -> list[str]:
    """Write the report's files into `folder`; returns what could not be done, in words."""
    said: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NUMBERS).write_text(json.dumps(fitted.to_dict(), indent=2) + "\n")
        try:
            draw(fitted).savefig(folder / PICTURE, dpi=144)
        except ArrCocError as error:
            (folder / PICTURE).unlink(missing_ok=True)
            said.append(f"the variance was not drawn: {error}")
        (folder / PAGE).write_text(page(fitted, drawn=not said, extra=said))
    except OSError as error:
        raise ArrCocError(f"cannot write the report into {str(folder)!r}: {error.strerror or error}") from None
    return said


def page(fitted: Fitted, drawn: bool = True, extra: list[str] | None = None) -> str:
    """The report in markdown."""
    made = fitted.projection
    verdict = "good enough" if fitted.good else "not good enough"
    lines = [
        f"# Embeddings of {made.encoder} in {made.dims} dimensions",
        "",
        f"{made.width} dimensions to {made.dims}, fitted on {made.cells} cells of {made.pictures} pictures and "
        f"{made.questions} questions (text weight {made.text_weight:g}, {made.mode} mode): **{verdict}**.",
        "",
        *(f"- {note}" for note in (*fitted.notes, *(extra or []))),
        *([""] if fitted.notes or extra else []),
        table(fitted.tried),
        "",
        f"Judged on {fitted.tried[-1].pictures} pictures and {fitted.tried[-1].questions} questions. Good enough is "
        f"{_wanted(fitted.thresholds)}.",
        "",
        *([f"![Variance by component]({PICTURE})", ""] if drawn else []),
    ]
    if fitted.unreadable:
        lines += [f"{len(fitted.unreadable)} files could not be read and were left out:", ""]
        lines += [f"- {why}" for _, why in fitted.unreadable[:NAMED]]
        more = len(fitted.unreadable) - NAMED
        lines += [f"- and {more} more, all in {NUMBERS}"] if more > 0 else []
        lines += [""]
    return "\n".join(lines)


def table(figures: tuple[Quality, ...] | list[Quality]) -> str:
    """One row for each number of dimensions."""
    head = "| " + " | ".join(title for _, title, _ in COLUMNS) + " |"
    rows = ["| " + " | ".join(_shown(getattr(one, name), form) for name, _, form in COLUMNS) + " |" for one in figures]
    return "\n".join([head, "|" + "---|" * len(COLUMNS), *rows])


def draw(fitted: Fitted) -> Any:
    """Each component's share of the variance, and their sum, beside plain principal components."""
    from arr_coc.evaluation.plots import figure_class

    figure = figure_class()(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    shares = fitted.projection.variance.double().numpy()
    shown = min(len(fitted.spectrum), max(64, len(shares)))
    plain = fitted.spectrum[:shown].numpy()
    numbers = np.arange(1, shown + 1)
    left.bar(numbers[: len(shares)], shares, color="tab:blue", label="this projection")
    left.step(numbers, plain, where="mid", color="0.35", linewidth=1, label="principal components")
    left.axhline(fitted.thresholds.largest, color="tab:red", linestyle=":", linewidth=1, label="largest allowed")
    left.set_xlabel("component")
    left.set_ylabel("share of the variance")
    left.legend(fontsize="small")
    right.plot(numbers, plain.cumsum(0), color="0.35", linewidth=1, label="principal components")
    right.plot(
        numbers[: len(shares)], shares.cumsum(0), color="tab:blue", marker="o", markersize=3, label="this projection"
    )
    right.axhline(fitted.thresholds.variance, color="tab:red", linestyle=":", linewidth=1, label="wanted")
    for dims in sorted({DIMS, len(shares)}):
        if dims <= shown:
            right.axvline(dims, color="0.8", linewidth=1, zorder=0)
    right.set_xlabel("components")
    right.set_ylabel("variance explained (pictures of the fit)")
    right.set_ylim(0, 1.02)
    right.legend(fontsize="small", loc="lower right")
    figure.suptitle(f"{fitted.projection.encoder}, {fitted.projection.cells} cells", fontsize="medium")
    return figure


def _wanted(thresholds: Thresholds) -> str:
    return (
        f"a variance of at least {thresholds.variance:g}, an error of at most {thresholds.error:g}, a top-10 overlap of at "
        f"least {thresholds.overlap:g}, a ranking survival of at least {thresholds.survival:g} and a largest component of at "
        f"most {thresholds.largest:g}"
    )


def _shown(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)
