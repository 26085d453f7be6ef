"""What `arr-coc fit-embeddings` needs: memory over very many pictures, and time with several processes.

    python benchmarks/fit_embeddings_scale.py memory [--pictures 1000 10000 100000]
    python benchmarks/fit_embeddings_scale.py workers PICTURES [--encoder labels] [--rounds 5] [--workers 2]

`memory` runs the command in a fresh process for each number of pictures, on hard links to 500 small JPEGs that it writes, with
an encoder that costs next to nothing (384 dimensions, 16 cells: random directions of the mean colours) and everything else as
always: finding, reading, moments, a state that is kept, judging, report. The figure is the process's peak resident memory.
`workers` gathers the moments of your own folder with one process and with several in turn: milliseconds a picture between
the first block of pictures and the last, the time to start the processes, and the largest difference of the projections.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from arr_coc import Projection
from arr_coc.embedding.encoder import Encoder, Mode, open_encoder
from arr_coc.embedding.projection import fit_projection
from arr_coc.training.projection.gather import find_images, gather_moments

WIDTH, SIDE, DIFFERENT = 384, 4, 500
FOLDER = 1000  # pictures in one folder


class Cheap(Encoder):
    """Mean colours of 4 x 4 cells, a bit bent, in random directions."""

    name = "cheap"
    width = WIDTH

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(0)
        self.inner, self.outer = torch.randn(3, 64, generator=dice), torch.randn(64, WIDTH, generator=dice)

    @property
    def identity(self) -> str:
        return "cheap-0"

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        cells = F.adaptive_avg_pool2d(pixels, SIDE).flatten(1).T  # [16, 3]
        return (torch.sin(4 * cells @ self.inner) @ self.outer).T.reshape(WIDTH, SIDE, SIDE)

    def embed(self, questions: list[str]) -> torch.Tensor:
        seeds = [sum(question.encode()) for question in questions]
        return torch.stack([torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def write_pictures(place: Path, count: int) -> None:
    dice = np.random.default_rng(0)
    originals = place / "originals"
    originals.mkdir()
    for number in range(DIFFERENT):
        small = dice.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((64, 48), Image.Resampling.BICUBIC).save(originals / f"{number}.jpg")
    for number in range(count):
        folder = place / "pictures" / f"{number // FOLDER:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(originals / f"{number % DIFFERENT}.jpg", folder / f"{number:06d}.jpg")


_PROBE = """
import json, resource, sys, time
from arr_coc.cli import main
start = time.perf_counter()
code = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"code": code, "peak_mb": peak, "seconds": time.perf_counter() - start}), file=sys.stderr)
"""


def fitted(*arguments: str) -> dict[str, Any]:
    """One run of the command in a process of its own: exit code, seconds, peak memory."""
    command = [sys.executable, "-c", _PROBE, "fit-embeddings", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    said: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return said


def memory(counts: list[int]) -> None:
    for count in counts:
        with tempfile.TemporaryDirectory() as made:
            place = Path(made)
            write_pictures(place, count)
            encoder = f"{Path(__file__).stem}:{Cheap.__name__}"
            said = fitted(
                str(place / "pictures"), "-o", str(place / "e.safetensors"), "--encoder", encoder, "--exactly"
            )
            made_of = Projection.load(place / "e.safetensors")
        row = {"subject": "memory", "pictures": count, "fitted_on": made_of.pictures} | said
        print(json.dumps(row | where()), flush=True)


def workers(pictures: Path, encoder: str, rounds: int, several: int) -> None:
    images, make = find_images([pictures]), partial(open_encoder, encoder)
    opened = make()
    opened.dense(images[0])  # the first picture brings in what later ones find
    spent: dict[int, list[float]] = {1: [], several: []}
    starting: dict[int, list[float]] = {1: [], several: []}
    apart = 0.0
    for number in range(rounds):
        found = {}
        for count in sorted(spent, reverse=bool(number % 2)):
            at: list[tuple[int, float]] = []
            found[count], _ = gather_moments(images, opened, workers=count, make=make, progress=partial(note, at))
            begun, first, last = at[0], at[1], at[-1]
            spent[count].append((last[1] - first[1]) / (last[0] - first[0]))
            starting[count].append(first[1] - begun[1] - first[0] * spent[count][-1])
        one, more = (fit_projection(found[count].features, dims=32, encoder=encoder) for count in (1, several))
        for name in ("components", "image_mean", "variance"):
            apart = max(apart, float((getattr(one, name) - getattr(more, name)).abs().max()))
    ratios = [more / one for one, more in zip(spent[1], spent[several], strict=True)]
    row = {
        "subject": "workers", "encoder": encoder, "pictures": len(images), "workers": several, "rounds": rounds,
        "ms_a_picture_alone": 1000 * statistics.median(spent[1]),
        "ms_a_picture_together": 1000 * statistics.median(spent[several]),
        "ratio": statistics.median(ratios), "ratios": [round(ratio, 3) for ratio in ratios],
        "seconds_to_start": statistics.median(starting[several]), "largest_difference": apart,
    }  # fmt: skip
    print(json.dumps(row | where()), flush=True)


def note(at: list[tuple[int, float]], done: int, of: int) -> None:
    at.append((done, time.perf_counter()))


def where() -> dict[str, str]:
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}",
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subjects = parser.add_subparsers(dest="subject", required=True)
    many = subjects.add_parser("memory")
    many.add_argument("--pictures", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    timed = subjects.add_parser("workers")
    timed.add_argument("pictures", type=Path)
    timed.add_argument("--encoder", default="labels")
    timed.add_argument("--rounds", type=int, default=5)
    timed.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.subject == "memory":
        memory(given.pictures)
    else:
        workers(given.pictures.resolve(), given.encoder, given.rounds, given.workers)
