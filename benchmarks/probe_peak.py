"""Compares the probe's relative thresholds with absolute ones, on validation scans and drawn documents.

    python benchmarks/probe_peak.py SCANS --limit 20 --drawn 30

SCANS are the validation scans of `python -m recipes.reader.export_exam --receipts`; drawings come from `draw_any`, with questions
about things that they do not show. The reader has no layer here. For each question the probe runs as in an answer. The first
table counts decisions (trust of at least a half) by the absolute and by the relative thresholds; "hit" means that the largest
attention lies on the evidence. The second has quantiles of the peak by what it hit. `--rows FILE` adds one line per question to
FILE; the tables cover all of its lines. `--start N` skips the first N scans and drawings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.relevance import coupling
from arr_coc.relevance.knowing import know
from arr_coc.training.documents.drawing import draw_any
from arr_coc.training.examples import read_folder, selection_input

ABSOLUTE = (0.03, 0.06)  # largest attention at which trust was 0, and 1
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
PER_DRAWING = 4


def cases(scans: Path, start: int, limit: int, drawn: int) -> Iterator[tuple[str, Any, list[tuple[str, Any]]]]:
    """Source, image, and questions with their evidence (None: about something that the picture does not show)."""
    for picture in read_folder(scans, start + limit).pictures[start:] if limit else ():
        yield (
            "scan",
            picture.still,
            [(sample.question, sample.evidence) for sample in picture.samples],
        )
    for seed in range(start, start + drawn):
        drawing = draw_any(10_000 + seed)
        asked = [(one.text, None if one.absent else one.evidence) for one in drawing.questions if not one.whole]
        absent = [one for one in asked if one[1] is None][:1]
        present = [one for one in asked if one[1] is not None][: PER_DRAWING - len(absent)]
        yield drawing.kind, Image.fromarray(drawing.image), present + absent


def trust(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path, help="folder of validation scans")
    parser.add_argument("--limit", type=int, default=20, help="number of scans (20)")
    parser.add_argument("--drawn", type=int, default=30, help="number of drawings (30)")
    parser.add_argument("--start", type=int, default=0, help="scans and drawings to skip (0)")
    parser.add_argument("--rows", type=Path, help="add one JSON line per question, and tabulate them all")
    arguments = parser.parse_args()
    keep_quiet()
    vlm = arr_coc.load("reader", layer=None)
    rows: list[dict[str, Any]] = []
    for source, image, questions in cases(arguments.scans, arguments.start, arguments.limit, arguments.drawn):
        image = Image.open(image).convert("RGB") if isinstance(image, Path) else image
        look = vlm.look(image)
        for question, evidence in questions:
            selection = selection_input(vlm, look, question)
            scores = know(selection)
            attention = coupling.probe_attention(selection, scores.information + scores.text)
            groups = [] if evidence is None else evidence_cells(evidence, selection.grid, image.size)
            best = int(attention.argmax())
            hit = any(best in group.tolist() for group in groups)
            rows.append(
                {
                    "source": source, "question": question, "absent": evidence is None, "hit": hit,
                    "cells": int((attention > 0).sum()), "sum": float(attention.sum()), "max": float(attention.max()),
                    "peak": coupling.peak_over_chance(coupling.blur_along_rows(attention, selection.grid)[attention != 0]), "absolute": trust(float(attention.max()), *ABSOLUTE),
                }
            )  # fmt: skip
        print(source, len(rows), flush=True)
    if arguments.rows:
        with arguments.rows.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        rows = [json.loads(line) for line in arguments.rows.read_text().splitlines()]
    print("\n| questions | cases | both trust | only absolute | only relative | neither |\n|---|---|---|---|---|---|")
    outcomes = {"hit": "hit", "missed": "missed", "not in the picture": "absent"}
    for name, wanted in outcomes.items():
        some = [row for row in rows if kind(row) == wanted]
        counts = {(a, r): 0 for a in (True, False) for r in (True, False)}
        for row in some:
            relative = trust(row["peak"], coupling.PROBE_NO_PEAK, coupling.PROBE_PEAK)
            counts[row["absolute"] >= coupling.TRUSTED, relative >= coupling.TRUSTED] += 1
        order = ((True, True), (True, False), (False, True), (False, False))
        print(f"| {name} | {len(some)} | " + " | ".join(str(counts[one]) for one in order) + " |")
    print("\n| peak | " + " | ".join(f"{100 * q:g}%" for q in QUANTILES) + " |\n|---|" + "---|" * len(QUANTILES))
    for name, wanted in outcomes.items():
        values = [row["peak"] for row in rows if kind(row) == wanted]
        found = torch.tensor(values).quantile(torch.tensor(QUANTILES)).tolist() if values else []
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in found)} |")

    for name in ("peak", "max"):
        print(f"{name}: area under the curve, hits against the rest, {area(rows, name):.2f}")


def area(rows: list[dict[str, Any]], name: str) -> float:
    """The chance that a hit has a larger value than another question."""
    hits, rest = ([row[name] for row in rows if row["hit"] is wanted] for wanted in (True, False))
    return sum((a > b) + 0.5 * (a == b) for a in hits for b in rest) / max(1, len(hits) * len(rest))


def kind(row: dict[str, Any]) -> str:
    return "absent" if row["absent"] else "hit" if row["hit"] else "missed"


if __name__ == "__main__":
    main()
