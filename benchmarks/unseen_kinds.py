"""Measures accuracy on kinds of questions that a layer has not seen in training, compared with no layer.

    python benchmarks/unseen_kinds.py SCANS LAYERS

SCANS are the validation scans of `python -m recipes.reader.export_exam --receipts`. LAYERS is the folder to which
`benchmarks/layer_ablation.py --only "never asked for a total" ...` writes its layers. Every answer comes from `vlm.ask`, fallbacks
included. `--shipped` also measures the shipped layer.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

import arr_coc
from arr_coc.evaluation.metrics import exact
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.training.examples import read_folder
from arr_coc.vlm.model import VLM

KINDS = ("total", "date", "company")
SHARES = ("25%", "12.5%", "6.25%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path, help="folder of validation scans")
    parser.add_argument("layers", type=Path, help="folder of layers trained without one kind")
    parser.add_argument("--limit", type=int, help="number of images (all)")
    parser.add_argument("--shipped", action="store_true", help="also measure the shipped layer")
    arguments = parser.parse_args()
    without = arr_coc.load("reader", layer=None)
    unseen = {kind: arr_coc.load("reader", layer=arguments.layers / f"never_asked_for_a_{kind}") for kind in KINDS}
    shipped = arr_coc.load("reader") if arguments.shipped else None
    right: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    strategies: dict[str, Counter[str]] = defaultdict(Counter)
    for picture in read_folder(arguments.scans, arguments.limit).pictures:
        loaded = [without, *unseen.values()] + ([] if shipped is None else [shipped])
        looks = {id(vlm): vlm.look(picture.still) for vlm in loaded}
        for sample in picture.samples:
            if sample.kind not in KINDS:
                continue
            models: dict[str, VLM] = {"without": without, "never asked": unseen[sample.kind]}
            if shipped is not None:
                models["shipped"] = shipped
            for name, vlm in models.items():
                for share in SHARES:
                    answer = vlm.ask(looks[id(vlm)], sample.question, budget=share)
                    score = exact(answer.text, sample.answers)
                    for kind in (sample.kind, "all"):
                        right[name, share, kind][picture.name].append(score)
                    strategies[f"{name}: {sample.kind}"][answer.allocations[0].strategy] += 1
        print(picture.name, flush=True)
    print("\n| layer | kept | " + " | ".join((*KINDS, "all")) + " |\n|---|---|" + "---|" * (len(KINDS) + 1))
    for name in dict.fromkeys(name for name, _, _ in right):
        for share in SHARES:
            cells = []
            for kind in (*KINDS, "all"):
                each = right[name, share, kind]
                low, high = interval(each) or (0.0, 1.0)
                cells.append(f"{mean(each):.2f} [{low:.2f}, {high:.2f}]")
            print(f"| {name} | {share} | {' | '.join(cells)} |")
    print(dict(strategies))


if __name__ == "__main__":
    main()
