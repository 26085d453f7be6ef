"""Choosing for a batch of pictures in one pass, against one picture after the other: processor time, and the cells' equality.

    python benchmarks/choosing.py                  # eight scans and pages of different sizes, the universal layer
    python benchmarks/choosing.py --same           # eight pictures of one size
    python benchmarks/choosing.py --device cuda    # wall time, with a synchronisation at the end of each pass

The two ways take turns, each on new textures. Timed is all from the decoded picture to the cells: texture, statistics, layer,
selection. On a CPU only the layer's work is shared, and padding costs more than that saves: there `ask` chooses one by one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date

import torch
from PIL import Image

from arr_coc.bench.timing import machine
from arr_coc.devices import Stopwatch
from arr_coc.draw import samples
from arr_coc.layer.inference import LayerPredictor
from arr_coc.relevance.selector import ArrCoc
from arr_coc.relevance.together import prepare
from arr_coc.selectors.base import Choice, ImageSource, Question, SelectionInput
from arr_coc.texture.kernels.cuda_graph import CAPTURE_AFTER
from arr_coc.types.grid import Grid

CELL = 28  # px
BATCH = 8
QUESTIONS = ("What is the total amount?", "What is the date?", "Which company is it?", "Who is the cashier?")
SIZES = ((640, 480), (768, 1024), (1024, 473), (900, 700), (1280, 960), (1024, 768), (1600, 1200), (2048, 1024))


def pictures(same: bool) -> list[Image.Image]:
    receipt = samples.receipt()
    sizes = [(768, 1024)] * BATCH if same else list(SIZES)
    return [receipt.rotate(3 * number, fillcolor="white").resize(size) for number, size in enumerate(sizes)]


def selections(shown: list[Image.Image], device: torch.device) -> list[SelectionInput]:
    """As an answer makes them, with textures that are not computed yet."""
    made = []
    for number, picture in enumerate(shown):
        grid = Grid(1, max(1, picture.height // CELL), max(1, picture.width // CELL))
        question = Question(QUESTIONS[number % len(QUESTIONS)], torch.arange(5))
        made.append(
            SelectionInput(
                grid, grid.n // 4, torch.arange(grid.n), question, source=ImageSource(picture, picture.size),
                universal=LayerPredictor(None, device), watch=Stopwatch(device),
            )
        )  # fmt: skip
    return made


def one_by_one(given: list[SelectionInput]) -> list[Choice]:
    selector = ArrCoc()
    return [selector.before_encoding(one) for one in given]


def together(given: list[SelectionInput]) -> list[Choice]:
    selector = ArrCoc()
    return [selector.before_encoding(one) for one in prepare(given)]


def timed(
    way: Callable[[list[SelectionInput]], list[Choice]], given: list[SelectionInput]
) -> tuple[float, list[Choice]]:
    """Milliseconds a picture: of the processor on a CPU, of the clock on a GPU."""
    on_gpu = given[0].watch is not None and given[0].watch.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    start = clock()
    found = way(given)
    if on_gpu:
        torch.cuda.synchronize()
    return 1000 * (clock() - start) / len(given), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", action="store_true", help="pictures of one size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    device = torch.empty(0, device=arguments.device).device  # with its number, as a model's
    shown = pictures(arguments.same)
    # On a GPU the third batch of a shape records graphs, which takes longer.
    warm = 1 if device.type == "cpu" else CAPTURE_AFTER + 1
    times: dict[str, list[float]] = {"one by one": [], "together": []}
    differing = 0
    for number in range(arguments.rounds + warm):
        spent_alone, alone = timed(one_by_one, selections(shown, device))
        spent_together, batched = timed(together, selections(shown, device))
        differing += sum(not torch.equal(a.keep, b.keep) for a, b in zip(alone, batched, strict=True))
        print(f"round {number}: {spent_alone:.2f}, {spent_together:.2f} ms a picture", file=sys.stderr, flush=True)
        if number >= warm:  # the first round loads and compiles
            times["one by one"].append(spent_alone)
            times["together"].append(spent_together)
    print(f"{machine()}, {date.today()}, batch of {len(shown)}, {'one size' if arguments.same else 'mixed sizes'}")
    for name, runs in times.items():
        print(f"{name:12} {statistics.median(runs):6.2f} ms a picture (best {min(runs):.2f})")
    ratios = [a / b for a, b in zip(times["one by one"], times["together"], strict=True)]
    print(f"together is {statistics.median(ratios):.2f} times as fast; pictures with other cells: {differing}")


if __name__ == "__main__":
    main()
