"""Measures the memory of one process over a thousand questions.

    PYTHONPATH=. python benchmarks/many_asks.py

A small random model (Qwen2-VL architecture) answers questions about images of many sizes. It runs every stage: glance, selection,
several images, one look with two questions, follow-ups. The resident memory is printed after every tenth of the questions.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.bench.timing import machine
from recipes.reader import folder
from recipes.reader.model import TINY, build


def resident_mb() -> float:
    """Resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=1000, help="number of questions (1000)")
    asks = parser.parse_args().asks
    keep_quiet()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as path:
        vlm = arr_coc.load(folder.write(build(TINY), Path(path), torch.float32))
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"max_new_tokens": 4, "budget": "25%", "glance": "50%"}
    print(machine())
    start = time.monotonic()
    for number in range(1, asks + 1):
        height, width = rng.integers(100, 500, 2)
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        if number % 4 == 0:
            vlm.ask([image, image], "Which?", **options)
        elif number % 4 == 1:
            vlm.ask(vlm.look(image), ["What?", "Where is it?"], **options)
        elif number % 4 == 2:
            first = vlm.ask(image, "What?", remember=True, **options)
            vlm.ask(None, "And?", after=first, max_new_tokens=4)
        else:
            vlm.ask(image, "What?", selector="random", seed=number, **options)
        if number % (asks // 10) == 0:
            gc.collect()
            print(f"{number:5d} asks  {resident_mb():7.1f} MB  {time.monotonic() - start:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
