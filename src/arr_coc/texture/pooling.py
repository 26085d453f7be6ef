"""A plane onto any coarser (or finer) grid of equal cells, by the channel's own rule.

`pool(plane, (h, w), rule)` serves both the VLM's token grid and the mip pyramid. Cell (r, c) covers the rectangle
[r H/h, (r+1) H/h] x [c W/w, (c+1) W/w] of the plane, which need not fall on pixel borders:

- mean: the exact area average; a pixel that lies half inside counts half
- max: the largest value among all pixels that the cell touches
- nearest: the value of the pixel under the cell's centre, so that ids are never mixed
"""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import torch
import torch.nn.functional as F

from arr_coc.texture.layout import Pool

MANY = 256  # pixels of a cell up to which float32 is exact enough to add them up in
LARGEST_MATRIX = 1 << 17  # elements; a product with a larger one costs more than the other ways


def pool(plane: torch.Tensor, size: tuple[int, int], rule: Pool) -> torch.Tensor:
    """Pool `[H, W]` to `size` = (h, w); differentiable."""
    if tuple(plane.shape) == size:
        return plane
    if plane.stride() == (0, 0):  # a constant, e.g. a channel nobody supplied
        return plane[:1, :1].expand(size)
    if rule == "mean":
        return _mean(plane, size)
    if rule == "max":
        return F.adaptive_max_pool2d(plane[None], size)[0]
    rows, columns = (_centres(n, m, plane.device) for n, m in zip(plane.shape, size, strict=True))
    return plane.index_select(0, rows).index_select(1, columns)


def cell_boxes(grid: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
    """The cells' boxes (x0, y0, x1, y1) on a picture of `size` (height, width): float64 `[h*w, 4]`, row by row."""
    (rows, columns), (height, width) = grid, size
    # One rounding per border: neighbours share it to the last bit, and the outer borders are exactly 0 and the size.
    y = torch.arange(rows + 1, dtype=torch.float64) * height / rows
    x = torch.arange(columns + 1, dtype=torch.float64) * width / columns
    top, left = torch.meshgrid(y[:-1], x[:-1], indexing="ij")
    bottom, right = torch.meshgrid(y[1:], x[1:], indexing="ij")
    return torch.stack([left, top, right, bottom], dim=-1).reshape(-1, 4)


def _mean(plane: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The exact area average, by whichever of four ways is cheapest."""
    height, width = int(plane.shape[0]), int(plane.shape[1])
    values = plane.float()
    if max(height * size[0], width * size[1]) <= LARGEST_MATRIX:  # coarse grids
        down, across = _overlap(height, size[0], plane.device), _overlap(width, size[1], plane.device)
        pooled = (down @ values) @ across.T  # rows first: they lie together in memory
    elif _opencv_serves(values, size):  # fine ones, such as pyramid levels
        area = cv2.resize(values.contiguous().numpy(), (size[1], size[0]), interpolation=cv2.INTER_AREA)
        pooled = torch.from_numpy(area)
    elif height % size[0] == 0 and width % size[1] == 0 and height * width <= MANY * size[0] * size[1]:
        pooled = F.avg_pool2d(values[None], (height // size[0], width // size[1]))[0]
    else:
        pooled = _mean_of_rows(_mean_of_rows(values, size[0]).T, size[1]).T
    return pooled.to(plane.dtype)


def _opencv_serves(plane: torch.Tensor, size: tuple[int, int]) -> bool:
    """Whether OpenCV's area resize is at hand and exact."""
    at_hand = plane.device.type == "cpu" and not plane.requires_grad
    # It averages exact areas when shrinking, but drops a pixel that reaches less than 1/1000 into a cell, and adds up in
    # float32, which is too little for cells of many thousand pixels.
    shrinks = all(n <= m and n // math.gcd(m, n) < 1000 for m, n in zip(plane.shape, size, strict=True))
    return at_hand and shrinks and plane.numel() <= 4096 * size[0] * size[1]


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
    # On a GPU it is made anew each time, there: nobody waits for a copy, and a recording of it lacks nothing.
    return _shares(pixels, cells, device) if device.type == "cuda" else _overlap_on_cpu(pixels, cells).to(device)


@lru_cache(maxsize=64)
def _overlap_on_cpu(pixels: int, cells: int) -> torch.Tensor:
    with torch.inference_mode(False):  # kept for those who want gradients, too
        return _shares(pixels, cells, torch.device("cpu"))


def _shares(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    edges = torch.arange(cells + 1, dtype=torch.float64, device=device) * pixels / cells
    left = torch.arange(pixels, dtype=torch.float64, device=device)
    shared = torch.minimum(edges[1:, None], left + 1) - torch.maximum(edges[:-1, None], left)
    return (shared.clamp_(min=0) * cells / pixels).float()


def _centres(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    """Index of the pixel under each cell's centre; a centre on a border belongs to the pixel after it."""
    return ((2 * torch.arange(cells, device=device) + 1) * pixels) // (2 * cells)
