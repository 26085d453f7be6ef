"""What `auto` costs where it cannot choose: answers under `auto` against answers from all tokens, in turns.

python benchmarks/auto_overhead.py [--images FOLDER] [--count 12] [--rounds 5] [--json]

The reader answers three questions that its layer does not recognise and one that it does, about photographs of a folder, which it
does not recognise, and about the bundled pictures. Both ways run in interleaved rounds on one thread; the ratio of each pair of runs is
taken, and its median is printed: of the seconds that pass, and of the processor's, which other processes disturb less. Every answer
has eight tokens, so that both ways generate the same amount.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from PIL import Image

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.vlm.model import AskOptions

QUESTIONS = ("Where is the dog?", "Is there a cat?", "What is unusual here?", "What is the total amount?")
SETTINGS: tuple[AskOptions, AskOptions] = (
    {"budget": "all", "glance": "all", "max_new_tokens": 8, "min_new_tokens": 8},
    {"max_new_tokens": 8, "min_new_tokens": 8},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of photographs")
    parser.add_argument("--count", type=int, default=12, help="photographs (12)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs for each picture (5)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_quiet()
    vlm = arr_coc.load("reader")
    pictures = {"bundled scene": arr_coc.pictures.scene(), "bundled receipt": arr_coc.pictures.receipt()}
    for path in sorted(arguments.images.glob("*.jpg"))[: arguments.count] if arguments.images else []:
        pictures[path.name] = Image.open(path).convert("RGB")
    rows: list[dict[str, object]] = []
    settled: dict[str, list[float]] = {"times_faster": [], "by_processor_time": []}
    for number, (name, picture) in enumerate(pictures.items()):
        question = QUESTIONS[number % len(QUESTIONS)]
        ratios: dict[str, list[float]] = {name: [] for name in settled}
        for _ in range(arguments.rounds + 1):  # the first pair warms up
            times = []
            for options in SETTINGS:
                start = time.perf_counter(), time.process_time()
                answer = vlm.ask(picture, question, **options)
                times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
            for found, dense, auto in zip(ratios.values(), *times, strict=True):
                found.append(dense / auto)
        strategy = answer.allocation.strategy.partition(":")[0]
        medians = {way: round(statistics.median(found[1:]), 3) for way, found in ratios.items()}
        rows.append({"picture": name, "question": question, **medians, **answer.tokens, "strategy": strategy})
        if strategy == "everything":
            for way, ratio in medians.items():
                settled[way].append(ratio)
        if not arguments.json:
            print(rows[-1], flush=True)
    total = {
        way: {"pictures": len(found), "median": statistics.median(found), "least": min(found)}
        for way, found in settled.items()
        if found
    }
    print(json.dumps({"rows": rows, "everything": total}, indent=1) if arguments.json else f"all tokens kept: {total}")


if __name__ == "__main__":
    main()
