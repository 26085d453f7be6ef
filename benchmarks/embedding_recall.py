"""How well an encoder finds what a question names, compared with chance and the picture's centre.

    python benchmarks/embedding_recall.py DATA [--encoder labels] [--mode fast] [--share 0.125] [--choices]

DATA is a folder with `samples.jsonl` and evidence boxes. Every cell of a grid (28 px of the picture each) gets the cosine of
its features with the question; the best eighth is kept. Recall is the share of the answer's cells among them, lift its
ratio to chance, pointing whether the very best cell is one of the answer's. Intervals are 95%, by bootstrap over pictures.

Pictures are numbered in order; the default encoder's settings were chosen on those with even numbers, so the odd ones are
the honest figure. `--choices` repeats the measurement with one setting of the default encoder changed at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from arr_coc.embedding import Encoder, open_encoder
from arr_coc.embedding.labels import LabelsEncoder
from arr_coc.evaluation import statistics
from arr_coc.evaluation.data import Data, read_samples
from arr_coc.evaluation.metrics import chance, evidence_cells, pointing, recall
from arr_coc.selectors.controls import distance_from_centre
from arr_coc.selectors.scoring import top_k
from arr_coc.texture.filters import resample
from arr_coc.types.grid import Grid

CELL = 28  # px
Scores = dict[str, list[float]]  # picture -> its questions
Ranking = Callable[[int, Grid], torch.Tensor]  # picture's number and grid to its questions' cell values [Q, N]


@dataclass
class Measured:
    recall: Scores = field(default_factory=dict)
    chance: Scores = field(default_factory=dict)
    pointing: Scores = field(default_factory=dict)


def measure(data: Data, share: float, ranking: Ranking) -> Measured:
    out = Measured()
    for number, picture in enumerate(data.pictures):
        width, height = picture.size
        grid = Grid(1, max(1, round(height / CELL)), max(1, round(width / CELL)))
        count = max(1, round(share * grid.n))
        for sample, values in zip(picture.samples, ranking(number, grid), strict=True):
            groups = evidence_cells(sample.evidence, grid, picture.size)
            kept, lucky = recall(top_k(values, count), groups), chance(count, grid.n, groups)
            pointed = pointing(values, groups)
            if kept is None or lucky is None or pointed is None:
                continue  # a question without evidence says nothing here
            out.recall.setdefault(picture.name, []).append(kept)
            out.chance.setdefault(picture.name, []).append(lucky)
            out.pointing.setdefault(picture.name, []).append(pointed)
    return out


def by_centre(data: Data) -> Ranking:
    return lambda number, grid: (-distance_from_centre(grid, torch.arange(grid.n))).expand(
        len(data.pictures[number].samples), -1
    )


def by_encoder(data: Data, encoder: Encoder, mode: str, spent: dict[str, list[float]]) -> Ranking:
    """`spent` collects the milliseconds of every picture and every question."""

    def ranking(number: int, grid: Grid) -> torch.Tensor:
        picture = data.pictures[number]
        start = time.perf_counter()
        dense = encoder.dense(picture.image, mode)  # type: ignore[arg-type]
        middle = time.perf_counter()
        asked = encoder.text([sample.question for sample in picture.samples])
        values = dense.similarity(asked)
        spent.setdefault("picture", []).append(1000 * (middle - start))
        spent.setdefault("question", []).append(1000 * (time.perf_counter() - middle) / len(picture.samples))
        return torch.stack([resample(plane, (grid.h, grid.w)).flatten() for plane in values.cpu()])

    return ranking


def only(scores: Scores, names: set[str]) -> Scores:
    return {name: values for name, values in scores.items() if name in names}


def rows(data: Data, name: str, found: Measured, centre: Measured) -> Iterator[str]:
    """One line of the table for the pictures with even numbers, with odd ones, and all."""
    names = [picture.name for picture in data.pictures]
    for which, some in (("even", set(names[0::2])), ("odd", set(names[1::2])), ("all", set(names))):
        kept, lucky = only(found.recall, some), statistics.mean(only(found.chance, some))
        middle, middle_bounds = statistics.mean(kept), statistics.interval(kept)
        at_centre = statistics.mean(only(centre.recall, some))
        points = statistics.mean(only(found.pointing, some))
        assert middle is not None
        assert middle_bounds is not None
        assert lucky
        assert at_centre
        low, high = middle_bounds
        yield (
            f"| {name} | {which} | {middle:.3f} [{low:.3f}, {high:.3f}] | {middle / lucky:.2f} "
            f"[{low / lucky:.2f}, {high / lucky:.2f}] | {middle / at_centre:.2f} | {points:.2f} |"
        )


class Whole(LabelsEncoder):
    """The whole question, with its stop words."""

    def embed(self, questions: list[str]) -> torch.Tensor:
        return self.sentences(questions) - self.mean


class Uncentred(LabelsEncoder):
    """Sentence embeddings without centring."""

    @property
    def mean(self) -> torch.Tensor:
        return torch.zeros(self.width, device=self.device)


def choices(encoder: LabelsEncoder) -> Iterator[tuple[str, Encoder]]:
    """The default encoder with one setting changed."""

    def made(kind: type[LabelsEncoder] = LabelsEncoder, **changed: object) -> Encoder:
        parts = encoder.classifier, encoder.sentences, encoder.labels, encoder.device
        return kind(*parts, **changed)  # type: ignore[arg-type]

    for side in (224, 448, 896):
        yield f"{side} px", made(side=side)
    for temperature in (0.5, 1.0, 4.0):
        yield f"temperature {temperature:g}", made(temperature=temperature)
    yield "labels' names alone", made(sentence="{name}")
    yield "name and kind", made(sentence="{name}, {kind}")
    yield "whole question", made(Whole)
    yield "not centred", made(Uncentred)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", default="labels")
    parser.add_argument("--mode", choices=["fast", "native"], default="fast")
    parser.add_argument("--share", type=float, default=0.125, help="of the cells that are kept")
    parser.add_argument("--limit", type=int, help="pictures")
    parser.add_argument("--choices", action="store_true", help="one setting of the default encoder changed at a time")
    arguments = parser.parse_args()
    data = read_samples(arguments.data, arguments.limit)
    encoder = open_encoder(arguments.encoder)
    encoder.text(["warm"])
    centre = measure(data, arguments.share, by_centre(data))
    print(f"{data.questions} questions about {len(data.pictures)} pictures, {encoder.identity}, {arguments.mode}\n")
    print("| | pictures | evidence recall | times chance | times centre | pointing |\n|---|---|---|---|---|---|")
    print(*rows(data, "centre", centre, centre), sep="\n")
    spent: dict[str, list[float]] = {}
    found = measure(data, arguments.share, by_encoder(data, encoder, arguments.mode, spent))
    print(*rows(data, encoder.name, found, centre), sep="\n", flush=True)
    if arguments.choices and isinstance(encoder, LabelsEncoder):
        for name, other in choices(encoder):
            changed = measure(data, arguments.share, by_encoder(data, other, arguments.mode, {}))
            print(*rows(data, name, changed, centre), sep="\n", flush=True)
    for what, took in spent.items():
        print(f"\n{what}: median {np.median(took):.1f} ms, {torch.get_num_threads()} threads", end="")
    print()


if __name__ == "__main__":
    main()
