"""How long the universal layer takes to choose cells of one 1024 px picture on a CPU, by stage.

    python benchmarks/choosing_time.py [--threads 2] [--rounds 20] [--against CHECKOUT]

Every round makes a new texture, as a new picture does. Wall time and processor time (of all threads) are the least and the
median over the rounds; on a busy machine the least processor time says most. `--against` measures another checkout of this
repository as well, in turns with this one, and prints the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import torch

import arr_coc
from arr_coc.bench.timing import machine
from arr_coc.layer import inference
from arr_coc.layer.universal import question_bytes, shipped_layer
from arr_coc.types.grid import Grid

QUESTION = "What is the total amount?"
SIDE = 1024
CELL = 28
STAGES = ("read the picture", "channels", "pooled to cells", "layer, picture", "layer, question", "all")


def picture() -> Any:
    """The bundled receipt as a page of 768 x 1024 px."""
    return arr_coc.pictures.receipt().convert("RGB").resize((SIDE * 3 // 4, SIDE))


def stages(image: Any) -> dict[str, tuple[float, float]]:
    """Seconds that pass and processor seconds of each stage, once; "all" is one call of `arr_coc.realize` and has more in it."""
    found, last = {}, (0.0, 0.0)

    def done(name: str) -> None:
        nonlocal last
        now = time.perf_counter(), time.process_time()
        found[name] = now[0] - last[0], now[1] - last[1]
        last = now

    layer = shipped_layer(torch.device("cpu"))
    view = Grid(1, round(image.height / CELL), round(image.width / CELL))
    last = time.perf_counter(), time.process_time()
    texture = arr_coc.TextureArray.from_image(image)
    done("read the picture")
    for name in layer.config.channels:
        texture[name]
    done("channels")
    features = inference.texture_features((texture,), view, layer.config)
    done("pooled to cells")
    encoded = layer.encode_view(features.channels, features.pixels)
    done("layer, picture")
    words = question_bytes(QUESTION)[None]
    mask = torch.ones(words.shape[:2], dtype=torch.bool)
    hidden = layer.words(words, mask)
    layer.doubt(hidden, mask, layer.score(encoded, hidden, mask))
    done("layer, question")
    last = time.perf_counter(), time.process_time()
    arr_coc.realize(image, QUESTION, grid=(view.h, view.w), budget="12.5%")
    done("all")
    return found


@torch.no_grad()
def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """The stages of every round but the first two, which warm up."""
    image = picture()
    runs = [stages(image) for _ in range(rounds + 2)][2:]
    return {name: [run[name] for run in runs] for name in STAGES}


def elsewhere(checkout: Path, threads: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """The same, measured by this script with another checkout's package."""
    command = [sys.executable, __file__, "--threads", str(threads), "--rounds", str(rounds), "--raw"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--turns", type=int, default=3, help="turns with --against (3)")
    parser.add_argument("--raw", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cv2.setNumThreads(arguments.threads)
    if arguments.raw:
        print(json.dumps(measure(arguments.rounds)))
        return
    print(machine(), time.strftime("%Y-%m-%d"), f"{arguments.threads} threads", flush=True)
    ways: dict[str, dict[str, list[tuple[float, float]]]] = {"here": {name: [] for name in STAGES}}
    if arguments.against is not None:
        ways["there"] = {name: [] for name in STAGES}
    for _ in range(arguments.turns if arguments.against else 1):
        for way, runs in ways.items():
            root = Path(__file__).resolve().parent.parent if way == "here" else arguments.against
            for name, times in elsewhere(root, arguments.threads, arguments.rounds).items():
                runs[name] += times
    print("\n| stage | checkout | wall, least | wall, median | processor, least | processor, median |")
    print("|---|---|---|---|---|---|")
    for name in STAGES:
        for way, runs in ways.items():
            wall, spent = ([1000 * one[i] for one in runs[name]] for i in range(2))
            cells = [f"{value:.1f} ms" for times in (wall, spent) for value in (min(times), statistics.median(times))]
            print(f"| {name} | {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
