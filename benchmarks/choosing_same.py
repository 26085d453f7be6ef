"""Whether this checkout chooses the same cells as another one, and how far channels and scores differ.

    python benchmarks/choosing_same.py PICTURES... --against CHECKOUT [--threads 2]

PICTURES are images or folders of images. The bundled pictures and one texture of each kind that `arr_coc.draw` knows are added.
Every picture is asked each question at each budget, with the universal layer, on a grid of cells of 28 px; and one is cut into
grids of other sizes. Choices that differ are listed.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arr_coc
from arr_coc.draw.textures import TEXTURES, draw_texture

QUESTIONS = (
    "What is the total amount?",
    "What is the date?",
    "Where is the dog?",
    "Describe the picture.",
    "How many?",
)
BUDGETS = ("12.5%", "auto")
CHANNELS = (
    "red", "edges", "edges_inverted", "edge_magnitude", "highpass", "lowpass", "saliency", "text", "distance", "eccentricity",
)  # fmt: skip
CELL = 28
GRIDS = ((10, 8), (64, 48), (7, 90))  # of the first picture
ENDINGS = (".jpg", ".jpeg", ".png", ".webp")


def pictures(given: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    for path in given:
        found = sorted(one for one in path.iterdir() if one.suffix.lower() in ENDINGS) if path.is_dir() else [path]
        yield from ((str(one), one) for one in found)
    yield "receipt", arr_coc.pictures.receipt()
    yield "scene", arr_coc.pictures.scene()
    yield from ((f"texture {kind}", draw_texture(kind, size=(900, 700))) for kind in TEXTURES)


@torch.no_grad()
def measure(given: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """What is chosen, and the numbers behind it, by picture and what was asked."""
    made: dict[str, dict[str, Any]] = {}
    for number, (name, picture) in enumerate(pictures(given)):
        texture = arr_coc.TextureArray.from_image(picture)
        channels = {one: texture.grid(24, 24, [one]).double().numpy() for one in CHANNELS}
        full = {one: texture[one].double().numpy()[::7, ::7].copy() for one in CHANNELS}
        made[name] = {"channels": channels, "full": full, "choices": {}}
        for grid in (None, *(GRIDS if number == 0 else ())):
            for question in QUESTIONS:
                for budget in BUDGETS:
                    fresh = arr_coc.TextureArray.from_image(picture)
                    found = arr_coc.realize(fresh, question, grid=grid, budget=budget)
                    assert found.relevance is not None
                    numbers = {**found.tensions, "confidence": found.confidence or 0.0}
                    maps = {"relevance": found.relevance, **found.scores}
                    made[name]["choices"][f"{grid} {question} {budget}"] = {
                        "keep": found.keep.numpy(),
                        "strategy": found.strategy,
                        "numbers": numbers,
                        "maps": {key: value.double().numpy() for key, value in maps.items()},
                    }
    return made


def elsewhere(checkout: Path, threads: int, given: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The same by this script with a checkout's package."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "made"
        command = [sys.executable, __file__, *map(str, given), "--threads", str(threads), "--into", str(out)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(checkout / "src")}, check=True)
        return pickle.loads(out.read_bytes())


def compare(here: dict[str, dict[str, Any]], there: dict[str, dict[str, Any]]) -> int:
    """Print how far the two differ; returns the number of choices with other cells."""
    assert here.keys() == there.keys()
    worst: dict[str, float] = {}
    choices = differing = words = 0

    def note(name: str, ours: Any, theirs: Any) -> None:
        worst[name] = max(worst.get(name, 0.0), float(np.abs(np.asarray(ours) - np.asarray(theirs)).max(initial=0)))

    for name, ours in here.items():
        theirs = there[name]
        for place in ("channels", "full"):
            for channel in CHANNELS:
                note(f"channel {channel}, {place}", ours[place][channel], theirs[place][channel])
        for asked, choice in ours["choices"].items():
            other, choices = theirs["choices"][asked], choices + 1
            if not np.array_equal(choice["keep"], other["keep"]):
                differing += 1
                lost = np.setxor1d(choice["keep"], other["keep"])
                print(f"other cells: {name}, {asked}: {len(lost)} of {len(choice['keep'])} {lost[:6].tolist()}")
            if choice["strategy"] != other["strategy"]:
                words += 1
                print(f"other strategy: {name}, {asked}: {choice['strategy']!r} for {other['strategy']!r}")
            for part in ("numbers", "maps"):
                assert choice[part].keys() == other[part].keys(), (name, asked)
                for key, value in choice[part].items():
                    note(f"{part[:-1]} {key}", value, other[part][key])
    print(f"\n{len(here)} pictures, {choices} choices; with other cells: {differing}, with another strategy: {words}")
    print("\n| | largest difference |\n|---|---|")
    for key, value in worst.items():
        print(f"| {key} | {value:.2g} |")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, nargs="*")
    parser.add_argument("--against", type=Path, help="the other checkout of this repository")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--into", type=Path, help="write what was found there, instead of comparing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.into is not None:
        given.into.write_bytes(pickle.dumps(measure(given.pictures)))
        return
    if given.against is None:
        parser.error("expected --against CHECKOUT")
    print(time.strftime("%Y-%m-%d"), f"{given.threads} threads", flush=True)
    root = Path(__file__).resolve().parent.parent
    sides = [elsewhere(one, given.threads, given.pictures) for one in (root, given.against.resolve())]
    raise SystemExit(1 if compare(*sides) else 0)


if __name__ == "__main__":
    main()
