"""Clusters: the image cut into about 50 regions; which one a pixel belongs to, how far from its centre, how large it is.

A segmenter is any function from an image `[3, H, W]` to whole ids `[h, w]` of the same or a smaller size, e.g. the masks
of a SAM-like model. Statistics are taken on its own small grid, each of whose pixels stands for a rectangle of the image,
and are exact in image pixels all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from arr_coc.errors import ChannelError
from arr_coc.texture import filters
from arr_coc.texture.backends import SEGMENTERS
from arr_coc.texture.kernels import planes as kernels
from arr_coc.texture.layout import channel
from arr_coc.texture.pooling import pool
from arr_coc.types.tensors import as_tensor

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

# The largest count of ids that stay apart in each precision.
MOST_IDS = {torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}


@dataclass(frozen=True)
class Clusters:
    """Ids on the segmenter's grid, and each cluster's place and extent in image pixels."""

    ids: torch.Tensor  # int64 [h, w], 0 .. K-1 without gaps
    centre_y: torch.Tensor  # [K], centroid in pixels
    centre_x: torch.Tensor  # [K]
    radius: torch.Tensor  # [K], from the centroid to the farthest member's centre
    share: torch.Tensor  # [K], of the image's pixels


def clusters(texture: TextureArray) -> Clusters:
    """The texture's clusters, computed once."""
    return texture.once("clusters", lambda: _measure(_segment(texture), texture.size))


@channel(
    "cluster_id",
    family="clusters",
    range=(0, float("inf")),
    pool="nearest",
    cost="costly",
    meaning="number of the region a pixel belongs to",
)
def cluster_id(texture: TextureArray) -> torch.Tensor:
    made = kernels.region_planes(texture, "cluster_id")
    return _spread(texture, clusters(texture).ids.float()) if made is None else made


@channel(
    "cluster_distance",
    family="clusters",
    cost="costly",
    meaning="distance to the region's centroid over the region's radius",
)
def cluster_distance(texture: TextureArray) -> torch.Tensor:
    made = kernels.region_planes(texture, "cluster_distance")
    if made is not None:
        return made
    found = clusters(texture)
    height, width = texture.size
    y = torch.arange(height, device=texture.device)[:, None] + 0.5
    x = torch.arange(width, device=texture.device) + 0.5
    down = y - _spread(texture, found.centre_y[found.ids])
    across = x - _spread(texture, found.centre_x[found.ids])
    inverse = 1 / found.radius.clamp(min=1e-6)  # a cluster of one pixel has radius 0, and so has its distance
    return filters.magnitude(across, down).mul_(_spread(texture, inverse[found.ids])).clamp_(max=1)


@channel("cluster_size", family="clusters", cost="costly", meaning="the region's share of the image")
def cluster_size(texture: TextureArray) -> torch.Tensor:
    made = kernels.region_planes(texture, "cluster_size")
    if made is not None:
        return made
    found = clusters(texture)
    return _spread(texture, found.share[found.ids])


@channel(
    "boundaries", family="clusters", pool="max", cost="costly", meaning="1 on both sides of a border between regions"
)
def boundaries(texture: TextureArray) -> torch.Tensor:
    made = kernels.region_planes(texture, "boundaries")
    if made is not None:
        return made
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
    own = texture.segmenter == "slic"  # shared with the channels that a kernel makes of them
    made = texture.once("segments", lambda: segmenter(texture.pixels)) if own else segmenter(texture.pixels)
    ids = as_tensor(made, "a segmenter's ids")
    if ids.ndim != 2 or 0 in ids.shape or any(a > b for a, b in zip(ids.shape, texture.size, strict=True)):
        raise ChannelError(f"a segmenter must return ids [h, w], at most {list(texture.size)}, got {list(ids.shape)}")
    if ids.dtype.is_floating_point and not bool((ids == ids.round()).all()):
        raise ChannelError("a segmenter must return whole ids, got fractions")
    _, dense = torch.unique(ids.to(texture.device), return_inverse=True)
    count = int(dense.max()) + 1
    if count > MOST_IDS[texture.dtype]:
        short = str(texture.dtype).removeprefix("torch.")
        raise ChannelError(
            f"{count} segments cannot be told apart in {short} (at most {MOST_IDS[texture.dtype]}); use float32, or fewer segments"
        )
    return dense


def _measure(ids: torch.Tensor, size: tuple[int, int]) -> Clusters:
    count = int(ids.max()) + 1
    flat = ids.flatten()
    top, bottom = (edge[:, None].expand(ids.shape).flatten() for edge in extent(ids.shape[0], size[0], ids.device))
    left, right = (edge[None].expand(ids.shape).flatten() for edge in extent(ids.shape[1], size[1], ids.device))
    area = (bottom - top) * (right - left)

    def total(values: torch.Tensor) -> torch.Tensor:
        """Per cluster; in float64, so that the order of the adds hardly matters."""
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


def owner(cells: int, pixels: int, device: torch.device) -> torch.Tensor:
    """The cell that `_spread` fills each pixel from, along one axis."""
    return ((2 * torch.arange(pixels, device=device) + 1) * cells) // (2 * pixels)


def extent(cells: int, pixels: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """First pixel and end of the pixels that `_spread` fills from each cell, along one axis."""
    ends = torch.bincount(owner(cells, pixels, device), minlength=cells).cumsum(0).double()
    return torch.cat([ends.new_zeros(1), ends[:-1]]), ends


def _spread(texture: TextureArray, small: torch.Tensor) -> torch.Tensor:
    """From the segmenter's grid to the texture's size, each pixel from the cell under it."""
    return pool(small, texture.size, "nearest")
