"""Times the way from a large JPEG file to chosen cells: reading, finding the region, preprocessing, choosing what to encode.

    python benchmarks/large_image_time.py PHOTO.jpg [PHOTO.jpg ...]

Nothing is encoded or generated. Four ways take turns, so that the load of the machine is the same for all of them: views; cells of
different sizes; the whole image at one scale; and an image of 640 px. Times are process times of one thread (`OMP_NUM_THREADS=1`) and wall-clock times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

import arr_coc
from arr_coc.bench.timing import machine
from arr_coc.devices import Stopwatch
from arr_coc.vlm import stages
from arr_coc.vlm.request import parse_request

QUESTION = "What is the total amount?"
DETAILS = {"views": "auto", "mixed": "mixed", "one scale": "off", "640 px": "auto"}


def choose(vlm: Any, path: Path, detail: str) -> tuple[float, float, int]:
    """Seconds of wall clock and of processor until the cells to encode are chosen, and how many they are."""
    wall, own = time.perf_counter(), time.process_time()
    request = parse_request(
        path, QUESTION, videos=None, video=None, fps=None, frames=None, look=None, budget=256, glance=256,
        selector="arr-coc", glance_selector=None, allocation=None, shared=False, seed=0, gaze=None, raw=False,
        detail=detail, straighten="auto", frames_per_patch=1,
    )  # fmt: skip
    count = 0
    for context in vlm._contexts(request, Stopwatch(vlm.device)):
        plan = stages.glance(context)
        count += sum(map(len, plan.cells)) if plan.cells is not None else sum(v.n for v in context.visuals)
    return time.perf_counter() - wall, time.process_time() - own, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    vlm = arr_coc.load("reader")
    times: dict[str, list[tuple[float, float, int]]] = {name: [] for name in DETAILS}
    with tempfile.TemporaryDirectory() as folder:
        small = {}
        for path in given.photos:
            small[path] = Path(folder) / path.name
            with Image.open(path) as opened:
                opened.thumbnail((640, 640))
                opened.save(small[path], quality=90)
        for number in range(given.rounds + 1):
            for path in given.photos:
                for name in times:
                    found = choose(vlm, small[path] if name == "640 px" else path, DETAILS[name])
                    if number:  # the first round is warm-up
                        times[name].append(found)
    print(f"{machine()}; {len(given.photos)} photos, {given.rounds} rounds")
    print("| | wall clock, median | processor, median | cells to encode |\n|---|---|---|---|")
    for name, all_of in times.items():
        wall, own, cells = (statistics.median(one[part] for one in all_of) for part in range(3))
        print(f"| {name} | {wall:.2f} s | {own:.2f} s | {cells:.0f} |")


if __name__ == "__main__":
    main()
