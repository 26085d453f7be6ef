"""What the memory channels change, one by one: a follow-up that names nothing, and a video.

    python benchmarks/memory_ablation.py --receipts RECEIPTS --limit 20    # a folder with samples.jsonl and evidence boxes
    python benchmarks/memory_ablation.py --clips pan shake zoom object     # drawn clips; needs the extra `labels`

Receipts: a question at 3% of the cells, then "Are you sure?" at as many again. The table has the evidence recall of the question after
each turn, with and without `previous_relevance`, `previous_attention`, and the question itself (the words "Are you sure?" alone choose).
Clips: evidence recall, and how many of the kept cells change from frame to frame (1 - Jaccard), with and without each map that a
stream carries along; "moved": 1 - Jaccard with the choice that has all maps.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import arr_coc
import synthetic_clips
from arr_coc.bench.timing import machine
from arr_coc.evaluation.data import read_samples
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors.base import Choice, Question, SelectionInput, SuppliedSource
from arr_coc.video.memory import MAPS, MemorySettings
from video import covered, jaccard, mean

DOUBT = "Are you sure?"
BUDGET = "3%"
VIDEO_BUDGET = "12.5%"
TURN_MAPS = ("previous_relevance", "previous_attention")


class Without(ArrCoc):
    """ARR-COC that does not see some maps of the turn before, or not its question."""

    def __init__(self, maps: tuple[str, ...] = (), question: bool = False) -> None:
        super().__init__()
        self.maps, self.question = maps, question

    def select(self, selection: SelectionInput) -> Choice:
        source = selection.source
        if isinstance(source, SuppliedSource):
            source = source.base.supply({k: v for k, v in source.maps.items() if k not in self.maps})
        asked = selection.question
        if self.question:
            asked = Question(DOUBT, torch.zeros(0, dtype=torch.long), asked.embed)
            selection = replace(selection, layer=None, probe=None)
        return super().select(replace(selection, source=source, question=asked))


def receipts(folder: Path, limit: int | None) -> str:
    vlm = arr_coc.load("reader")
    ways: dict[str, Any] = {
        "all": Without(),
        **{f"without {name}": Without((name,)) for name in TURN_MAPS},
        "without both maps": Without(TURN_MAPS),
        "without the question before": Without(TURN_MAPS, question=True),
    }
    first: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in ways}
    moved: dict[str, list[float]] = {name: [] for name in ways}
    for picture in read_samples(folder, limit).pictures:
        look = vlm.look(picture.still)
        for sample in picture.samples:
            options: dict[str, Any] = {"max_new_tokens": 24}
            before = vlm.ask(look, sample.question, budget=BUDGET, glance="all", remember=True, **options)
            size = before.allocation.size
            assert size is not None
            groups = evidence_cells(sample.evidence, before.allocation.grid, size)
            first.append(recall(before.allocation.keep, groups) or 0.0)
            # The selector of the follow-up changes, not that of the first turn.
            after = {n: vlm.ask(None, DOUBT, after=before, selector=s, **options).allocation for n, s in ways.items()}
            for name, allocation in after.items():
                found[name].append(recall(allocation.keep, groups) or 0.0)
                moved[name].append(1 - jaccard(allocation, after["all"]))
    lines = ["| after the follow-up | evidence recall | cells moved |", "|---|---|---|"]
    lines += [f"| {name} | {mean(values):.3f} | {mean(moved[name]):.3f} |" for name, values in found.items()]
    return f"Evidence recall of the first turn: {mean(first):.3f} ({len(first)} questions)\n\n" + "\n".join(lines)


def clips(names: list[str], frames: int) -> str:
    embeddings = arr_coc.Embeddings("labels")
    ways = {"all": MAPS, **{f"without {name}": tuple(m for m in MAPS if m != name) for name in MAPS}, "none": ()}
    lines = ["| maps | evidence recall | change from frame to frame | moved |", "|---|---|---|---|"]
    scores: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for clip in (synthetic_clips.draw_clip(name, frames) for name in names):
        made = {}
        for name, maps in ways.items():
            memory = MemorySettings(maps=maps)
            stream = arr_coc.watch(
                clip.frames, clip.question, using=embeddings.with_empty_cache(), budget=VIDEO_BUDGET, memory=memory
            )
            made[name] = [seen.allocation for seen in stream]
        for name, kept in made.items():
            shown = [covered(one, box) for one, box in zip(kept, clip.evidence, strict=True) if box is not None]
            change = mean([1 - jaccard(a, b) for a, b in pairwise(kept)])
            moved = mean([1 - jaccard(a, b) for a, b in zip(kept, made["all"], strict=True)])
            scores[name].append((mean(shown), change, moved))
    for name, rows in scores.items():
        lines.append(f"| {name} | {' | '.join(f'{mean(list(column)):.3f}' for column in zip(*rows, strict=True))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipts", type=Path)
    parser.add_argument("--limit", type=int, help="receipts (all)")
    parser.add_argument("--clips", nargs="+", choices=tuple(synthetic_clips.CLIPS))
    parser.add_argument("--frames", type=int, default=20)
    given = parser.parse_args()
    print(f"{machine()}, {datetime.date.today().isoformat()}\n")
    if given.receipts is not None:
        print(receipts(given.receipts, given.limit))
    if given.clips:
        print(clips(given.clips, given.frames))


if __name__ == "__main__":
    main()
