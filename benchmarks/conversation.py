"""Total, date and company of receipts in one conversation, in every order, against each question asked alone.

    python benchmarks/conversation.py RECEIPTS [--budget 12.5%] [--history all] [--cache extend] [--log FILE]

RECEIPTS is a folder with samples.jsonl (image, question, answer, kind). Every order starts with one of the questions, so a
question asked alone is also the first turn of two conversations, and six orders take fifteen answers a receipt. With --log, each
receipt is written when it is done, and the same command continues an interrupted run. With --recs, RECEIPTS is a folder of
training scans with recs.json, of which those that the reader keeps for validation are asked.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import arr_coc
from arr_coc.bench.timing import machine
from arr_coc.evaluation.metrics import exact
from arr_coc.evaluation.statistics import interval

QUESTIONS = {
    "total": "What is the total amount?",
    "date": "What is the date on the receipt?",
    "company": "What is the name of the company?",
}


def receipts(folder: Path, recs: bool) -> dict[Path, dict[str, str]]:
    """The right answers of each picture, by kind of question."""
    found: dict[Path, dict[str, str]] = defaultdict(dict)
    if recs:
        from recipes.reader.receipts import read_receipts, split

        for receipt in split(read_receipts(folder))[1]:
            found[folder / f"{receipt.name}.jpg"] = {k: v for k, v in receipt.fields.items() if k in QUESTIONS and v}
        return dict(found)
    for line in (folder / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        if sample["kind"] in QUESTIONS:
            found[folder / sample["image"]][sample["kind"]] = sample["answer"]
    return dict(found)


def converse(
    vlm: Any, picture: Path, truth: dict[str, str], first: dict[str, Any], later: dict[str, Any]
) -> list[dict[str, Any]]:
    """One row for each answer: the order of the questions so far, whether it is right, and the tokens."""
    rows = []
    look = vlm.look(picture)

    def turn(asked: tuple[str, ...], before: Any) -> None:
        for kind in sorted(truth.keys() - set(asked)):
            if before is None:
                answer = vlm.ask(look, QUESTIONS[kind], remember=True, **first)
            else:
                answer = vlm.ask(None, QUESTIONS[kind], after=before, **later)
            right = exact(answer.text, [truth[kind]])
            rows.append({"image": picture.name, "asked": [*asked, kind], "right": right, "tokens": answer.tokens})
            turn((*asked, kind), answer)

    turn((), None)
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """Accuracy of each kind of question alone, as the second and as the third; and what a turn adds."""
    lines = ["| question | alone | second | third | all follow-ups, less alone [95%] |", "|---|---|---|---|---|"]
    for kind in [*QUESTIONS, "all"]:
        mine = [row for row in rows if kind in (row["asked"][-1], "all")]
        alone = {(r["image"], r["asked"][-1]): r["right"] for r in mine if len(r["asked"]) == 1}
        cells = [mean([r["right"] for r in mine if len(r["asked"]) == place]) for place in (1, 2, 3)]
        changes: dict[str, list[float]] = defaultdict(list)  # of each picture's follow-ups
        for row in mine:
            if len(row["asked"]) > 1:
                changes[row["image"]].append(row["right"] - alone[row["image"], row["asked"][-1]])
        low, high = interval(changes) or (float("nan"),) * 2
        change = mean([value for values in changes.values() for value in values])
        lines.append(f"| {kind} | {' | '.join(f'{c:.3f}' for c in cells)} | {change:+.3f} [{low:+.3f}, {high:+.3f}] |")
    kept = [mean([r["tokens"]["kept"] / r["tokens"]["all"] for r in rows if len(r["asked"]) == n]) for n in (1, 2, 3)]
    added = [
        mean([r["tokens"].get("added", 0) / r["tokens"]["all"] for r in rows if len(r["asked"]) == n]) for n in (2, 3)
    ]
    shares = ", ".join(f"{100 * share:.1f}%" for share in kept)
    return "\n".join(lines) + (
        f"\n\nCells read after one, two and three turns: {shares}; the second turn adds {100 * added[0]:.1f}% of the cells, "
        f"the third {100 * added[1]:.1f}%. {len({r['image'] for r in rows})} receipts, {len(rows)} answers."
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="reader")
    parser.add_argument("--budget", default="12.5%", help="of each turn")
    parser.add_argument("--glance", default="all")
    parser.add_argument("--history", choices=("all", "cells", "none"))
    parser.add_argument("--cache", choices=("auto", "extend", "rebuild"), default="auto")
    parser.add_argument("--frozen", action="store_true", help="follow-ups add no cells (budget=0)")
    parser.add_argument("--recs", action="store_true")
    parser.add_argument("--count", type=int, help="receipts")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    vlm = arr_coc.load(given.model)
    first = {"budget": given.budget, "glance": given.glance, "max_new_tokens": 64}
    later = {"history": given.history, "cache": given.cache, "max_new_tokens": 64} | (
        {"budget": 0} if given.frozen else {}
    )
    rows: list[dict[str, Any]] = []
    if given.log is not None and given.log.exists():
        rows = [json.loads(line) for line in given.log.read_text().splitlines()]
    done = {row["image"] for row in rows}
    for picture, truth in list(receipts(given.folder, given.recs).items())[: given.count]:
        if picture.name in done:
            continue
        new = converse(vlm, picture, truth, first, later)
        rows += new
        if given.log is not None:
            with given.log.open("a") as log:
                log.write("".join(json.dumps(row) + "\n" for row in new))
    print(f"{machine()}, {datetime.date.today().isoformat()}\n\n{summary(rows)}")


if __name__ == "__main__":
    main()
