"""Question to picture: is a picture that shows the thing among the first 1, 5 and 10, in full and in 8 to 64 dimensions?

    python benchmarks/embedding_retrieval.py ENCODER DATA [--folds 2] [--out retrieval.jsonl]

DATA is a folder with samples.jsonl. Each different question is asked of all pictures at once; right are the pictures whose own
questions include it. A picture's score is the best of its cells, or the mean over them. Projections are fitted in folds, so
that no picture is compressed by a fit that it was part of: with two folds there are two projections, whose scores are comparable
because both estimate nearly the same ("full", up to the folds' means). Intervals are over questions (bootstrap, 95%).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from arr_coc.bench.timing import machine
from arr_coc.embedding.encoder import open_encoder
from arr_coc.embedding.projection import Moments, Projection
from arr_coc.evaluation import statistics
from arr_coc.evaluation.data import read_samples
from arr_coc.training.projection.gather import GatheredMoments
from embedding_dims import projections
from embedding_evidence import compressed_scorer, plain_cosine

CUTS = (1, 5, 10)
POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "best cell": lambda scores: scores.amax(1),
    "mean cell": lambda scores: scores.mean(1),
}


def recalls(scores: torch.Tensor, right: torch.Tensor, questions: list[str]) -> dict[str, Any]:
    """`scores` and `right` `[Q, P]`: how often a right picture is among the first, with intervals."""
    ranks = scores.argsort(dim=1, descending=True, stable=True)
    hits = right.gather(1, ranks)
    out: dict[str, Any] = {}
    for cut in CUTS:
        found = hits[:, :cut].any(1).double().tolist()
        by_question = {question: [value] for question, value in zip(questions, found, strict=True)}
        out[f"recall@{cut}"] = statistics.mean(by_question)
        out[f"recall@{cut}_ci"] = statistics.interval(by_question)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("data", type=Path)
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--weight", type=float, default=0.0)
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--mode", choices=("fast", "native"), default="fast")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    encoder = open_encoder(arguments.encoder, arguments.device)
    data = read_samples(arguments.data)
    questions = sorted({sample.question for picture in data.pictures for sample in picture.samples})
    right = torch.tensor(
        [
            [any(sample.question == question for sample in picture.samples) for picture in data.pictures]
            for question in questions
        ]
    )
    texts = encoder.text(questions).cpu()
    features = [
        encoder.dense(picture.still, arguments.mode).features.float().flatten(1).T.cpu() for picture in data.pictures
    ]
    moments = [Moments.of(rows) for rows in features]
    fits: list[dict[str, Projection]] = []
    for fold in range(arguments.folds):
        part = GatheredMoments(Moments.empty(encoder.width))
        for number, one in enumerate(moments):
            part = part + GatheredMoments(one, 1) if number % arguments.folds != fold else part
        fits.append(projections(encoder, part, arguments.dims, [arguments.weight]))
    mine = [next(iter(fits[number % arguments.folds].values())) for number in range(len(features))]
    ways: dict[str, list[torch.Tensor]] = {  # [Q, N] for each picture
        "full, not centred": [plain_cosine(rows, texts) for rows in features],
        "full": [one.full_scores(rows, texts) for one, rows in zip(mine, features, strict=True)],
    }
    for name in fits[0]:
        ways[name.split()[0]] = [
            compressed_scorer(fits[number % arguments.folds][name])(rows, texts) for number, rows in enumerate(features)
        ]
    lines = []
    for name, scores in ways.items():
        for pool, rule in POOLS.items():
            whole = torch.stack([rule(one) for one in scores], dim=1)  # [Q, P]
            lines.append({"dims": name, "score": pool} | recalls(whole, right, questions))
    by_chance = [1 - _none_of(right.sum(1), len(features), cut) for cut in CUTS]
    print(
        f"{encoder.identity}: {len(questions)} questions, {len(features)} pictures; {machine()}, {date.today().isoformat()}\n"
    )
    heads = ["dimensions", "a picture's score", *(f"recall@{cut}" for cut in CUTS)]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for line in lines:
        row = [str(line["dims"]), str(line["score"])]
        for cut in CUTS:
            low, high = line[f"recall@{cut}_ci"]
            row.append(f"{line[f'recall@{cut}']:.3f} ({low:.3f} to {high:.3f})")
        print("| " + " | ".join(row) + " |")
    print("| by chance | | " + " | ".join(f"{value:.3f}" for value in by_chance) + " |")
    if arguments.out is not None:
        head = {
            "encoder": encoder.identity,
            "mode": arguments.mode,
            "machine": machine(),
            "date": date.today().isoformat(),
        }
        arguments.out.write_text("".join(json.dumps(head | line) + "\n" for line in lines))


def _none_of(right: torch.Tensor, pictures: int, cut: int) -> float:
    """How likely a draw of `cut` pictures holds none of the right ones, over questions with `right` `[Q]` right ones."""
    missed = torch.ones(len(right), dtype=torch.float64)
    for drawn in range(cut):
        missed *= (pictures - drawn - right).clamp(min=0) / (pictures - drawn)
    return float(missed.mean())


if __name__ == "__main__":
    main()
