"""Evidence recall on photographs: what the default keeps of the objects that are asked about, with an encoder and without.

    python benchmarks/photo_evidence.py FOLDER [--model reader] [--budget 12.5%] [--half second]

FOLDER has photographs and samples.jsonl with boxes. Every second photograph belongs to the first half, on which the settings of
`labels` were chosen (`arr_coc.embedding.labels`); figures are those of the other half. Ways: `labels` (`arr_coc.realize` with this
encoder), `cosines` (the same encoder by cosines of embeddings, as other encoders are read), `no encoder`, and with `--model` that
model's own default, which probes it.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.training.examples import read_folder
from arr_coc.types.allocation import Allocation

HALVES = {"first": 0, "second": 1}


def ways(budget: str, model: str | None) -> dict[str, Callable[[arr_coc.TextureArray, str], Allocation]]:
    """How cells are chosen, by name."""
    embeddings = arr_coc.Embeddings("labels")
    vlm = None if model is None else arr_coc.load(model)

    def cosines(texture: arr_coc.TextureArray, question: str) -> Allocation:
        with mock.patch.object(arr_coc.Embeddings, "relation", return_value=None):
            return arr_coc.realize(texture, question, budget=budget, using=embeddings)

    def own(texture: arr_coc.TextureArray, question: str) -> Allocation:
        assert vlm is not None
        return vlm.prepare(texture.pixels, question, budget=budget).allocations[0]

    found: dict[str, Callable[[arr_coc.TextureArray, str], Allocation]] = {
        "labels": lambda texture, question: arr_coc.realize(texture, question, budget=budget, using=embeddings),
        "cosines": cosines,
        "no encoder": lambda texture, question: arr_coc.realize(texture, question, budget=budget),
    }
    return found if vlm is None else found | {f"{model}, no encoder": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="photographs with samples.jsonl")
    parser.add_argument("--model", help="also measure what this model does by default")
    parser.add_argument("--budget", default="12.5%", help="(12.5%%)")
    parser.add_argument("--half", choices=tuple(HALVES), default="second", help="(second)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_quiet()
    recalls: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rules: dict[str, Counter[str]] = defaultdict(Counter)
    asked = 0
    for number, picture in enumerate(read_folder(arguments.folder, None).pictures):
        if number % 2 != HALVES[arguments.half]:
            continue
        if number == HALVES[arguments.half]:
            choosers = ways(arguments.budget, arguments.model)
        texture = arr_coc.TextureArray.from_image(picture.still)
        for sample in picture.samples:
            asked += 1
            for name, choose in choosers.items():
                made = choose(texture, sample.question)
                share = recall(made.keep, evidence_cells(sample.evidence, made.grid, picture.size))
                if share is not None:
                    recalls[name][picture.name].append(share)
                rules[name][made.strategy.split(";")[0]] += 1
    print(f"{asked} questions, {arguments.half} half, {arguments.budget}\n\n| way | evidence recall [95%] |\n|---|---|")
    for name, found in recalls.items():
        low, high = interval(found) or (0.0, 0.0)
        print(f"| {name} | {mean(found):.3f} [{low:.2f}, {high:.2f}] |")
    for name, counts in rules.items():
        print(name, dict(counts.most_common(3)))


if __name__ == "__main__":
    main()
