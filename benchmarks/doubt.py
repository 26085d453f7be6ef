"""Measures how well confidence says whether an answer is right, and what `ask(..., sure=...)` gains: risk, coverage, cost.

    python benchmarks/doubt.py draw OUT --count 60                  drawn documents and textures, as samples.jsonl
    python benchmarks/doubt.py answer DATA RECORDS.jsonl            the reader's answers at every budget, with their probabilities
    python benchmarks/doubt.py fit RECORDS.jsonl ... [--store]      fit the calibrations on these records
    python benchmarks/doubt.py report RECORDS.jsonl ...             calibration error, risk and coverage, and `sure`

DATA is a folder with samples.jsonl. Calibrations are fitted on validation scans (`recipes.reader.export_exam --receipts`) and on
drawings, never on the pictures of a report.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

import arr_coc
from arr_coc import reader
from arr_coc.evaluation.data import PictureQuestions
from arr_coc.evaluation.metrics import evidence_cells, exact, recall
from arr_coc.relevance import strategy
from arr_coc.training.documents import draw_any
from arr_coc.training.examples import read_folder
from arr_coc.vlm.confidence import FEATURES, Calibration, features

BUDGETS = {"arr-coc": ("6.25%", "12.5%", "all"), "arr-coc-untrained": ("6.25%", "12.5%", "25%")}
DRAWN_SEED = 9_000_000
KEPT = 0.8  # share of the evidence from which it counts as kept
COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
SURE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LADDERS = (
    ("arr-coc", ("6.25%", "12.5%", "all")),
    ("arr-coc-untrained", ("6.25%", "12.5%", "25%", "all")),
    ("arr-coc-untrained", ("12.5%", "25%", "all")),  # without the step of 50%: it costs a little more than it would
)

Record = dict[str, Any]


def draw(out: Path, count: int) -> None:
    """Drawings of all kinds with their questions, apart from those about the whole picture."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        drawing = draw_any(DRAWN_SEED + number, held_out=bool(number % 2))
        name = f"{number:04d}.png"
        Image.fromarray(drawing.image).save(out / name)
        asked = [question for question in drawing.questions if not question.whole]
        for question in asked[:: max(1, len(asked) // 4)][:5]:
            row = {"image": name, "question": question.text, "answer": question.answer}
            row |= {"kind": f"{drawing.kind}: {'absent' if question.absent else question.kind}"}
            rows.append(row | ({"evidence": question.evidence} if question.evidence else {}))
    (out / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def answer(data: Path, out: Path, minutes: float, kinds: Sequence[str] | None) -> None:
    """One record for each question, selector and budget. Pictures that `out` has already are left out, so that it can be resumed."""
    vlm, stop = arr_coc.load("reader"), time.monotonic() + 60 * minutes
    done = {json.loads(line)["picture"] for line in out.open()} if out.exists() else set()
    with out.open("a") as file:
        for picture in read_folder(data).pictures:
            if picture.name in done:
                continue
            if time.monotonic() > stop:
                print("stopped: the same command continues")
                return
            records = list(_answer_picture(vlm, picture, kinds))
            file.write("".join(json.dumps(record) + "\n" for record in records))  # whole pictures only
            file.flush()
    print("done")


def _answer_picture(vlm: arr_coc.VLM, picture: PictureQuestions, kinds: Sequence[str] | None) -> Iterator[Record]:
    look = vlm.look(picture.still)
    samples = [one for one in picture.samples if kinds is None or one.kind in kinds]
    for selector, budgets in BUDGETS.items():
        for budget in budgets:
            answers = vlm.ask(look, [one.question for one in samples], budget=budget, selector=selector)
            for sample, got in zip(samples, answers, strict=True):
                allocation = got.allocation
                groups = evidence_cells(sample.evidence, allocation.grid, picture.size) if sample.evidence else []
                assert got.token_probabilities is not None
                ends = [] if got.end_probability is None else [got.end_probability]
                yield {
                    "picture": picture.name,
                    "kind": sample.kind,
                    "question": sample.question,
                    "selector": selector,
                    "budget": budget,
                    "answer": got.text,
                    "right": bool(exact(got.text, sample.answers)),
                    "recall": recall(allocation.keep, groups) if groups else None,
                    "kept": allocation.k,
                    "cells": allocation.n,
                    "strategy": allocation.strategy,
                    "held": allocation.tensions.get("held"),
                    "trust": allocation.tensions.get("trust"),
                    "probabilities": [round(p, 7) for p in (*got.token_probabilities.tolist(), *ends)],
                }


# Fitting and measuring, from records alone.


def read_records(paths: Sequence[Path]) -> list[Record]:
    return [json.loads(line) for path in paths for line in path.open()]


def logistic(given: np.ndarray, wanted: np.ndarray, decay: float) -> tuple[np.ndarray, float]:
    """Weights `[D]` and bias of a logistic regression over `given` `[N, D]`, by Newton's method."""
    middle, scale = given.mean(0), given.std(0) + 1e-9
    design = np.concatenate([(given - middle) / scale, np.ones((len(given), 1))], 1)
    weights, penalty = np.zeros(design.shape[1]), decay * np.eye(design.shape[1])
    penalty[-1, -1] = 0
    for _ in range(50):
        chances = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (chances - wanted) + penalty @ weights
        curve = (design * (chances * (1 - chances))[:, None]).T @ design + penalty
        weights = weights - np.linalg.solve(curve + 1e-9 * np.eye(len(curve)), slope)
    return weights[:-1] / scale, float(weights[-1] - (weights[:-1] * middle / scale).sum())


def source_of(record: Record) -> str:
    return "layer" if "by layer" in record["strategy"] else "probe" if "by probe" in record["strategy"] else ""


def choice_confidence(record: Record) -> float:
    """What `allocation.confidence` is for this record by the weights of the package."""
    if record["kept"] == record["cells"]:
        return 1.0
    plan = strategy.Strategy(record["strategy"].split(":")[0])
    share = record["kept"] / record["cells"]
    found = strategy.confidence(plan, source_of(record), record["held"], record["trust"] or 0.0, share)
    return 0.0 if found is None else found


def features_of(record: Record) -> dict[str, float]:
    allocation = SimpleNamespace(confidence=choice_confidence(record))
    return features(torch.tensor(record["probabilities"]), [allocation])  # type: ignore[list-item]


def fit_answers(records: list[Record]) -> Calibration:
    found = [features_of(one) for one in records]
    given = np.array([[one[name] for name in FEATURES] for one in found])
    weights, bias = logistic(given, np.array([one["right"] for one in records], float), 4.0)
    said = f"{len(records)} answers about {len({one['picture'] for one in records})} validation scans and drawings"
    return Calibration(dict(zip(FEATURES, np.round(weights, 4).tolist(), strict=True)), round(bias, 4), said)


def fit(records: list[Record], store: bool) -> None:
    """Print the weights of the choice's confidence, and fit the calibration of the answers with those of the package."""
    for source in strategy.CHOICE_WEIGHTS:
        some = [
            one
            for one in records
            if source_of(one) == source and one["recall"] is not None and one["kept"] < one["cells"]
        ]
        given = np.array([strategy.choice_features(one["held"], one["trust"]) for one in some])
        kept = np.array([one["recall"] >= KEPT for one in some], float)
        weights, bias = logistic(given, kept, 2.0)
        print(
            f"{source}: {len(some)} choices, {kept.mean():.3f} kept; bias {bias:.3f}, weights {np.round(weights, 3).tolist()}"
        )
    made = fit_answers([one for one in records if "probabilities" in one])
    print(made)
    if store:
        made.save(reader.WEIGHTS)


def cross_validated(records: list[Record], parts: int = 6) -> None:
    """Sets each record's confidence by a calibration that was fitted on other pictures."""
    names = sorted({one["picture"] for one in records})
    for part in range(parts):
        held_out = set(names[part::parts])
        made = fit_answers([one for one in records if one["picture"] not in held_out])
        for one in records:
            if one["picture"] in held_out:
                one["calibrated"] = made(features_of(one))


def calibration_error(chances: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy over bins of equal width."""
    which = np.minimum((chances * bins).astype(int), bins - 1)
    gaps = [
        abs(chances[which == one].mean() - right[which == one].mean()) * (which == one).mean() for one in set(which)
    ]
    return float(sum(gaps))


def report(records: list[Record], by_others: bool, kinds: Sequence[str] | None) -> None:
    calibration = Calibration.find(reader.WEIGHTS)
    assert calibration is not None
    for one in records:
        one["calibrated"] = calibration(features_of(one))
    if by_others:
        cross_validated(records)
    records = [one for one in records if kinds is None or one["kind"] in kinds]
    for one in records:
        one["mean"] = float(np.mean(one["probabilities"]))
    print("| answers | number | right | calibration error | of the mean token probability |\n|---|---|---|---|---|")
    groups = {"all": records} | {
        f"{selector}, {budget}": [one for one in records if (one["selector"], one["budget"]) == (selector, budget)]
        for selector, budgets in BUDGETS.items()
        for budget in budgets
    }
    for name, some in groups.items():
        right = np.array([one["right"] for one in some], float)
        errors = [calibration_error(np.array([one[kind] for one in some]), right) for kind in ("calibrated", "mean")]
        print(f"| {name} | {len(some)} | {right.mean():.3f} | {errors[0]:.3f} | {errors[1]:.3f} |")
    print("\n| confidence | answers | mean confidence | right |\n|---|---|---|---|")
    chances, right = (np.array([float(one[name]) for one in records]) for name in ("calibrated", "right"))
    for low in np.arange(0, 1, 0.1):
        inside = (chances >= low) & ((chances < low + 0.1) | (low > 0.85))
        if inside.any():
            print(
                f"| {low:.1f} to {low + 0.1:.1f} | {inside.sum()} | {chances[inside].mean():.3f} | {right[inside].mean():.3f} |"
            )
    print("\nRisk (share of wrong answers) where only the surest answers are given:\n")
    print("| answered | " + " | ".join(f"{part:.0%}" for part in COVERAGES) + " |\n|---|" + "---|" * len(COVERAGES))
    for name, some in groups.items():
        order = sorted(some, key=lambda one: -one["calibrated"])
        risks = [1 - np.mean([one["right"] for one in order[: max(1, round(part * len(order)))]]) for part in COVERAGES]
        print(f"| {name} | " + " | ".join(f"{risk:.3f}" for risk in risks) + " |")
    print(
        "\n| start | sure | cost | right without, with, from all | errors by pruning, gone | new errors |\n|---|---|---|---|---|---|"
    )
    for selector, ladder in LADDERS:
        for sure in SURE:
            print(look_again(records, selector, ladder, sure))


def look_again(records: list[Record], selector: str, ladder: Sequence[str], sure: float) -> str:
    """A row of the table: `ask(..., sure=...)` from the first budget of a ladder on. Answers from all cells are `arr-coc`'s."""
    by = {(one["picture"], one["question"], one["selector"], one["budget"]): one for one in records}
    costs, before, after, dense = [], [], [], []
    for picture, question in dict.fromkeys((one["picture"], one["question"]) for one in records):
        steps = [by[picture, question, "arr-coc" if budget == "all" else selector, budget] for budget in ladder]
        tried = []
        for one in steps:
            tried.append(one)
            if one["calibrated"] >= sure or (len(tried) > 1 and one["answer"] == tried[-2]["answer"]):
                break
        best = max(tried, key=lambda one: one["calibrated"])
        costs.append(sum(one["kept"] for one in tried) / steps[0]["kept"])
        before.append(steps[0]["right"])
        after.append(best["right"])
        dense.append(steps[-1]["right"])
    lost = [row for row in zip(before, after, dense, strict=True) if row[2] and not row[0]]
    gone, broken = sum(row[1] for row in lost), sum(b and not a for b, a in zip(before, after, strict=True))
    means = ", ".join(f"{np.mean(some):.3f}" for some in (before, after, dense))
    return f"| {selector}, {ladder[0]} | {sure:g} | {np.mean(costs):.2f} | {means} | {len(lost)}, {gone} | {broken} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("out", type=Path)
    drawing.add_argument("--count", type=int, default=60)
    answering = commands.add_parser("answer")
    answering.add_argument("data", type=Path)
    answering.add_argument("out", type=Path)
    answering.add_argument(
        "--minutes", type=float, default=7, help="stop after so many; the same command continues (7)"
    )
    answering.add_argument("--kinds", nargs="+", help="only questions of these kinds")
    fitting = commands.add_parser("fit")
    fitting.add_argument("records", type=Path, nargs="+")
    fitting.add_argument("--store", action="store_true", help="write the calibration into the reader's folder")
    reporting = commands.add_parser("report")
    reporting.add_argument("records", type=Path, nargs="+")
    reporting.add_argument("--kinds", nargs="+", help="only questions of these kinds")
    reporting.add_argument(
        "--cross-validate",
        action="store_true",
        help="calibrate each picture by the others: for records that were fitted on",
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.command == "draw":
        draw(given.out, given.count)
    elif given.command == "answer":
        answer(given.data, given.out, given.minutes, given.kinds)
    elif given.command == "fit":
        fit(read_records(given.records), given.store)
    else:
        report(read_records(given.records), given.cross_validate, given.kinds)


if __name__ == "__main__":
    main()
