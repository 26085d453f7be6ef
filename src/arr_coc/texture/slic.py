"""About 50 compact superpixels: k-means over colour and place on a reduced image, then made connected.

Notable:
- every step is deterministic, so ids are the same from run to run;
- the number of pixels worked on does not depend on the image's size, and so the time hardly does;
- connectedness of all segments is settled by one connected-components call on a doubled lattice, in which links between
  pixels exist only inside a segment.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import torch

from arr_coc.texture.colour_space import rgb_to_lab
from arr_coc.texture.kernels import planes as kernels
from arr_coc.texture.pooling import pool

SEGMENTS = 50
WORK_SIDE = 224  # px on the longer side
ROUNDS = 6
COMPACTNESS = (16.0, 64.0, 256.0)  # Lab units that weigh as much as one segment's spacing
SMALLEST = 0.25  # of the mean segment; smaller fragments join a neighbour


def slic(pixels: torch.Tensor) -> torch.Tensor:
    """Segment an image `[3, H, W]` in [0, 1]: connected ids int64 `[h, w]`, at most WORK_SIDE, numbered row by row."""
    made = kernels.segments(pixels)
    if made is not None:
        return made
    _, height, width = pixels.shape
    scale = min(1.0, WORK_SIDE / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    small = torch.stack([pool(plane, size, "mean") for plane in pixels]).cpu()
    lab = rgb_to_lab(small).numpy()
    for compactness in COMPACTNESS:
        labels = _k_means(lab, compactness)
        ids = connect(labels)
        # In noise colour says nothing, and segments made by it fall to dust; then place must count for more.
        if ids.max() + 1 >= (labels.max() + 1) / 2:
            break
    return torch.from_numpy(ids).to(pixels.device)


def _k_means(lab: np.ndarray, compactness: float) -> np.ndarray:
    """Rounds of assigning and averaging from a regular lattice of centres: Lab `[3, h, w]` to ids `[h, w]`.

    A centre competes only for the pixels within one spacing of it, which is what makes this fast and segments compact.
    """
    _, height, width = lab.shape
    spacing = (height * width / SEGMENTS) ** 0.5
    down = max(1, min(height, SEGMENTS, round(height / spacing)))
    across = max(1, min(width, round(SEGMENTS / down)))
    reach_y, reach_x = math.ceil(height / down), math.ceil(width / across)
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    labels = (np.arange(height) * down // height)[:, None] * across + np.arange(width) * across // width
    planes = [*lab, np.broadcast_to(rows[:, None], (height, width)), np.broadcast_to(columns, (height, width))]
    weights = [plane.ravel() for plane in planes]
    centres = np.zeros((down * across, 5))
    for _ in range(ROUNDS):
        members = np.bincount(labels.ravel(), minlength=len(centres))
        sums = np.stack([np.bincount(labels.ravel(), weight, len(centres)) for weight in weights], axis=1)
        centres = np.where(members[:, None] > 0, sums / np.maximum(members, 1)[:, None], centres)
        nearest = np.full((height, width), np.inf, np.float32)
        for k, centre in enumerate(centres.astype(np.float32)):
            y, x = int(centre[3]), int(centre[4])
            window = (slice(max(0, y - reach_y), y + reach_y + 1), slice(max(0, x - reach_x), x + reach_x + 1))
            place = ((rows[window[0]] - centre[3]) ** 2)[:, None] + (columns[window[1]] - centre[4]) ** 2
            far = place * np.float32((compactness / spacing) ** 2)
            for plane, value in zip(lab, centre[:3], strict=True):
                far += np.square(plane[window] - value)
            nearer = far < nearest[window]
            nearest[window][nearer] = far[nearer]
            labels[window][nearer] = k
    return labels


def connect(labels: np.ndarray) -> np.ndarray:
    """Split segments into connected parts, let small parts join a neighbour, and number the rest row by row."""
    parts = _connected_parts(labels)
    sizes = np.bincount(parts.ravel())
    large = sizes >= SMALLEST * parts.size / SEGMENTS
    large[sizes.argmax()] = True
    grown = np.where(large[parts], parts, -1)
    while (grown < 0).any():
        # Parts grow by one pixel a round into the gaps, so each stays connected.
        for source, target in (
            ((slice(None, -1), slice(None)), (slice(1, None), slice(None))),
            ((slice(1, None), slice(None)), (slice(None, -1), slice(None))),
            ((slice(None), slice(None, -1)), (slice(None), slice(1, None))),
            ((slice(None), slice(1, None)), (slice(None), slice(None, -1))),
        ):
            grown[target] = np.where(grown[target] < 0, grown[source], grown[target])
    _, first, inverse = np.unique(grown, return_index=True, return_inverse=True)
    order = np.empty_like(first)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse].reshape(labels.shape).astype(np.int64)


def _connected_parts(labels: np.ndarray) -> np.ndarray:
    """4-connected parts of equal labels, numbered from 0."""
    height, width = labels.shape
    lattice = np.zeros((2 * height - 1, 2 * width - 1), np.uint8)
    lattice[::2, ::2] = 1
    lattice[1::2, ::2] = labels[1:] == labels[:-1]
    lattice[::2, 1::2] = labels[:, 1:] == labels[:, :-1]
    _, parts = cv2.connectedComponents(lattice, connectivity=4)
    return parts[::2, ::2] - 1
