"""Accuracy of a model when the universal layer alone decides what is encoded and read, compared with the model's own layer.

    python benchmarks/transfer.py FOLDER [--model reader] [-o answers.jsonl]

FOLDER has images and samples.jsonl. Every answer comes from `vlm.ask`, fallbacks included. In the rows "25%", "12.5%" and
"6.25%" no more cells are encoded than are read; in "25% then 6.25%" a quarter is encoded. A selector that chooses among encoded
cells gets all of them encoded. The same command continues an
interrupted run from the answers in `-o`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

import arr_coc
from arr_coc.evaluation.metrics import evidence_cells, exact, recall
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.selectors import selector as selector_of
from arr_coc.selectors.base import Selector
from arr_coc.training.examples import read_folder

KINDS = ("total", "date", "company")
SHARES = {
    "25%": ("25%", "25%"), "12.5%": ("12.5%", "12.5%"), "6.25%": ("6.25%", "6.25%"), "25% then 6.25%": ("25%", "6.25%")
}  # fmt: skip
SELECTORS = ("arr-coc-universal", "arr-coc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="images with samples.jsonl")
    parser.add_argument("--model", default="reader", help="a model folder (reader)")
    parser.add_argument("--layer", default="auto", help="the layer of the model, or a universal layer (auto)")
    parser.add_argument("--selectors", nargs="+", default=SELECTORS, help=f"({' '.join(SELECTORS)})")
    parser.add_argument("--rows", nargs="+", default=list(SHARES), help="which of the rows")
    parser.add_argument("--kinds", nargs="+", default=KINDS, help=f"kinds of questions ({' '.join(KINDS)})")
    parser.add_argument("--limit", type=int, help="number of images (all)")
    parser.add_argument("-o", "--out", type=Path, default=Path("out/transfer.jsonl"), help="file of answers")
    arguments = parser.parse_args()
    vlm = arr_coc.load(arguments.model, layer=arguments.layer)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    known = {(row["image"], row["question"], row["selector"], row["share"]) for row in rows}
    plans = [("all", "all")] + [(name, share) for name in arguments.selectors for share in arguments.rows]
    with arguments.out.open("a") as file:
        for picture in read_folder(arguments.folder, arguments.limit).pictures:
            look = vlm.look(picture.still)
            for sample in picture.samples:
                for name, share in plans:
                    key = (picture.name, sample.question, name, share)
                    if sample.kind not in arguments.kinds or key in known:
                        continue
                    glance, budget = SHARES.get(share, ("all", "all"))
                    glance = glance if chooses_before_encoding(name) else "auto" if selector_of(name).early else "all"
                    answer = vlm.ask(look, sample.question, budget=budget, glance=glance, selector=name)
                    one = answer.allocation
                    groups = evidence_cells(sample.evidence, one.grid, picture.size)
                    row = dict(zip(("image", "question", "selector", "share"), key, strict=True)) | {
                        "kind": sample.kind,
                        "right": exact(answer.text, sample.answers),
                        "recall": recall(one.keep, groups),
                        "trust": one.tensions.get("trust"),
                        "strategy": one.strategy,
                        "answer": answer.text,
                    }
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    print_table(rows, arguments.kinds)


def chooses_before_encoding(name: str) -> bool:
    """Whether a selector takes a glance; one that is early spends its budget there anyway."""
    chosen = selector_of(name)
    return not chosen.early and type(chosen).before_encoding is not Selector.before_encoding


def print_table(rows: list[dict[str, object]], kinds: list[str]) -> None:
    """Accuracy by kind of question, the share of dense accuracy, and which source decided."""
    right: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    sources: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    recalls: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["kind"] in kinds:
            arm = str(row["selector"]), str(row["share"])
            for kind in (str(row["kind"]), "all"):
                right[arm][kind].setdefault(str(row["image"]), []).append(float(str(row["right"])))
            sources[arm][str(row["strategy"])] += 1
            if row["recall"] is not None:
                recalls[arm].append(float(str(row["recall"])))
    dense = mean(right["all", "all"]["all"]) or 1.0
    print("| selector | encoded and read | " + " | ".join(kinds) + " | all [95%] | share of dense | evidence recall |")
    print("|---|---|" + "---|" * (len(kinds) + 3))
    for arm, by_kind in right.items():
        low, high = interval(by_kind["all"]) or (0.0, 0.0)
        cells = [f"{mean(by_kind[kind]):.3f}" for kind in kinds if kind in by_kind]
        whole = mean(by_kind["all"]) or 0.0
        held = sum(recalls[arm]) / max(1, len(recalls[arm]))
        print(
            f"| {arm[0]} | {arm[1]} | {' | '.join(cells)} | {whole:.3f} [{low:.2f}, {high:.2f}] | {whole / dense:.1%} "
            f"| {held:.3f} |"
        )
    for arm, counts in sources.items():
        print(arm, dict(counts.most_common(4)))


if __name__ == "__main__":
    main()
