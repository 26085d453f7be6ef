"""Plot losses and accuracy over training time, from the logs of `python -m recipes.reader`.

    python benchmarks/training_curves.py RUN/log.jsonl -o docs/images/training.png
    python benchmarks/training_curves.py A/log.jsonl B/log.jsonl --labels "with missing cells" "all cells" -o training.png

Faint points are single steps; lines are a moving average. Accuracy is the exact match on the validation receipts and, for
drawings, the mean over the families of drawn pages.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.cli.console import check_file
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.plots import figure_class

LOSSES = {"answer_loss": "answers", "cell_loss": "cells"}
FIELDS = ("total", "date", "company", "address")
DRAWINGS = "drawings"
STYLES = ("-", "--", ":", "-.")
SMOOTHED = 0.025  # width of the moving average, as a share of the whole time
SMALLEST = 1e-4  # a loss of 0 has no place on a logarithmic axis

Curve = tuple[list[float], list[float]]  # minutes, values


@dataclass(frozen=True)
class Log:
    label: str
    losses: dict[str, Curve]
    accuracy: dict[str, Curve]


def read(path: Path, label: str) -> Log:
    """The curves of one log, without steps that were lost when a call was killed."""
    try:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArrCocError(f"expected a training log with one JSON object a line, got {str(path)!r}: {error}") from None
    kept: list[dict[str, Any]] = []
    for entry in entries:
        while kept and kept[-1]["step"] > entry["step"]:  # the next call resumed from an earlier checkpoint
            kept.pop()
        kept.append(entry)
    losses, accuracy = _curves(), _curves()
    for entry in kept:
        found = _accuracies(entry["measured"]) if "measured" in entry else {n: entry[n] for n in LOSSES if n in entry}
        for name, value in found.items():
            minutes, values = (accuracy if "measured" in entry else losses)[name]
            minutes.append(entry["minutes"])
            values.append(value)
    if not losses:
        raise ArrCocError(f"expected losses in {str(path)!r}, found none among {len(entries)} lines")
    return Log(label, dict(losses), dict(accuracy))


def _curves() -> defaultdict[str, Curve]:
    return defaultdict(lambda: ([], []))


def _accuracies(measured: dict[str, dict[str, float]]) -> dict[str, float]:
    """Exact match of the receipts' fields and, over families of drawings, the mean of each one's share of right answers."""
    found = {name: measured[f"receipts: {name}"]["exact"] for name in FIELDS if f"receipts: {name}" in measured}
    families: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, row in measured.items():
        sheet, kind = name.rsplit(": ", 1)
        if sheet.startswith("rendered ") and "," not in sheet and not kind.startswith("of these"):
            families[sheet].append((row["exact"] * row["count"], row["count"]))
    if families:
        shares = [sum(right for right, _ in rows) / sum(count for _, count in rows) for rows in families.values()]
        found[DRAWINGS] = float(np.mean(shares))
    return found


def smooth(curve: Curve) -> np.ndarray:
    """A moving average of the logarithms with Gaussian weights."""
    minutes, values = np.array(curve[0]), np.log(np.maximum(curve[1], SMALLEST))
    width = max(1e-9, SMOOTHED * np.ptp(minutes))
    weights = np.exp(-0.5 * ((minutes[:, None] - minutes) / width) ** 2)
    return np.exp(weights @ values / weights.sum(1))


def draw(logs: list[Log]) -> Any:
    """Losses on the left, accuracy on the right where something was measured."""
    measured = any(log.accuracy for log in logs)
    figure = figure_class()(figsize=(11 if measured else 6, 4.2), layout="constrained")
    axes = figure.subplots(1, 1 + measured, sharex=True, squeeze=False)[0]
    _draw_losses(axes[0], logs)
    if measured:
        _draw_accuracy(axes[1], logs)
    for axis in axes:
        axis.set_xlabel("minutes of training")
        axis.set_xlim(left=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
    return figure


def _draw_losses(axis: Any, logs: list[Log]) -> None:
    for style, log in zip(STYLES, logs, strict=False):
        for number, name in enumerate(LOSSES):
            if name in log.losses:
                curve = log.losses[name]
                raw = np.maximum(curve[1], SMALLEST)
                axis.plot(curve[0], raw, ".", color=f"C{number}", alpha=0.35, markersize=4, markeredgewidth=0)
                axis.plot(curve[0], smooth(curve), style, color=f"C{number}", linewidth=1.6)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, at: f"{value:g}")
    axis.set_ylabel("loss")
    _add_legend(axis, list(LOSSES.values()), 0, logs, loc="upper right")


def _draw_accuracy(axis: Any, logs: list[Log]) -> None:
    names = [name for name in (*FIELDS, DRAWINGS) if any(name in log.accuracy for log in logs)]
    for style, log in zip(STYLES, logs, strict=False):
        for number, name in enumerate(names, len(LOSSES)):
            if name in log.accuracy:
                # Overlapping curves stay visible: earlier ones have larger markers.
                marks = {"marker": "o", "markersize": 9.0 - number, "markerfacecolor": None if log is logs[0] else "w"}
                axis.plot(*log.accuracy[name], style, color=f"C{number}", linewidth=1.4, **marks)
    axis.set_ylabel("exact match")
    axis.set_ylim(-0.03, 1.03)
    _add_legend(axis, names, len(LOSSES), [], loc="center left", bbox_to_anchor=(1.0, 0.5))


def _add_legend(axis: Any, names: list[str], colour: int, logs: list[Log], **place: Any) -> None:
    """A legend of the colours and, with several logs, of the line styles."""
    lines = [axis.plot([], [], color=f"C{number}", linewidth=2)[0] for number, _ in enumerate(names, colour)]
    labels = list(names)
    if len(logs) > 1:
        lines += [axis.plot([], [], style, color="0.3")[0] for style, _ in zip(STYLES, logs, strict=False)]
        labels += [log.label for log in logs]
    axis.legend(lines, labels, fontsize="small", **place)


def _labels(paths: list[Path], given: list[str] | None) -> list[str]:
    """The given ones, or the names of the run folders, or of the files where those are all the same."""
    if given is not None:
        if len(given) != len(paths):
            raise ArrCocError(f"expected one label for each log, got {len(given)} for {len(paths)}")
        return given
    folders = [path.resolve().parent.name for path in paths]
    return folders if len(set(folders)) == len(paths) else [path.stem for path in paths]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "logs", nargs="+", type=Path, metavar="LOG.jsonl", help="one to four logs, drawn over each other"
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE", help="the picture; its ending says the format"
    )
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="names of the logs (those of their folders)")
    given = parser.parse_args(argv)
    try:
        if len(given.logs) > len(STYLES):
            raise ArrCocError(f"expected up to {len(STYLES)} logs, one line style each, got {len(given.logs)}")
        check_file(given.out, "training.png")
        labels = _labels(given.logs, given.labels)
        figure = draw([read(path, label) for path, label in zip(given.logs, labels, strict=True)])
        figure.savefig(given.out, dpi=144)
    except (ArrCocError, OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
