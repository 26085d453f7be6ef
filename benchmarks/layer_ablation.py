"""What the parts of a learned layer are worth: layers that lack one, learned from the same pages for as many steps.

    python benchmarks/layer_ablation.py WORKBOOK SCANS --out DIR --steps 500 --limit 900 --device cuda --processes 4

WORKBOOK is what `python -m recipes.reader.export_dataset` draws, SCANS the validation scans of `python -m recipes.reader.export_exam`.
Each layer is measured on the scans: the share of the evidence among the best cells, and of the answers that the reader
gives right when it reads only those cells (its likeliest token is the right one everywhere). DIR/ablation.jsonl gets a line for each, DIR/NAME
the layer. `--table DIR/ablation.jsonl` prints what is in the docs.
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
from arr_coc.layer.config import CHANNELS
from arr_coc.layer.heads import WAYS
from arr_coc.layer.identity import config_for
from arr_coc.texture.layout import MVP13
from arr_coc.training.answer_loss import says
from arr_coc.training.examples import Lesson, lessons, read
from arr_coc.training.journal import Journal
from arr_coc.training.look_cache import Looks
from arr_coc.training.loop import learn
from arr_coc.training.settings import Settings
from arr_coc.training.steps import collate

SHARES = (0.125, 0.0625)
READ = ("total", "date", "company")  # kinds whose answers are read again
FAMILIES = {
    "contours": ("edges", "edges_inverted", "distance"),
    "detail": ("highpass", "lowpass"),
    "saliency": ("saliency",),
    "text": ("text",),
    "position": ("x", "y", "eccentricity"),
    "all but those of mvp13": tuple(name for name in CHANNELS if name not in MVP13),
}
MODEL = ("attention", "answers")


@dataclass(frozen=True)
class Variant:
    """One layer, and how it differs from the whole one."""

    name: str
    shape: dict[str, Any] = field(default_factory=dict)
    learn: tuple[str, ...] = ("boxes",)
    gate: str = "straight-through"
    without: tuple[str, ...] = ()  # channels
    unseen: str = ""  # a kind of question that is left out


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


def loaded(arguments: argparse.Namespace) -> Any:
    vlm = arr_coc.load(arguments.model, layer=None)
    vlm.model.to(arguments.device)
    return vlm


def trimmed(found: Sequence[Lesson], variant: Variant) -> list[Lesson]:
    """Lessons without what the variant is not told."""
    rows = [place for place, name in enumerate(CHANNELS) if name not in variant.without]
    kept = []
    for lesson in found:
        views = [replace(view, channels=view.channels[:, rows]) for view in lesson.views]
        asked = [one for one in lesson.asked if one.sample.kind != variant.unseen]
        if asked:
            kept.append(replace(lesson, views=views, asked=asked))
    return kept


@torch.no_grad()
def judged(vlm: Any, looks: Looks, layer: ArrCocLayer, scans: Sequence[Lesson], way: str = "") -> dict[str, Any]:
    """Evidence recall and right answers by share, each with an interval over scans; `way`: by one of its scores alone."""
    found: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for lesson in scans:
        said = collate(
            [[view.to(vlm.device) for view in lesson.views]], [lesson], [(0, one) for one in lesson.asked], vlm.device
        ).judged(layer)
        logits = (said.scores[:, WAYS.index(way)] if way else said.relevance).cpu()
        for one, mine in zip(lesson.asked, logits, strict=True):
            order = mine.argsort(descending=True, stable=True)
            for share in SHARES:
                keep = order[: max(1, round(share * len(order)))].sort().values
                found["recall", share][lesson.name].append(recall(keep, one.groups) or 0.0)
                if one.sample.kind in READ:
                    sample = one.sample
                    right = float(says(vlm, looks.at(lesson.image), sample.question, sample.answers[0], keep))
                    for what in ("right", f"right: {one.sample.kind}"):
                        found[what, share][lesson.name].append(right)
    return {
        f"{what} {100 * share:g}%": {"mean": mean(scores), "interval": interval(scores)}
        for (what, share), scores in found.items()
    }  # fmt: skip


def work(number: int, arguments: argparse.Namespace) -> None:
    """One process: every n-th variant."""
    torch.set_num_threads(2)
    vlm = loaded(arguments)
    taught, scans = torch.load(arguments.out / "lessons.pt", weights_only=False)
    looks = Looks(vlm)
    wanted = [one for one in variants() if not arguments.only or one.name in arguments.only]
    for variant in wanted[number :: arguments.processes]:
        tutored = bool(set(variant.learn) & set(MODEL))
        settings = Settings(learn=variant.learn, gate=variant.gate, steps=arguments.steps, answers=2 if tutored else 1)
        config = config_for(
            vlm.adapter, channels=tuple(name for name in CHANNELS if name not in variant.without), **variant.shape
        )
        place = arguments.out / variant.name.replace(", ", "_").replace(" ", "_")
        place.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with Journal(place, events=False, lines=False) as journal:
            learned = learn(vlm, config, trimmed(taught, variant), [], place, settings, journal=journal, looks=looks)
        told = trimmed(scans, replace(variant, unseen=""))
        line = {
            "variant": variant.name,
            "steps": learned.steps,
            "seconds": round(time.monotonic() - started, 1),
            **judged(vlm, looks, learned.layer, told),
        }
        lines = [line]
        if variant.name == "whole":
            lines += [{"variant": f"{way} alone", **judged(vlm, looks, learned.layer, told, way)} for way in WAYS]
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


def table(path: Path) -> None:
    lines = {one["variant"]: one for one in map(json.loads, path.read_text().splitlines())}
    columns = [f"{what} {100 * share:g}%" for what in ("recall", "right") for share in SHARES]
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    order = [one.name for one in variants()]
    order[1:1] = [f"{way} alone" for way in WAYS]
    for name in order:
        if name in lines:
            cells = [
                f"{lines[name][column]['mean']:.2f} [{lines[name][column]['interval'][0]:.2f}, {lines[name][column]['interval'][1]:.2f}]"
                for column in columns
            ]
            print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workbook", nargs="?", type=Path)
    parser.add_argument("scans", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="reader")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--limit", type=int, default=900, help="pages to learn from")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="processes that look at the pictures")
    parser.add_argument("--processes", type=int, default=1, help="that learn at the same time")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--table", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.table is not None:
        return table(arguments.table)
    arguments.out.mkdir(parents=True, exist_ok=True)
    vlm = loaded(arguments)
    config = config_for(vlm.adapter)
    taught, scans = (
        lessons(vlm, read(folder, limit), config, by_answer=True, workers=arguments.workers)
        for folder, limit in ((arguments.workbook, arguments.limit), (arguments.scans, None))
    )
    torch.save((taught, scans), arguments.out / "lessons.pt")
    print(f"{len(taught)} pages to learn from, {len(scans)} scans", flush=True)
    del vlm
    if arguments.processes == 1:
        work(0, arguments)
    else:
        spawn(work, (arguments,), arguments.processes)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
