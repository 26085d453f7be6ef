"""Measures our superpixels against scikit-image's slic, on photos with object boxes.

    python benchmarks/cluster_quality.py PHOTOS [--limit N]

PHOTOS is a folder with `samples.jsonl`: {"image", "evidence": [[[x0, y0, x1, y1], ...], ...]}. There is no ground-truth
segmentation, so three other measures are used:
- boundary recall: share of the image's strong contours (Canny, sigma 2) within 2 px of a border between segments
- under-segmentation error: for each object box, the area by which segments cross its border, over the box's area
- explained variation: share of the colour variance that the segments' mean colours explain
Boundary recall and under-segmentation error of ours are also measured with scikit-image's segments as ground truth.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from rich.progress import track
from skimage.feature import canny
from skimage.segmentation import find_boundaries
from skimage.segmentation import slic as skimage_slic

from arr_coc import TextureArray
from arr_coc.bench.timing import interleave, machine

REACH = 2  # tolerance of boundary recall, in pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder with photos and samples.jsonl")
    parser.add_argument("--limit", type=int, help="number of photos (all)")
    arguments = parser.parse_args()
    boxes: dict[str, list[list[float]]] = defaultdict(list)
    for line in (arguments.photos / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        boxes[sample["image"]] += [box for group in sample["evidence"] for box in group]
    methods = {
        "ours": lambda image: TextureArray.from_image(image)["cluster_id"].numpy().astype(int),
        "scikit-image slic, 50 segments": lambda image: skimage_slic(image, n_segments=50, start_label=0),
        "scikit-image slic, compactness 20, 58 segments": lambda image: skimage_slic(
            image, n_segments=58, compactness=20, start_label=0
        ),
    }
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    against: list[tuple[float, float]] = []
    for name in track(sorted(boxes)[: arguments.limit], "photos", transient=True):
        image = np.asarray(Image.open(arguments.photos / name).convert("RGB"))
        contours = canny(image @ [0.299, 0.587, 0.114] / 255, sigma=2, low_threshold=0.08, high_threshold=0.2)
        objects = [np.s_[int(y0) : int(y1) + 1, int(x0) : int(x1) + 1] for x0, y0, x1, y1 in boxes[name]]
        ids = {}
        times = interleave({m: lambda s=s, i=image: s(i) for m, s in methods.items()}, rounds=1)  # type: ignore[misc]
        for method, segment in methods.items():
            ids[method] = segment(image)
            leaks = [leak(ids[method], mask_of(window, image)) for window in objects]
            found[method].append(
                (
                    boundary_recall(ids[method], contours),
                    statistics.mean(leaks),
                    explained(ids[method], image),
                    float(len(np.unique(ids[method]))),
                    times[method].best,
                )
            )
        theirs = ids["scikit-image slic, 50 segments"]
        leaks = [leak(ids["ours"], theirs == number) for number in np.unique(theirs)]
        against.append((boundary_recall(ids["ours"], find_boundaries(theirs)), statistics.mean(leaks)))
    print(f"{machine()}; {len(against)} photos\n")
    print(
        "| | boundary recall | under-segmentation error | explained variation | segments | median ms |\n|---|---|---|---|---|---|"
    )
    for method, rows in found.items():
        recall, error, variation, count, milliseconds = (
            float(np.nanmean(column)) for column in zip(*rows, strict=True)
        )
        print(f"| {method} | {recall:.3f} | {error:.3f} | {variation:.3f} | {count:.0f} | {milliseconds:.0f} |")
    recall, error = (float(np.nanmean(column)) for column in zip(*against, strict=True))
    print(
        f"\nours with scikit-image's 50 segments as truth: boundary recall {recall:.3f}, under-segmentation error {error:.3f}"
    )


def boundary_recall(ids: np.ndarray, contours: np.ndarray) -> float:
    if not contours.any():
        return float("nan")
    near = cv2.dilate(find_boundaries(ids).astype(np.uint8), np.ones((2 * REACH + 1, 2 * REACH + 1), np.uint8))
    return float(near[contours].mean())


def leak(ids: np.ndarray, mask: np.ndarray) -> float:
    """Under-segmentation error: the smaller part of each segment that crosses the mask's border, over the mask's area."""
    inside = np.bincount(ids[mask], minlength=ids.max() + 1)
    outside = np.bincount(ids.ravel(), minlength=ids.max() + 1) - inside
    return float(np.minimum(inside, outside).sum() / max(1, mask.sum()))


def mask_of(window: tuple[slice, slice], image: np.ndarray) -> np.ndarray:
    mask = np.zeros(image.shape[:2], bool)
    mask[window] = True
    return mask


def explained(ids: np.ndarray, image: np.ndarray) -> float:
    colours, labels = image.reshape(-1, 3).astype(float), ids.ravel()
    sizes = np.maximum(np.bincount(labels), 1)
    means = np.stack([np.bincount(labels, colours[:, c]) / sizes for c in range(3)], axis=1)
    total = ((colours - colours.mean(0)) ** 2).sum()
    return float(1 - ((colours - means[labels]) ** 2).sum() / max(total, 1e-9))


if __name__ == "__main__":
    main()
