"""Pooling and the mip pyramid: a plane onto any grid of equal cells, by the channel's own rule.

`pool(plane, (h, w), rule)` serves the VLM's token grid and the pyramid levels. Cell (r, c) covers the rectangle
[r H/h, (r+1) H/h] x [c W/w, (c+1) W/w] of the plane, which need not fall on pixel borders:

- mean: the exact area average; a pixel that lies half inside counts half
- max: the largest value among all pixels that the cell touches
- nearest: the value of the pixel under the cell's centre, so that ids are never mixed

Each pyramid level has half the size of the one before, rounded down, never below 1; level 0 is the plane itself. Every
level equals pooling level 0 onto its size, also for odd sizes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import torch
import torch.nn.functional as F

from arr_coc.texture.filters import resize
from arr_coc.texture.layout import Pool

MAX_FLOAT32_SUM = 256  # pixels of a cell up to which a float32 sum is exact enough
MAX_MATRIX = 1 << 17  # elements; a product with a larger matrix costs more than the other ways


def pool(plane: torch.Tensor, size: tuple[int, int], rule: Pool) -> torch.Tensor:
    """Pool `[H, W]` to `size` = (h, w); differentiable."""
    if tuple(plane.shape) == size:
        return plane
    if plane.stride() == (0, 0):  # a constant, e.g. a channel without a supplied map
        return plane[:1, :1].expand(size)
    if rule == "mean":
        return _mean(plane, size)
    if rule == "max":
        return F.adaptive_max_pool2d(plane[None], size)[0]
    rows, columns = (_centres(n, m, plane.device) for n, m in zip(plane.shape, size, strict=True))
    return plane.index_select(0, rows).index_select(1, columns)


def resample(plane: torch.Tensor, size: tuple[int, int], shrink_by: Pool = "mean") -> torch.Tensor:
    """A map of any size at `size`: pooled where it is larger, interpolated where it is smaller."""
    larger = plane.shape[0] >= size[0] and plane.shape[1] >= size[1]
    return pool(plane, size, shrink_by) if larger else resize(plane, size)


def level_size(size: tuple[int, int], level: int) -> tuple[int, int]:
    """(height, width) of a pyramid level."""
    return max(1, size[0] >> level), max(1, size[1] >> level)


def level_count(size: tuple[int, int]) -> int:
    """How many pyramid levels there are, down to 1x1."""
    return max(size).bit_length()


def nested_source(size: tuple[int, int], level: int) -> int:
    """The coarsest level whose pixels nest in the cells of `level`, so that pooling it equals pooling level 0."""
    height, width = level_size(size, level)
    finer = [level_size(size, number) for number in range(level)]
    nests = [number for number, (h, w) in enumerate(finer) if h % height == 0 and w % width == 0]
    return max(nests, default=0)


class Pyramid:
    """The levels of one plane, each built on first use."""

    def __init__(self, plane: torch.Tensor, rule: Pool) -> None:
        # By number: two threads that build the same level at once only do the work twice.
        self._levels = {0: plane}
        self.rule: Pool = rule

    @property
    def constant(self) -> bool:
        """Whether the plane is one expanded value, which takes no memory."""
        return self._levels[0].stride() == (0, 0)

    @property
    def levels(self) -> list[torch.Tensor]:
        """The levels built so far."""
        return list(self._levels.values())

    def fill(self, levels: list[torch.Tensor]) -> None:
        """Take ready levels, from 1 on, instead of building them."""
        for number, level in enumerate(levels, start=1):
            self._levels.setdefault(number, level)

    def level(self, number: int) -> torch.Tensor:
        """The plane at a level: `[H >> number, W >> number]`."""
        height, width = self._levels[0].shape
        for missing in range(1, number + 1):
            if missing not in self._levels:
                # Ids always come from level 0: the centre of a centre drifts to a corner.
                source = 0 if self.rule == "nearest" else nested_source((height, width), missing)
                self._levels[missing] = pool(self._levels[source], level_size((height, width), missing), self.rule)
        return self._levels[number]


def _mean(plane: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The exact area average, by the cheapest of four ways."""
    height, width = int(plane.shape[0]), int(plane.shape[1])
    values = plane.float()
    if max(height * size[0], width * size[1]) <= MAX_MATRIX:  # coarse grids
        down, across = _overlap(height, size[0], plane.device), _overlap(width, size[1], plane.device)
        pooled = (down @ values) @ across.T  # rows first: they are contiguous
    elif _opencv_serves(values, size):  # fine ones, such as pyramid levels
        area = cv2.resize(values.contiguous().numpy(), (size[1], size[0]), interpolation=cv2.INTER_AREA)
        pooled = torch.from_numpy(area)
    elif height % size[0] == 0 and width % size[1] == 0 and height * width <= MAX_FLOAT32_SUM * size[0] * size[1]:
        pooled = F.avg_pool2d(values[None], (height // size[0], width // size[1]))[0]
    else:
        pooled = _mean_of_rows(_mean_of_rows(values, size[0]).T, size[1]).T
    return pooled.to(plane.dtype)


def _opencv_serves(plane: torch.Tensor, size: tuple[int, int]) -> bool:
    """Whether OpenCV's area resize can be used and is exact."""
    usable = plane.device.type == "cpu" and not plane.requires_grad
    # It averages exact areas when shrinking, but drops a pixel that reaches less than 1/1000 into a cell, and sums in
    # float32, which is too coarse for cells of many thousand pixels.
    shrinks = all(n <= m and n // math.gcd(m, n) < 1000 for m, n in zip(plane.shape, size, strict=True))
    return usable and shrinks and plane.numel() <= 4096 * size[0] * size[1]


def _mean_of_rows(plane: torch.Tensor, cells: int) -> torch.Tensor:
    """Average `[H, W]` down its columns to `[cells, W]`: differences of running sums, in float64."""
    pixels = plane.shape[0]
    sums = F.pad(plane.double().cumsum(0), (0, 0, 1, 0))  # [H + 1, W], the sum above each border between pixels
    edges = torch.arange(cells + 1, dtype=torch.float64, device=plane.device) * pixels / cells
    above = edges.floor().long().clamp(max=pixels - 1)
    # A border inside a pixel takes the part of the pixel above it.
    running = torch.lerp(sums[above], sums[above + 1], (edges - above)[:, None])
    return ((running[1:] - running[:-1]) * (cells / pixels)).float()


def _overlap(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    """`[cells, pixels]`: the share of each cell that each pixel covers; rows sum to 1."""
    # On a GPU it is computed there each time: no host copy to wait for, and a CUDA graph captures all of it.
    return _shares(pixels, cells, device) if device.type == "cuda" else _overlap_on_cpu(pixels, cells).to(device)


@lru_cache(maxsize=64)
def _overlap_on_cpu(pixels: int, cells: int) -> torch.Tensor:
    with torch.inference_mode(False):  # cached for callers with gradients, too
        return _shares(pixels, cells, torch.device("cpu"))


def _shares(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    edges = torch.arange(cells + 1, dtype=torch.float64, device=device) * pixels / cells
    left = torch.arange(pixels, dtype=torch.float64, device=device)
    shared = torch.minimum(edges[1:, None], left + 1) - torch.maximum(edges[:-1, None], left)
    return (shared.clamp_(min=0) * cells / pixels).float()


def _centres(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    """Index of the pixel under each cell's centre; a centre on a border belongs to the pixel after it."""
    return ((2 * torch.arange(cells, device=device) + 1) * pixels) // (2 * cells)
