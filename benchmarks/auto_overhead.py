"""What `auto` costs where it cannot choose: answers under `auto` against answers from all tokens, in turns.

python benchmarks/auto_overhead.py [--images FOLDER] [--count 12] [--rounds 5] [--json]

The reader answers questions that its layer does not recognise, about photographs of a folder and about the bundled pictures. Both
ways run in interleaved rounds on one thread; the ratio of each pair of runs is taken, and its median is printed. Every answer has
eight tokens, so that both ways generate the same amount.
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

QUESTIONS = ("Where is the dog?", "Is there a cat?", "What is unusual here?")
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
    settled: list[float] = []
    for number, (name, picture) in enumerate(pictures.items()):
        question = QUESTIONS[number % len(QUESTIONS)]
        ratios = []
        for _ in range(arguments.rounds + 1):  # the first pair warms up
            times = []
            for options in SETTINGS:
                start = time.perf_counter()
                answer = vlm.ask(picture, question, **options)
                times.append(time.perf_counter() - start)
            ratios.append(times[0] / times[1])
        strategy = answer.allocation.strategy.partition(":")[0]
        ratio = round(statistics.median(ratios[1:]), 3)
        rows.append(
            {"picture": name, "question": question, "times_faster": ratio, **answer.tokens, "strategy": strategy}
        )
        if strategy == "everything":
            settled.append(ratio)
        if not arguments.json:
            print(rows[-1], flush=True)
    total = {"pictures": len(settled), "median": statistics.median(settled), "least": min(settled)} if settled else {}
    print(json.dumps({"rows": rows, "everything": total}, indent=1) if arguments.json else f"all tokens kept: {total}")


if __name__ == "__main__":
    main()
