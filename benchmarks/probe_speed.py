"""What a probe of the language model costs in an answer: the reader without a layer, against the stock model, in turns.

    OMP_NUM_THREADS=1 python benchmarks/probe_speed.py [--images FOLDER] [--count 4] [--rounds 5]

Every way answers the same questions with eight tokens: the stock model (all tokens), `arr-coc-untrained` with a separate probe,
and the same with `continues=True`, where the probed layers are the first layers of the prefill. Pictures: the bundled receipt as a
small page, a half page and as it is; with `--images`, those of a folder. Ratios are medians over rounds, above 1 where the stock
model is slower; "language" is the time without the vision encoder. Times are CPU time of one thread, so that other work on
the machine counts little.

    OMP_NUM_THREADS=1 python benchmarks/probe_speed.py --scans SCANS --limit 27

counts right answers either way instead, on the validation scans of `python -m recipes.reader.export_exam --receipts`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.bench.timing import machine
from arr_coc.evaluation.metrics import exact
from arr_coc.relevance.selector import Untrained
from arr_coc.training.examples import read_folder
from arr_coc.vlm import stages

QUESTION = "What is the total amount?"
BUDGETS, SMALL_BUDGETS = ("25%", "12.5%"), ("12.5%", "6.25%")
KINDS = ("total", "date", "company")
TOKENS: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8}
SIZES = {"small page": 0.4, "half page": 0.7, "page": 1.0}  # the bundled receipt, scaled


def timed(vlm: Any, image: Any, options: dict[str, Any]) -> tuple[float, float, Any]:
    """CPU seconds of one answer, those without the vision encoder, and the answer."""
    spent = [0.0]
    run = stages._run_encoder

    def encode(*arguments: Any) -> Any:
        start = time.process_time()
        found = run(*arguments)
        spent[0] += time.process_time() - start
        return found

    with mock.patch.object(stages, "_run_encoder", encode):
        start = time.process_time()
        answer = vlm.ask(image, QUESTION, **TOKENS, **options)
        total = time.process_time() - start
    return total, total - spent[0], answer


def count_right(vlm: Any, scans: Path, limit: int | None) -> None:
    """Right answers about the scans, from a separate probe and from one that the prefill continues."""
    right: Counter[tuple[str, bool]] = Counter()
    asked = 0
    for picture in read_folder(scans, limit).pictures:
        look = vlm.look(picture.still)
        for sample in (one for one in picture.samples if one.kind in KINDS):
            asked += 1
            for budget in SMALL_BUDGETS:
                for continues in (False, True):
                    answer = vlm.ask(look, sample.question, budget=budget, selector=Untrained(continues=continues))
                    right[budget, continues] += bool(exact(answer.text, sample.answers))
    print(f"\n| of {asked} questions | separate probe | continued |\n|---|---|---|")
    for budget in SMALL_BUDGETS:
        print(f"| {budget} | {right[budget, False]} | {right[budget, True]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of pages (the bundled receipt in three sizes)")
    parser.add_argument("--only", choices=tuple(SIZES), nargs="+", default=tuple(SIZES), help="sizes of it (all)")
    parser.add_argument("--count", type=int, default=4, help="pictures of the folder (4)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scans", type=Path, help="count right answers on these validation scans instead")
    parser.add_argument("--limit", type=int, help="number of scans (all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_quiet()
    print(machine(), time.strftime("%Y-%m-%d"), flush=True)
    vlm = arr_coc.load("reader", layer=None)
    if arguments.scans is not None:
        count_right(vlm, arguments.scans, arguments.limit)
        return
    receipt = arr_coc.pictures.receipt()
    pictures = {
        name: receipt.resize((round(receipt.width * scale), round(receipt.height * scale)))
        for name, scale in SIZES.items()
        if name in arguments.only
    }
    if arguments.images is not None:
        found = sorted(path for path in arguments.images.iterdir() if path.suffix in (".jpg", ".png"))
        pictures = {path.name: Image.open(path).convert("RGB") for path in found[: arguments.count]}
    ways: dict[str, dict[str, Any]] = {"stock": {"budget": "all", "glance": "all"}}
    for budget in BUDGETS:
        for continues in (False, True):
            selector = Untrained(continues=continues)
            ways[f"{budget}, {'continued' if continues else 'separate probe'}"] = {
                "budget": budget,
                "selector": selector,
            }
    print("\n| picture | cells | way | answer | language | kept | read a layer |\n|---|---|---|---|---|---|---|")
    for name, picture in pictures.items():
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        answers = {}
        for turn in range(arguments.rounds + 1):  # the first one warms up
            for way, options in ways.items():
                total, language, answers[way] = timed(vlm, picture, options)
                times[way] += [(total, language)] if turn else []
        for way, answer in answers.items():
            ratios = [
                statistics.median(stock[i] / own[i] for stock, own in zip(times["stock"], times[way], strict=True))
                for i in range(2)
            ]
            read = answer.allocation.read
            print(
                f"| {name} | {answer.tokens['all']} | {way} | {ratios[0]:.2f}x | {ratios[1]:.2f}x | {answer.tokens['kept']} "
                f"| {answer.tokens['kept'] if read is None else round(read)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
