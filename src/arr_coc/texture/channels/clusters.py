"""Clusters: the image in about 50 regions; a pixel's region, its distance from the region's centre, the region's size.

A segmenter is any function from an image `[3, H, W]` to integer ids `[h, w]` of the same or a smaller size, e.g. the masks
of a SAM-like model. Statistics are computed on its own small grid, where each pixel covers a rectangle of the image, and are
exact in image pixels.

`slic`, the default, makes compact superpixels: k-means over colour and position on a reduced image, then connected parts.
- every step is deterministic, so ids are the same from run to run;
- the working size is fixed, so the time hardly depends on the image's size;
- one connected-components call on a doubled lattice finds the parts of all segments: links between pixels exist only
  inside a segment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2
import numpy as np
import torch

from arr_coc.errors import ChannelError
from arr_coc.texture import filters
from arr_coc.texture.kernels import dispatch as kernels
from arr_coc.texture.layout import channel
from arr_coc.types.image import as_tensor

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

Segmenter: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""An image `[3, H, W]` in [0, 1] to integer ids `[h, w]`, at most as large."""

SEGMENTS = 50
WORK_SIDE = 224  # px on the longer side
ROUNDS = 6
COMPACTNESS = (16.0, 64.0, 256.0)  # Lab units that weigh as much as one segment's spacing
SMALLEST = 0.25  # of the mean segment; smaller parts are merged into a neighbour
# The most ids that each dtype can represent.
MAX_IDS = {torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}


@dataclass(frozen=True)
class Clusters:
    """Ids on the segmenter's grid, and each cluster's position and extent in image pixels."""

    ids: torch.Tensor  # int64 [h, w], 0 .. K-1 without gaps
    centre_y: torch.Tensor  # [K], centroid in pixels
    centre_x: torch.Tensor  # [K]
    radius: torch.Tensor  # [K], from the centroid to the farthest member's centre
    share: torch.Tensor  # [K], of the image's pixels


def clusters(texture: TextureArray) -> Clusters:
    """The texture's clusters, computed once."""
    return texture.once("clusters", lambda: _measure(_segment(texture), texture.size))


def _register(name: str, meaning: str, **options: Any) -> Callable[[Callable[[TextureArray], torch.Tensor]], None]:
    """Register a channel that one kernel writes together with the others of this family, or the decorated torch code."""

    def register(by_torch: Callable[[TextureArray], torch.Tensor]) -> None:
        @channel(name, family="clusters", cost="costly", meaning=meaning, **options)
        def cluster_channel(texture: TextureArray) -> torch.Tensor:
            made = kernels.region_planes(texture, name)
            return by_torch(texture) if made is None else made

    return register


@_register("cluster_id", "number of the region a pixel belongs to", range=(0, float("inf")), pool="nearest")
def _cluster_id(texture: TextureArray) -> torch.Tensor:
    return _spread(texture, clusters(texture).ids.float())


@_register("cluster_distance", "distance to the region's centroid over the region's radius")
def _cluster_distance(texture: TextureArray) -> torch.Tensor:
    found = clusters(texture)
    height, width = texture.size
    y = torch.arange(height, device=texture.device)[:, None] + 0.5
    x = torch.arange(width, device=texture.device) + 0.5
    down = y - _spread(texture, found.centre_y[found.ids])
    across = x - _spread(texture, found.centre_x[found.ids])
    inverse = 1 / found.radius.clamp(min=1e-6)  # a cluster of one pixel has radius 0, and so has its distance
    return filters.magnitude(across, down).mul_(_spread(texture, inverse[found.ids])).clamp_(max=1)


@_register("cluster_size", "the region's share of the image")
def _cluster_size(texture: TextureArray) -> torch.Tensor:
    found = clusters(texture)
    return _spread(texture, found.share[found.ids])


@_register("boundaries", "1 on both sides of a border between regions", pool="max")
def _boundaries(texture: TextureArray) -> torch.Tensor:
    ids = _spread(texture, clusters(texture).ids.to(torch.int32))
    border = torch.zeros(texture.size, dtype=torch.bool, device=texture.device)
    down, across = ids[1:] != ids[:-1], ids[:, 1:] != ids[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= across
    border[:, :-1] |= across
    return border.float()


def _segment(texture: TextureArray) -> torch.Tensor:
    """Ids 0 .. K-1 without gaps, checked."""
    segmenter = SEGMENTERS[texture.segmenter] if isinstance(texture.segmenter, str) else texture.segmenter
    own = texture.segmenter == "slic"  # shared with the kernel that writes the channels
    made = texture.once("segments", lambda: segmenter(texture.pixels)) if own else segmenter(texture.pixels)
    ids = as_tensor(made, "a segmenter's ids")
    if ids.ndim != 2 or 0 in ids.shape or any(a > b for a, b in zip(ids.shape, texture.size, strict=True)):
        raise ChannelError(f"a segmenter must return ids [h, w], at most {list(texture.size)}, got {list(ids.shape)}")
    if ids.dtype.is_floating_point and not bool((ids == ids.round()).all()):
        raise ChannelError("a segmenter must return whole ids, got fractions")
    _, dense = torch.unique(ids.to(texture.device), return_inverse=True)
    count = int(dense.max()) + 1
    if count > MAX_IDS[texture.dtype]:
        short = str(texture.dtype).removeprefix("torch.")
        raise ChannelError(
            f"{count} segments cannot be represented in {short} (at most {MAX_IDS[texture.dtype]}); use float32, or fewer segments"
        )
    return dense


def _measure(ids: torch.Tensor, size: tuple[int, int]) -> Clusters:
    count = int(ids.max()) + 1
    flat = ids.flatten()
    top, bottom = (edge[:, None].expand(ids.shape).flatten() for edge in cell_extent(ids.shape[0], size[0], ids.device))
    left, right = (edge[None].expand(ids.shape).flatten() for edge in cell_extent(ids.shape[1], size[1], ids.device))
    area = (bottom - top) * (right - left)

    def total(values: torch.Tensor) -> torch.Tensor:
        """Sum per cluster, in float64, so that the order of the adds hardly matters."""
        return torch.zeros(count, dtype=torch.float64, device=ids.device).index_add_(0, flat, values)

    pixels = total(area)
    centre_y, centre_x = total(area * (top + bottom) / 2) / pixels, total(area * (left + right) / 2) / pixels
    # A rectangle's pixel farthest from any point is one of its corners.
    reach_y = torch.maximum((top + 0.5 - centre_y[flat]).abs(), (bottom - 0.5 - centre_y[flat]).abs())
    reach_x = torch.maximum((left + 0.5 - centre_x[flat]).abs(), (right - 0.5 - centre_x[flat]).abs())
    reach = (reach_y**2 + reach_x**2).sqrt()
    radius = torch.zeros(count, dtype=torch.float64, device=ids.device).scatter_reduce_(0, flat, reach, "amax")
    share = pixels / (size[0] * size[1])
    return Clusters(ids, centre_y.float(), centre_x.float(), radius.float(), share.float())


def cell_under(cells: int, pixels: int, device: torch.device) -> torch.Tensor:
    """The cell that `_spread` fills each pixel from, along one axis: `[pixels]`."""
    return ((2 * torch.arange(pixels, device=device) + 1) * cells) // (2 * pixels)


def cell_extent(cells: int, pixels: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """First pixel and end of the pixels that `_spread` fills from each cell, along one axis: each float64 `[cells]`."""
    ends = torch.bincount(cell_under(cells, pixels, device), minlength=cells).cumsum(0).double()
    return torch.cat([ends.new_zeros(1), ends[:-1]]), ends


def _spread(texture: TextureArray, small: torch.Tensor) -> torch.Tensor:
    """From the segmenter's grid to the texture's size, each pixel from the cell under it."""
    return filters.pool(small, texture.size, "nearest")


def work_size(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) at which images of `size` are segmented."""
    scale = min(1.0, WORK_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def slic(pixels: torch.Tensor) -> torch.Tensor:
    """Segment an image `[3, H, W]` in [0, 1]: connected ids int64 `[h, w]`, at most WORK_SIDE, numbered row by row."""
    made = kernels.segments(pixels)
    if made is not None:
        return made
    size = work_size((int(pixels.shape[1]), int(pixels.shape[2])))
    small = torch.stack(filters.pool_means(pixels, size)).cpu()
    lab = filters.rgb_to_lab(small).numpy()
    for compactness in COMPACTNESS:
        labels = _k_means(lab, compactness)
        ids = connect(labels)
        # In noise, segments by colour break into tiny parts; then position must weigh more.
        if ids.max() + 1 >= (labels.max() + 1) / 2:
            break
    return torch.from_numpy(ids).to(pixels.device)


def _k_means(lab: np.ndarray, compactness: float) -> np.ndarray:
    """k-means from a regular lattice of centres: Lab `[3, h, w]` to ids `[h, w]`.

    A centre competes only for the pixels within one spacing, which makes this fast and the segments compact.
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
    """Split segments into connected parts, merge small parts into a neighbour, and number the rest row by row."""
    parts = _connected_parts(labels)
    sizes = np.bincount(parts.ravel())
    large = sizes >= SMALLEST * parts.size / SEGMENTS
    large[sizes.argmax()] = True
    grown = np.where(large[parts], parts, -1)
    while (grown < 0).any():
        # Parts grow into the holes by one pixel per round, so each stays connected.
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


SEGMENTERS: dict[str, Segmenter] = {"slic": slic}
