"""The index of images: recall on a folder of photographs, and time at 100,000 vectors, with LanceDB, usearch and numpy.

    python benchmarks/find.py recall DATA [--index DIR]        DATA: a folder with samples.jsonl ("Where is the X?")
    python benchmarks/find.py stores [--vectors 100000]        LanceDB; usearch where it is installed

recall: each different question is a query; right are the images whose own questions include it. "random" is the expected
recall of a random order. "box" is the share of found right images (first 5) whose best box touches the thing (evidence).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.bench.timing import machine
from arr_coc.evaluation.data import read_samples
from arr_coc.find.index import Index
from arr_coc.find.store import Row, Store

CUTS = (1, 5, 10)
DIMS, CELLS, BLOCK, QUERIES, NEAREST = 32, 400, 8, 50, 10  # of the shipped projection; of one image; images of a commit


def recall(data: Path, place: Path | None) -> None:
    samples = read_samples(data)
    index = Index(data, place=place)
    begun = time.monotonic()
    report = index.update()
    encoding = time.monotonic() - begun
    names = [Path(str(picture.still)).name for picture in samples.pictures]
    right: dict[str, dict[str, Any]] = {}
    for name, picture in zip(names, samples.pictures, strict=True):
        for sample in picture.samples:
            right.setdefault(sample.question, {})[name] = sample.evidence
    hits = dict.fromkeys(CUTS, 0)
    chance = dict.fromkeys(CUTS, 0.0)
    touched = pointed = 0
    times = []
    for question, images in right.items():
        begun = time.monotonic()
        found = index.find(question, max(CUTS))
        times.append(time.monotonic() - begun)
        for cut in CUTS:
            hits[cut] += any(one.path.name in images for one in found[:cut])
            wrong = len(names) - len(images)
            chance[cut] += 1 - math.comb(wrong, cut) / math.comb(len(names), cut)
        for one in found[:5]:
            if one.path.name in images:
                pointed += 1
                boxes = [box for group in images[one.path.name] for box in group]
                touched += any(_overlap(one.boxes[0], box) for box in boxes)
    count = len(right)
    print(f"{report.images} images ({report.added} encoded in {encoding:.0f} s), {count} queries, {machine()}")
    for cut in CUTS:
        print(f"recall@{cut}: {hits[cut] / count:.3f}, random {chance[cut] / count:.3f}")
    print(f"best box touches the thing: {touched} of {pointed}")
    print(f"a query: {1000 * float(np.median(times)):.1f} ms (median, its text encoding included)")


def _overlap(one: Any, other: Any) -> bool:
    return bool(min(one[2], other[2]) > max(one[0], other[0]) and min(one[3], other[3]) > max(one[1], other[1]))


def stores(count: int) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(500, DIMS))

    def drawn(number: int, spread: float) -> np.ndarray:
        rows = centres[rng.integers(len(centres), size=number)] + spread * rng.normal(size=(number, DIMS))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    vectors, queries = drawn(count, 0.5), drawn(QUERIES, 0.7)
    images = count // CELLS
    scores = queries @ vectors.T
    truth = np.argsort(-scores.reshape(QUERIES, images, CELLS).max(2), axis=1)[:, :NEAREST]
    print(f"{count} vectors of {DIMS} dimensions, {images} images, {machine()}")
    for name, run in (("numpy", _numpy), ("lancedb", _lancedb), ("usearch", _usearch)):
        folder = Path(tempfile.mkdtemp())
        try:
            found = run(folder, vectors, queries)
            found["recall"] = float(
                np.mean([len(set(a) & set(b)) / NEAREST for a, b in zip(found.pop("images"), truth, strict=True)])
            )
            found["megabytes"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
            print(name, json.dumps({key: round(value, 3) for key, value in found.items()}))
        except ImportError:
            print(name, "is not installed")
        finally:
            shutil.rmtree(folder)


def _timed(run: Callable[[np.ndarray], list[int]], queries: np.ndarray) -> dict[str, Any]:
    run(queries[0])
    begun = time.monotonic()
    images = [run(query) for query in queries]
    return {"images": images, "query_ms": 1000 * (time.monotonic() - begun) / len(queries)}


def _numpy(folder: Path, vectors: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    begun = time.monotonic()
    np.save(folder / "vectors.npy", vectors.astype(np.float16))
    added = time.monotonic() - begun
    loaded = np.load(folder / "vectors.npy").astype(np.float32)

    def run(query: np.ndarray) -> list[int]:
        return np.argsort(-(loaded @ query).reshape(-1, CELLS).max(1))[:NEAREST].tolist()

    return {"add_s": added} | _timed(run, queries)


def _lancedb(folder: Path, vectors: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    store = Store.create(folder, DIMS, {})
    begun = time.monotonic()
    images = len(vectors) // CELLS
    for start in range(0, images, BLOCK):
        store.put([Row(str(n), "", (640, 640), (20, 20), vectors[n * CELLS : (n + 1) * CELLS]) for n in range(start, min(start + BLOCK, images))])  # fmt: skip
    store.compact()
    added = time.monotonic() - begun
    return {"add_s": added} | _timed(lambda query: [int(row.path) for row in store.nearest(query, NEAREST)], queries)


def _usearch(folder: Path, vectors: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    from usearch.index import Index as Graph

    graph = Graph(ndim=DIMS, metric="cos", dtype="f16")
    begun = time.monotonic()
    path = os.fspath(folder / "graph")
    for start in range(0, len(vectors), CELLS * BLOCK):
        part = vectors[start : start + CELLS * BLOCK]
        graph.add(np.arange(start, start + len(part)), part, threads=1)
        graph.save(path)  # the whole file: it has no transactions
    added = time.monotonic() - begun

    def run(query: np.ndarray) -> list[int]:
        cells = np.asarray(graph.search(query, NEAREST * 20, threads=1).keys)  # several cells of an image are near
        return list(dict.fromkeys((cells // CELLS).tolist()))[:NEAREST]

    return {"add_s": added} | _timed(run, queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("recall", "stores"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--index", type=Path)
    parser.add_argument("--vectors", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.what == "stores":
        stores(arguments.vectors)
    elif arguments.data is None:
        parser.error("recall needs DATA")
    else:
        recall(arguments.data, arguments.index)


if __name__ == "__main__":
    main()
