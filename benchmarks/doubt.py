"""Fits and measures what the reader says about its own answers: how sure it is, what it refuses, what `sure` gains.

    python -m benchmarks.doubt fit FOLDER --scans SCANS --photos PHOTOS [--store]
    python -m benchmarks.doubt report FOLDER --scans SCANS --photos PHOTOS
    python -m benchmarks.doubt report FOLDER --receipts RECEIPTS
    python -m benchmarks.doubt cost FOLDER --receipts RECEIPTS --every 7

`fit` asks the reader about the pictures of `benchmarks/doubt_cases.py`, keeps what it finds in FOLDER/fit.jsonl (an interrupted run
continues there; a new reader needs a new folder), fits the calibration and the refusal, cross-validates both by picture, and with
--store writes them into the reader's folder. `report` measures what is stored, on other pictures (FOLDER/report.jsonl), or on
a folder with samples.jsonl (FOLDER/receipts.jsonl). SCANS: a folder of scanned receipts with recs.json, of which those are
used that the reader's training keeps for validation; PHOTOS: a folder of photographs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arr_coc
from arr_coc import reader
from arr_coc.evaluation.metrics import evidence_cells, exact, recall
from arr_coc.relevance import strategy
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer
from arr_coc.types.grid import Grid
from arr_coc.vlm import confidence, generation
from arr_coc.vlm.confidence import ABSENT, CALIBRATED, FEATURES, LAYER_FEATURES, Calibration, Refusal, Verdict, conclude
from arr_coc.vlm.looking_again import is_enough
from doubt_cases import Case, cases, folder_cases

FIRST = ("arr-coc", "12.5%")  # at which everything is asked
BUDGETS: dict[str, dict[str, tuple[str, ...]]] = {
    "fit": {"arr-coc": ("12.5%", "6.25%", "all"), "arr-coc-untrained": ("12.5%",)},
    "report": {"arr-coc": ("12.5%", "6.25%", "all")},
}
DRAWN_AT = (FIRST, ("arr-coc", "all"))
RECEIPT_BUDGETS = {"arr-coc": ("12.5%", "6.25%", "25%", "all"), "arr-coc-untrained": ("12.5%", "6.25%", "25%")}
LADDERS = (
    ("arr-coc", ("12.5%", "25%", "all")),  # without the step of 50%: it costs a little more than it would
    ("arr-coc", ("6.25%", "12.5%", "all")),
    ("arr-coc-untrained", ("12.5%", "25%", "all")),
    ("arr-coc-untrained", ("6.25%", "12.5%", "25%", "all")),
)
SAYS = Refusal((), (), (), (), 0.0, {}, says=("not found", "not in the picture"))  # the reader's own words
# A calibration with which the universal layer is asked about every question.
ALL_FACTS = Calibration({}, 0.0, refusal=SAYS)
KEPT = 0.8  # share of the evidence from which it counts as kept
COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
SURE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Record = dict[str, Any]


def answer(found: Iterator[Case], out: Path, minutes: float, budgets: Mapping[str, Sequence[str]]) -> bool:
    """One record for each question, selector and budget. Pictures that `out` has already are left out, so that it can be resumed."""
    vlm, stop = arr_coc.load("reader"), time.monotonic() + 60 * minutes
    vlm.calibration = ALL_FACTS
    done = {json.loads(line)["picture"] for line in out.open()} if out.exists() else set()
    with out.open("a") as file:
        for case in found:
            if case.name in done:
                continue
            if time.monotonic() > stop:
                print("stopped: the same command continues")
                return False
            records = list(_answer_case(vlm, case, budgets))
            file.write("".join(json.dumps(record) + "\n" for record in records))  # whole pictures only
            file.flush()
    return True


def _answer_case(vlm: arr_coc.VLM, case: Case, budgets: Mapping[str, Sequence[str]]) -> Iterator[Record]:
    look = vlm.look(case.image)
    for selector, budget in ((one, budget) for one, some in budgets.items() for budget in some):
        # Absent things once: what is not there does not depend on the budget.
        asked = [one for one in case.questions if one.answers or (selector, budget) == FIRST]
        if not asked or (case.group.startswith("drawn") and (selector, budget) not in DRAWN_AT):
            continue
        answers = vlm.ask(look, [one.text for one in asked], budget=budget, selector=selector, refuse="off")
        for sample, got in zip(asked, answers, strict=True):
            allocation = got.allocation
            groups = evidence_cells(sample.evidence, allocation.grid, case.image.size) if sample.evidence else []
            yield {
                "picture": case.name,
                "group": case.group,
                "kind": sample.kind,
                "question": sample.text,
                "absent": not sample.answers,
                "selector": selector,
                "budget": budget,
                "answer": got.text,
                "right": bool(exact(got.text, sample.answers)) if sample.answers else is_no(got.text),
                "recall": recall(allocation.keep, groups) if groups else None,
                "kept": allocation.k,
                "cells": allocation.n,
                "strategy": allocation.strategy,
                "held": allocation.tensions.get("held"),
                "trust": allocation.tensions.get("trust"),
                "mean": 0.0 if got.token_probabilities is None else round(float(got.token_probabilities.mean()), 5),
                "facts": {name: round(value, 5) for name, value in got.facts.items()},
            }


def is_no(text: str) -> bool:
    """Whether an answer to a question about something absent says so: a refusal, "no", or none."""
    return SAYS.is_own(text) or text.strip().lower() in ("no", "none", "0")


# Fitting and measuring, from records alone.

# What more of a feature means for something absent: probability rises (1) or falls (-1), whatever the others are, so that few
# pictures cannot turn it round. 0: either.
SIGNS = {
    "surprise": 1, "length": 0, "doubt": 1, "start": 1, "misfit": 1, "beyond": 1, "novel": 1, "page": 0, "text": 0, "ink": -1,
    "void": 1, "found": -1, "absent": 1,
}  # fmt: skip
REFUSED_BY = tuple(SIGNS)
RIGHT_BY = ("surprise", "doubt", ABSENT)
RIGHT, UNREAD = 2.0, 0.4  # weights of right answers, and of what is in the picture and was not read
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
CLEAR = (0.1, 0.98)  # probabilities outside of which the universal layer is not asked
UNITS, MEMBERS, STEPS, RATE, DECAY = (
    8,
    4,
    300,
    0.03,
    0.3,
)  # hidden units of a network, networks whose mean is taken, training
PARTS = 8  # of the cross-validation, by picture


def read_records(paths: Sequence[Path]) -> list[Record]:
    return [json.loads(line) for path in paths for line in path.open()]


def table(records: Sequence[Record], names: Sequence[str], usual: Mapping[str, float] | None = None) -> np.ndarray:
    """The features of some records, `[N, D]`; those that are not known have their usual values."""
    return np.array([[{**(usual or {}), **one["facts"]}[name] for name in names] for one in records])


def logistic(
    given: np.ndarray, wanted: np.ndarray, decay: float, weights: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Weights `[D]` and bias of a logistic regression over `given` `[N, D]`, by Newton's method."""
    counts = np.ones(len(given)) if weights is None else weights
    middle, scale = given.mean(0), given.std(0) + 1e-9
    design = np.concatenate([(given - middle) / scale, np.ones((len(given), 1))], 1)
    found, penalty = np.zeros(design.shape[1]), decay * np.eye(design.shape[1])
    penalty[-1, -1] = 0
    for _ in range(50):
        chances = 1 / (1 + np.exp(-design @ found))
        slope = design.T @ (counts * (chances - wanted)) + penalty @ found
        curve = (design * (counts * chances * (1 - chances))[:, None]).T @ design + penalty
        found = found - np.linalg.solve(curve + 1e-9 * np.eye(len(curve)), slope)
    return found[:-1] / scale, float(found[-1] - (found[:-1] * middle / scale).sum())


def signed_logistic(
    given: np.ndarray, wanted: np.ndarray, names: Sequence[str], sign: int, weights: np.ndarray | None = None
) -> tuple[dict[str, float], float]:
    """A logistic regression without the features whose weights would have the wrong sign."""
    keep = list(range(len(names)))
    while True:
        found, bias = logistic(given[:, keep], wanted, 3.0, weights)
        wrong = [
            (abs(value) * given[:, number].std(), number)
            for value, number in zip(found, keep, strict=True)
            if sign * SIGNS.get(names[number], 1) * value < 0
        ]
        if not wrong:
            return {names[k]: round(float(v), 4) for k, v in zip(keep, found, strict=True)}, round(bias, 4)
        keep.remove(max(wrong)[1])


def fit_refusal(
    given: np.ndarray, absent: np.ndarray, counts: np.ndarray, usual: Mapping[str, float], threshold: float
) -> Refusal:
    """A network over `given` `[N, D]` that is monotone in each feature with a sign: the mean of a few, written as one."""
    middle, scale = given.mean(0), given.std(0) + 1e-6
    inputs, wanted, weights = (
        torch.tensor(one, dtype=torch.float32) for one in ((given - middle) / scale, absent, counts)
    )
    signs = torch.tensor([SIGNS[name] for name in REFUSED_BY])
    hidden, shift, out, bias = [], [], [], 0.0
    for seed in range(MEMBERS):
        rng = torch.Generator().manual_seed(seed)
        free = [torch.randn(size, generator=rng) * 0.4 for size in ((UNITS, len(signs)), (UNITS,), (UNITS,), ())]
        parts = [one.requires_grad_() for one in free]
        optimizer = torch.optim.AdamW(parts, lr=RATE, weight_decay=DECAY)

        def network() -> list[torch.Tensor]:
            first, second, third, last = parts  # noqa: B023
            return [torch.where(signs == 0, first, signs * first.abs()), second, third.abs(), last]

        for _ in range(STEPS):
            optimizer.zero_grad()
            first, second, third, last = network()
            odds = torch.tanh(inputs @ first.T + second) @ third + last
            loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, wanted, reduction="none")
            torch.autograd.backward((loss * weights).mean())
            optimizer.step()
        made = [one.detach().double().numpy() for one in network()]
        hidden.append(made[0] / scale)
        shift.append(made[1] - (made[0] * (middle / scale)).sum(1))
        out.append(made[2] / MEMBERS)
        bias += float(made[3]) / MEMBERS
    rounded = [np.round(np.concatenate(one), 4).tolist() for one in (hidden, shift, out)]
    return Refusal(
        REFUSED_BY, tuple(map(tuple, rounded[0])), tuple(rounded[1]), tuple(rounded[2]), round(bias, 4), usual, threshold, CLEAR,
        says=SAYS.says,
    )  # fmt: skip


def fit_all(records: Sequence[Record], threshold: float) -> Calibration:
    """The refusal from what was asked at the first budget, and the calibration from all answers that it lets stand."""
    first = [one for one in records if (one["selector"], one["budget"]) == FIRST]
    there = [one for one in first if one["right"] and not one["absent"]]
    usual = dict(zip(FEATURES, np.round(table(there, FEATURES).mean(0), 4).tolist(), strict=True))
    absent = np.array([one["absent"] for one in first], float)
    counts = np.array([1.0 if one["absent"] else RIGHT if one["right"] else UNREAD for one in first])
    refusal = fit_refusal(table(first, REFUSED_BY), absent, counts, usual, threshold)
    refused = [one for one in records if is_refused(refusal, one)]
    odds = np.array([[refusal.odds(known(refusal, one)), one["facts"]["own"]] for one in refused])
    (scale, own), constant = logistic(odds, np.array([one["absent"] for one in refused], float), 3.0)
    refusal = replace(refusal, sure=(round(float(scale), 4), round(float(own), 4), round(constant, 4)))
    stand = [one for one in records if not is_refused(refusal, one)]
    found = [known(refusal, one) for one in stand]
    given = table([{"facts": {**facts, ABSENT: refusal.odds(facts)}} for facts in found], RIGHT_BY, usual)
    right = np.array([one["right"] and not one["absent"] for one in stand], float)
    weights, bias = signed_logistic(given, right, RIGHT_BY, -1)
    said = f"{len(records)} answers about {len({one['picture'] for one in records})} validation scans, drawings and photographs"
    return Calibration(weights, bias, said, refusal)


def known(refusal: Refusal, record: Record) -> dict[str, float]:
    """The facts that an answer would have: the universal layer's only where it would be asked."""
    facts = {name: value for name, value in record["facts"].items() if name not in LAYER_FEATURES}
    return facts if refusal.is_clear(facts) else dict(record["facts"])


def is_refused(refusal: Refusal, record: Record) -> bool:
    return bool(record["facts"]["own"]) or refusal.absent(known(refusal, record)) >= refusal.threshold


def judge_all(records: Sequence[Record], calibration: Calibration) -> None:
    """Sets what the calibration says about each record."""
    refusal = calibration.refusal
    assert refusal is not None
    for one in records:
        found = conclude(known(refusal, one), calibration, "auto", one["mean"])
        one["confidence"], one["refused"], one["chance"] = found.confidence, found.refused, refusal.absent(found.facts)
        one["fine"] = one["absent"] if found.refused else one["right"]


def cross_validated(records: Sequence[Record], threshold: float) -> None:
    """Judges each record by calibrations that were fitted on other pictures."""
    names = sorted({one["picture"] for one in records})
    for part in range(PARTS):
        held_out = set(names[part::PARTS])
        made = fit_all([one for one in records if one["picture"] not in held_out], threshold)
        judge_all([one for one in records if one["picture"] in held_out], made)


def thresholds(records: Sequence[Record]) -> None:
    """What other thresholds would refuse: something absent, right answers."""
    first = [one for one in records if (one["selector"], one["budget"]) == FIRST]
    for threshold in THRESHOLDS:
        refused = np.array([one["facts"]["own"] or one["chance"] >= threshold for one in first], bool)
        absent = np.array([one["absent"] for one in first])
        right = np.array([one["right"] for one in first]) & ~absent
        print(
            f"threshold {threshold}: refused {refused[absent].mean():.3f} of what is absent, {refused[right].mean():.3f} of the right answers"
        )


def fit(records: list[Record], store: bool, threshold: float) -> None:
    for source in strategy.CHOICE_WEIGHTS:  # the choice's confidence: for the table in `strategy.py`
        by = "by layer" if source == "layer" else f"by {source}"
        some = [
            one for one in records if by in one["strategy"] and one["recall"] is not None and one["kept"] < one["cells"]
        ]
        if len(some) >= 50:
            given = np.array([strategy.choice_features(one["held"], one["trust"]) for one in some])
            weights, bias = logistic(given, np.array([one["recall"] >= KEPT for one in some], float), 2.0)
            print(f"choice by {source}: {len(some)}; bias {bias:.3f}, weights {np.round(weights, 3).tolist()}")
    cross_validated(records, threshold)
    print("each picture judged by fits to the others:")
    thresholds(records)
    report(records)
    made = fit_all(records, threshold)
    print(f"\n{made}")
    if store:
        made.save(reader.WEIGHTS)
        print(f"stored in {reader.WEIGHTS}")


def calibration_error(chances: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy over bins of equal width."""
    which = np.minimum((chances * bins).astype(int), bins - 1)
    gaps = [
        abs(chances[which == one].mean() - right[which == one].mean()) * (which == one).mean() for one in set(which)
    ]
    return float(sum(gaps))


def _error(records: Sequence[Record], said: str, true: str) -> float:
    return calibration_error(
        np.array([float(one[said]) for one in records]), np.array([float(one[true]) for one in records])
    )


def _row(name: str, *cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in (name, *cells)) + " |"


def _share(records: Sequence[Record], test: Callable[[Record], Any]) -> str:
    return f"{np.mean([bool(test(one)) for one in records]):.3f} ({len(records)})" if records else ""


def report(records: list[Record]) -> None:
    """Tables of records that were judged."""
    families = sorted({one["group"].split(":")[0] for one in records})
    first = [one for one in records if (one["selector"], one["budget"]) == FIRST]
    print(
        "Refused:\n\n| | absent or no document | in the picture and read | in the picture, not read |\n|---|---|---|---|"
    )
    for name in ("all", *families):
        some = [one for one in first if name in ("all", one["group"].split(":")[0])]
        kinds = (
            [one for one in some if one["absent"]],
            [one for one in some if not one["absent"] and one["right"]],
            [one for one in some if not (one["absent"] or one["right"])],
        )
        print(_row(name, *(_share(kind, lambda one: one["refused"]) for kind in kinds)))
    own = [one for one in first if one["absent"]]
    print(f"\nThe model itself refuses {_share(own, lambda one: one['facts']['own'])} of what is absent.")
    missed = [f"{one['question']} -> {one['answer']}" for one in own if not one["refused"]]
    print("Not refused: " + "; ".join(missed[:20]))
    print(
        "\n| answers | number | fine | calibration error | of those not refused | of the mean token probability |\n|---|---|---|---|---|---|"
    )
    groups = {"all": records} | {
        name: [one for one in records if one["group"].split(":")[0] == name] for name in families
    }
    groups |= {f"{a}, {b}": [one for one in records if (one["selector"], one["budget"]) == (a, b)]
               for a, b in sorted({(one["selector"], one["budget"]) for one in records})}  # fmt: skip
    for name, some in groups.items():
        stand = [one for one in some if not one["refused"]]
        errors = [
            f"{_error(part, said, true):.3f}" if part else ""
            for part, said, true in (
                (some, "confidence", "fine"),
                (stand, "confidence", "fine"),
                (some, "mean", "right"),
            )
        ]
        print(_row(name, len(some), f"{np.mean([one['fine'] for one in some]):.3f}", *errors))
    print("\n| confidence | answers | mean confidence | fine |\n|---|---|---|---|")
    chances, right = (np.array([float(one[name]) for one in records]) for name in ("confidence", "fine"))
    for low in np.arange(0, 1, 0.1):
        inside = (chances >= low) & ((chances < low + 0.1) | (low > 0.85))
        if inside.any():
            print(
                _row(
                    f"{low:.1f} to {low + 0.1:.1f}",
                    inside.sum(),
                    f"{chances[inside].mean():.3f}",
                    f"{right[inside].mean():.3f}",
                )
            )
    print("\nRisk (share of wrong answers) where only the surest answers are given:\n")
    print("| answered | " + " | ".join(f"{part:.0%}" for part in COVERAGES) + " |\n|---|" + "---|" * len(COVERAGES))
    for name in ("all", *families):
        order = sorted(groups[name], key=lambda one: -one["confidence"])
        risks = [1 - np.mean([one["fine"] for one in order[: max(1, round(part * len(order)))]]) for part in COVERAGES]
        print(_row(name, *(f"{risk:.3f}" for risk in risks)))
    asked = [one for one in records if not one["absent"] and not one["group"].startswith("drawn")]
    steps = {one["budget"] for one in asked}
    print(
        "\n| start | sure | cost | right without, with, from all | errors by pruning, gone | new errors |\n|---|---|---|---|---|---|"
    )
    for selector, ladder in LADDERS:
        for sure in SURE if set(ladder) <= steps else ():
            print(look_again(asked, selector, ladder, sure))


def look_again(records: list[Record], selector: str, ladder: Sequence[str], sure: float) -> str:
    """A row of the table: `ask(..., sure=...)` from the first budget of a ladder on. Answers from all cells are `arr-coc`'s."""
    by = {(one["picture"], one["question"], one["selector"], one["budget"]): one for one in records}
    costs: list[float] = []
    before: list[bool] = []
    after: list[bool] = []
    dense: list[bool] = []
    for picture, question in dict.fromkeys((one["picture"], one["question"]) for one in records):
        steps = [by.get((picture, question, "arr-coc" if budget == "all" else selector, budget)) for budget in ladder]
        if None in steps:
            continue
        tried: list[Record] = []
        for one in steps:
            assert one is not None
            tried.append(one)
            if is_enough([as_answer(one) for one in tried], sure):
                break
        best = max(tried, key=lambda one: one["confidence"])
        costs.append(sum(one["kept"] for one in tried) / tried[0]["kept"])
        right = [bool(one["right"]) and not one["refused"] for one in (tried[0], best, steps[-1]) if one is not None]
        for some, value in zip((before, after, dense), right, strict=True):
            some.append(value)
    if not costs:
        return ""
    lost = [row for row in zip(before, after, dense, strict=True) if row[2] and not row[0]]
    gone, broken = sum(row[1] for row in lost), sum(b and not a for b, a in zip(before, after, strict=True))
    means = ", ".join(f"{np.mean(some):.3f}" for some in (before, after, dense))
    return f"| {selector}, {ladder[0]} | {sure:g} | {np.mean(costs):.2f} | {means} | {len(lost)}, {gone} | {broken} |"


def as_answer(record: Record) -> Answer:
    """What `is_enough` looks at."""
    cells = Grid(1, 1, record["cells"])
    doubt = record["facts"].get("doubt")
    sure = None if doubt is None else 1 - doubt
    kept, encoded = torch.arange(record["kept"]), torch.arange(record["cells"])
    choice = Allocation(cells, kept, encoded, record["selector"], confidence=sure)
    text = SAYS.text if record["refused"] else record["answer"]
    return Answer(text, (choice,), {}, torch.zeros(0), confidence=record["confidence"], confidence_source=CALIBRATED)


def cost(found: Iterator[Case]) -> None:
    """Processor time of judging an answer, which includes the universal layer where it is asked, as a share of the whole answer."""
    vlm, spent = arr_coc.load("reader"), {"judge": 0.0, "layer": 0.0}
    stock = confidence.judge

    def timed(*given: Any) -> Verdict:
        start = time.process_time()
        verdict = stock(*given)
        spent["judge"] += time.process_time() - start
        spent["layer"] += "absent" in verdict.facts
        return verdict

    setattr(generation, "judge", timed)  # noqa: B010
    pictures = list(found)
    for budget in ("auto", "12.5%", "all"):
        for place, case in enumerate([pictures[0], *pictures]):  # the first one twice, to warm up
            if place == 1:
                whole, answers = time.process_time(), 0
                spent.update(judge=0.0, layer=0)
            for one in case.questions:
                vlm.ask(case.image, one.text, budget=budget)
                answers = answers + 1 if place else 0
        total = time.process_time() - whole
        print(
            f"budget {budget}: {1000 * spent['judge'] / answers:.0f} of {1000 * total / answers:.0f} ms, "
            f"{spent['judge'] / total:.1%}; the layer asked about {spent['layer']:.0f} of {answers}"
        )
    setattr(generation, "judge", stock)  # noqa: B010


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.doubt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("fit", "report", "cost"))
    parser.add_argument("folder", type=Path, help="where records are kept")
    parser.add_argument("--scans", type=Path, help="folder of scanned receipts with recs.json")
    parser.add_argument("--photos", type=Path, help="folder of photographs")
    parser.add_argument("--receipts", type=Path, help="folder with samples.jsonl to report on instead")
    parser.add_argument("--every", type=int, default=1, help="with --receipts: one picture in so many (1)")
    parser.add_argument(
        "--minutes", type=float, default=60, help="stop asking after so many; the same command continues (60)"
    )
    parser.add_argument("--threshold", type=float, default=0.5, help="probability from which an answer is refused (.5)")
    parser.add_argument("--store", action="store_true", help="write the calibration into the reader's folder")
    given = parser.parse_args()
    torch.manual_seed(0)
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.receipts is not None:
        pictures: Iterator[Case] = itertools.islice(
            folder_cases(given.receipts, ("total", "date", "company")), 0, None, given.every
        )
        path, budgets = given.folder / "receipts.jsonl", RECEIPT_BUDGETS
    elif given.scans is None or given.photos is None:
        parser.error("expected --scans and --photos, or report with --receipts")
    else:
        pictures = cases(given.command, given.scans, given.photos)
        path, budgets = given.folder / f"{given.command}.jsonl", BUDGETS[given.command]
    if given.command == "cost":
        cost(iter(pictures))
        return
    if not answer(pictures, path, given.minutes, budgets):
        return
    records = read_records([path])
    if given.command == "fit":
        fit(records, given.store, given.threshold)
        return
    calibration = Calibration.find(reader.WEIGHTS)
    assert calibration is not None
    judge_all(records, calibration)
    report(records)


if __name__ == "__main__":
    main()
