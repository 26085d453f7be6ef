"""Measures the cascade against encoding every window: time, overlap of the kept cells, and recall of the evidence.

    python benchmarks/cascade.py PHOTOS --pages 6

PHOTOS is a folder that `arr-coc eval` reads, with evidence. Large images are made from it: "collage" is a grid of 4 x 4
photographs of 640 x 480 px each; "enlarged" is one photograph at four times its size, without additional detail. Two questions
are asked about each image at 12.5% of the cells: with one pass of the encoder, with all of its windows, and with the cascade.
"direct" times `realize` on grids of up to 65,536 cells with cached features, where a cascade has nothing to save.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

import arr_coc
from arr_coc import Embeddings, TextureArray
from arr_coc.bench.timing import machine
from arr_coc.evaluation import metrics
from arr_coc.evaluation.data import Data, Sample, read_samples

BUDGET = "12.5%"
METHODS = ("one pass", "all windows", "cascade")
Page = tuple[Image.Image, dict[str, list[list[list[float]]]]]  # an image, and the evidence of each question


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder with photographs, questions and evidence")
    parser.add_argument("--pages", type=int, default=6, help="images of each kind (6)")
    parser.add_argument("--kinds", nargs="+", default=["direct", "collage", "enlarged"], help="what to measure (all)")
    arguments = parser.parse_args()
    print(machine())
    data = read_samples(arguments.photos)
    encoder = Embeddings("labels")
    encoder.query(["a dog"])
    for kind in arguments.kinds:
        if kind == "direct":
            direct(encoder)
        else:
            compare(kind, list(pages(data, kind, arguments.pages)), encoder)


def direct(embeddings: Embeddings) -> None:
    """Time `realize` on growing grids with cached features."""
    texture = TextureArray.from_image(arr_coc.pictures.scene())
    for side in (36, 64, 128, 256):
        for name, using in (("no question", None), ("embeddings", embeddings)):
            times = []
            for _ in range(10):
                start = time.perf_counter()
                arr_coc.realize(texture, "Where is the dog?", (side, side), BUDGET, using)
                times.append((time.perf_counter() - start) * 1e3)
            print(
                f"direct, {side * side} cells, {name}: median {statistics.median(times[1:]):.1f} ms, best {min(times):.1f}"
            )


def pages(data: Data, kind: str, count: int) -> Iterator[Page]:
    """Large images made from random photographs, with the evidence moved to its new place."""
    rng = random.Random(0)
    photos: dict[str, list[Sample]] = {}
    pictures = {}
    for picture in data.pictures:
        pictures[picture.name] = picture
        photos[picture.name] = list(picture.samples)
    for _ in range(count):
        names = rng.sample(sorted(photos), 16 if kind == "collage" else 1)
        evidence: dict[str, list[list[list[float]]]] = {}
        stills = [pictures[name].frames[0] for name in names]
        images = [(Image.open(one) if isinstance(one, Path) else one).convert("RGB") for one in stills]
        if kind == "collage":
            page = Image.new("RGB", (2560, 1920))
            places = [(number % 4 * 640, number // 4 * 480, 640, 480) for number in range(16)]
        else:
            page = Image.new("RGB", (4 * images[0].width, 4 * images[0].height))
            places = [(0, 0, *page.size)]
        for name, image, (x, y, wide, high) in zip(names, images, places, strict=True):
            page.paste(image.resize((wide, high), Image.Resampling.BICUBIC), (x, y))
            across, down = wide / image.width, high / image.height
            for sample in photos[name]:
                for group in sample.evidence:
                    evidence.setdefault(sample.question, []).append(
                        [[b[0] * across + x, b[1] * down + y, b[2] * across + x, b[3] * down + y] for b in group]
                    )
        yield page, evidence


def compare(kind: str, made: list[Page], opened: Embeddings) -> None:
    """Ask two questions about every page with each method, and print the means."""
    found: dict[str, list[float]] = {}
    for page, evidence in made:
        textures = {method: TextureArray.from_image(page, max_side=None) for method in METHODS}
        for texture in textures.values():
            arr_coc.realize(texture, "?", budget=BUDGET)
        using = {
            method: Embeddings(opened.encoder, opened.projection, mode="fast" if method == "one pass" else "native")
            for method in METHODS
        }
        for number, question in enumerate(sorted(evidence)[:2], start=1):
            kept = {}
            for method, texture in textures.items():
                start = time.perf_counter()
                kept[method] = arr_coc.realize(
                    texture, question, None, BUDGET, using[method], coupling="embeddings",
                    cascade="on" if method == "cascade" else "off",
                )  # fmt: skip
                found.setdefault(f"{number} seconds, {method}", []).append(time.perf_counter() - start)
            groups = metrics.evidence_cells(evidence[question], kept[METHODS[1]].grid, page.size)
            for method, one in kept.items():
                found.setdefault(f"{number} recall, {method}", []).append(metrics.recall(one.keep, groups) or 0.0)
                common = float(torch.isin(one.keep, kept["all windows"].keep).float().mean())
                found.setdefault(f"{number} in common with all windows, {method}", []).append(common)
            coverage = next(note for note in kept["cascade"].notes if "windows" in note).split()
            found.setdefault(f"{number} share of windows, cascade", []).append(int(coverage[8]) / int(coverage[10]))
        del textures
    first = zip(found["1 seconds, all windows"], found["1 seconds, cascade"], strict=True)
    print(f"{kind}: first question {statistics.median(a / b for a, b in first):.2f} times faster (median)")
    for name, values in sorted(found.items()):
        print(f"{kind}: question {name}: mean {statistics.mean(values):.3f}")


if __name__ == "__main__":
    main()
