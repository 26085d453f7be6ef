"""Measures how the kept cells change with the question: between different questions about a page, and between phrasings of one.

    PYTHONPATH=. python benchmarks/sensitivity.py SCANS

SCANS is a folder with samples.jsonl, such as `python -m recipes.reader.export_exam --receipts` writes. Prints the mean Jaccard index
of the kept cells with confidence intervals over images: between total, date and company, and between phrasings of each of them
that were not in training.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import arr_coc
from arr_coc.evaluation.metrics import sensitivity
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.training.documents.questions import HELD_OUT, PLAIN
from arr_coc.training.examples import read_folder

KINDS = ("total", "date", "company")
SHARES = ("12.5%", "6.25%")
SELECTORS = ("arr-coc", "arr-coc-untrained")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path, help="folder of scans with samples.jsonl")
    parser.add_argument("--limit", type=int, help="number of images (all)")
    arguments = parser.parse_args()
    vlm = arr_coc.load("reader")
    overlaps: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for picture in read_folder(arguments.scans, arguments.limit).pictures:
        look = vlm.look(picture.still)
        for selector in SELECTORS:
            for share in SHARES:
                kept = {
                    question: vlm.prepare(look=look, text=question, budget=share, selector=selector).allocations[0].keep
                    for kind in KINDS
                    for question in (PLAIN[kind], *HELD_OUT[kind])
                }
                pairs = [("total and company", [PLAIN["total"], PLAIN["company"]])]
                pairs += [("two of the three", [PLAIN[a], PLAIN[b]]) for a, b in combinations(KINDS, 2)]
                pairs += [(f"{kind}, in other words", [PLAIN[kind], *HELD_OUT[kind]]) for kind in KINDS]
                pairs += [("any, in other words", [PLAIN[kind], *HELD_OUT[kind]]) for kind in KINDS]
                for name, questions in pairs:
                    difference = sensitivity([kept[one] for one in questions])
                    assert difference is not None
                    overlaps[selector, share, name][picture.name].append(1 - difference)
        print(picture.name, flush=True)
    print("\n| selector | kept | questions | mean Jaccard [95%] |\n|---|---|---|---|")
    for (selector, share, name), each in overlaps.items():
        middle, bounds = mean(each), interval(each)
        assert middle is not None
        assert bounds is not None
        print(f"| {selector} | {share} | {name} | {middle:.2f} [{bounds[0]:.2f}, {bounds[1]:.2f}] |")


if __name__ == "__main__":
    main()
