"""Ablation of the learned layer: variants that lack one part, trained on the same pages for the same number of steps.

    python benchmarks/layer_ablation.py DATASET SCANS --out DIR --steps 500 --limit 900 --device cuda --processes 4

DATASET is the output of `python -m recipes.reader.export_dataset`, SCANS the validation scans of `python -m recipes.reader.export_exam`.
Each layer is measured on the scans: evidence recall of the top cells, and the share of answers that the reader gives exactly by
greedy decoding from those cells. DIR/ablation.jsonl gets a line for each variant, DIR/NAME the layer. `--table DIR/ablation.jsonl`
prints the table of the docs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import spawn

import arr_coc
from arr_coc.evaluation.metrics import recall
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from arr_coc.layer.model import CHANNELS, SCORE_NAMES
from arr_coc.texture.layout import MVP13
from arr_coc.training.answer_loss import answers_exactly
from arr_coc.training.batches import LayerTrainingSettings, collate
from arr_coc.training.examples import LookCache, TrainingExample, load_examples, read_folder
from arr_coc.training.journal import Journal
from arr_coc.training.layer import train_layer

SHARES = (0.125, 0.0625)
READ = ("total", "date", "company")  # kinds of questions whose answers are decoded
FAMILIES = {
    "contours": ("edges", "edges_inverted", "distance"),
    "detail": ("highpass", "lowpass"),
    "saliency": ("saliency",),
    "text": ("text",),
    "position": ("x", "y", "eccentricity"),
    "all but those of mvp13": tuple(name for name in CHANNELS if name not in MVP13),
}


@dataclass(frozen=True)
class Variant:
    """One layer, and how it differs from the full one."""

    name: str
    shape: dict[str, Any] = field(default_factory=dict)
    learn: tuple[str, ...] = ("boxes",)
    gate: str = "straight-through"
    without: tuple[str, ...] = ()  # channels
    unseen: str = ""  # a kind of question that is left out of training


def variants() -> list[Variant]:
    found = [Variant("whole")]
    found += [Variant(f"without {name}", without=names) for name, names in FAMILIES.items()]
    found += [Variant(f"pooling {how}", {"pooling": how}) for how in ("max", "mean", "sum")]
    found += [Variant("softmax", {"balance": "softmax"})]
    found += [Variant(f"never asked for a {kind}", unseen=kind) for kind in READ]
    found += [Variant("attention", learn=("attention",)), Variant("boxes, attention", learn=("attention", "boxes"))]
    found += [
        Variant(f"answers, {gate}", learn=("answers",), gate=gate)
        for gate in ("straight-through", "gumbel", "log-gate")
    ]
    return [*found, Variant("boxes, attention, answers", learn=("answers", "attention", "boxes"))]


def load_model(arguments: argparse.Namespace) -> Any:
    vlm = arr_coc.load(arguments.model, layer=None)
    vlm.model.to(arguments.device)
    return vlm


def trim(examples: Sequence[TrainingExample], variant: Variant) -> list[TrainingExample]:
    """The examples without the variant's left-out channels and questions."""
    rows = [place for place, name in enumerate(CHANNELS) if name not in variant.without]
    kept = []
    for example in examples:
        views = [replace(view, channels=view.channels[:, rows]) for view in example.views]
        questions = [one for one in example.questions if one.sample.kind != variant.unseen]
        if questions:
            kept.append(replace(example, views=views, questions=questions))
    return kept


@torch.no_grad()
def measure(
    vlm: Any, looks: LookCache, layer: ArrCocLayer, scans: Sequence[TrainingExample], way: str = ""
) -> dict[str, Any]:
    """Evidence recall and exact answers by share, each with an interval over scans; `way`: by one score only."""
    found: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for example in scans:
        views, questions = [view.to(vlm.device) for view in example.views], [(0, one) for one in example.questions]
        prediction = collate([views], [example], questions, vlm.device).predict(layer)
        logits = (prediction.scores[:, SCORE_NAMES.index(way)] if way else prediction.relevance).cpu()
        for one, row in zip(example.questions, logits, strict=True):
            order = row.argsort(descending=True, stable=True)
            for share in SHARES:
                keep = order[: max(1, round(share * len(order)))].sort().values
                found["recall", share][example.name].append(recall(keep, one.groups) or 0.0)
                if one.sample.kind in READ:
                    sample = one.sample
                    look = looks.at(example.image)
                    right = float(answers_exactly(vlm, look, sample.question, sample.answers[0], keep))
                    for what in ("right", f"right: {one.sample.kind}"):
                        found[what, share][example.name].append(right)
    return {
        f"{what} {100 * share:g}%": {"mean": mean(scores), "interval": interval(scores)}
        for (what, share), scores in found.items()
    }  # fmt: skip


def work(number: int, arguments: argparse.Namespace) -> None:
    """Train every n-th variant in one process."""
    torch.set_num_threads(2)
    vlm = load_model(arguments)
    examples, scans = torch.load(arguments.out / "examples.pt", weights_only=False)
    looks = LookCache(vlm)
    wanted = [one for one in variants() if not arguments.only or one.name in arguments.only]
    for variant in wanted[number :: arguments.processes]:
        settings = LayerTrainingSettings(learn=variant.learn, gate=variant.gate, steps=arguments.steps)
        settings = replace(settings, answers=2 if settings.needs_model else 1)
        config = config_for(
            vlm.adapter, channels=tuple(name for name in CHANNELS if name not in variant.without), **variant.shape
        )
        place = arguments.out / variant.name.replace(", ", "_").replace(" ", "_")
        place.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with Journal(place, events=False, lines=False) as journal:
            trained = train_layer(
                vlm, config, trim(examples, variant), [], place, settings, journal=journal, looks=looks
            )
        measured = trim(scans, replace(variant, unseen=""))
        line = {
            "variant": variant.name,
            "steps": trained.steps,
            "seconds": round(time.monotonic() - started, 1),
            **measure(vlm, looks, trained.layer, measured),
        }
        lines = [line]
        if variant.name == "whole":
            lines += [
                {"variant": f"{way} alone", **measure(vlm, looks, trained.layer, measured, way)} for way in SCORE_NAMES
            ]
        with (arguments.out / "ablation.jsonl").open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in lines)
        print(
            *(
                f"{one['variant']}: "
                + ", ".join(f"{name} {value['mean']:.3f}" for name, value in one.items() if isinstance(value, dict))
                for one in lines
            ),
            sep="\n",
            flush=True,
        )


def print_table(path: Path) -> None:
    lines = {one["variant"]: one for one in map(json.loads, path.read_text().splitlines())}
    columns = [f"{what} {100 * share:g}%" for what in ("recall", "right") for share in SHARES]
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    order = [one.name for one in variants()]
    order[1:1] = [f"{way} alone" for way in SCORE_NAMES]
    for name in order:
        if name in lines:
            cells = [
                f"{lines[name][column]['mean']:.2f} [{lines[name][column]['interval'][0]:.2f}, {lines[name][column]['interval'][1]:.2f}]"
                for column in columns
            ]
            print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path)
    parser.add_argument("scans", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="reader")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--limit", type=int, default=900, help="pages to learn from")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="processes that compute textures")
    parser.add_argument("--processes", type=int, default=1, help="that train at the same time")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--table", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.table is not None:
        return print_table(arguments.table)
    arguments.out.mkdir(parents=True, exist_ok=True)
    vlm = load_model(arguments)
    config = config_for(vlm.adapter)
    examples, scans = (
        load_examples(vlm, read_folder(folder, limit), config, by_answer=True, workers=arguments.workers)
        for folder, limit in ((arguments.dataset, arguments.limit), (arguments.scans, None))
    )
    torch.save((examples, scans), arguments.out / "examples.pt")
    print(f"{len(examples)} training pages, {len(scans)} scans", flush=True)
    del vlm
    if arguments.processes == 1:
        work(0, arguments)
    else:
        spawn(work, (arguments,), arguments.processes)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
