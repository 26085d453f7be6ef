"""The channels of regions: which one a pixel belongs to, how far from its centre, how large it is, where borders are.

The same as `texture/channels/clusters.py`, from small ids to full planes: the regions are measured on the small grid, in image
pixels and in whole numbers, and one pass writes all four channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture.channels.clusters import extent, owner
from arr_coc.texture.kernels.connecting import MOST

TILE = 8  # px of the squares that are measured together, one warp each
NAMES = ("cluster_id", "cluster_distance", "cluster_size", "boundaries")


class Regions:
    """Buffers for ids `[B, h, w]` of images of one size, and the two steps."""

    def __init__(self, batch: int, small: tuple[int, int], size: tuple[int, int], device: torch.device) -> None:
        self.batch, self.small, self.size = batch, small, size
        self.rows, self.columns = (
            torch.stack([edge.to(torch.int32) for edge in extent(cells, pixels, device)])
            for cells, pixels in zip(small, size, strict=True)
        )
        # The small pixel under each row and column of the image.
        self.from_rows, self.from_columns = (
            owner(cells, pixels, device).to(torch.int32) for cells, pixels in zip(small, size, strict=True)
        )
        # Pixels, their rows and columns added up twice, and the square of the farthest member's distance, as bits of float64.
        self.sums = torch.zeros(batch, MOST, 4, dtype=torch.int64, device=device)
        self.measured = torch.empty(batch, MOST, 4, dtype=torch.float32, device=device)  # centre, 1 / radius, share

    def measure(self, ids: torch.Tensor) -> None:
        """Centres, radii and shares of regions int32 `[B, h, w]`."""
        (high, wide), (height, width) = self.small, self.size
        self.sums.zero_()
        grid = (triton.cdiv(high, TILE) * triton.cdiv(wide, TILE), self.batch)
        parts = (ids, self.sums, self.rows, self.columns, high, wide)
        _add[grid](*parts, MOST=MOST, TILE=TILE, num_warps=1, enable_fp_fusion=True)
        _farthest[grid](*parts, MOST=MOST, TILE=TILE, num_warps=1, enable_fp_fusion=True)
        _settle[(self.batch,)](
            self.sums, self.measured, float(height * width), MOST=MOST, num_warps=4, enable_fp_fusion=True
        )

    def write(self, ids: torch.Tensor, out: torch.Tensor, slots: Mapping[str, int]) -> None:
        """Write channels into planes of `out` `[B, C, H, W]`: `slots` says which goes where."""
        height, width = self.size
        wanted: dict[str, Any] = {f"SLOT_{name.upper()}": slots.get(name, -1) for name in NAMES}
        block = min(512, triton.next_power_of_2(width))
        _write[(triton.cdiv(width, block), height, self.batch)](
            ids, self.measured, out, self.from_rows, self.from_columns, height, width, *self.small, out.stride(0), out.stride(1), out.stride(2),
            MOST=MOST, BLOCK=block, **wanted, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def _part(ids, rows, columns, high, wide, TILE: tl.constexpr):
    """The regions of a square of small pixels, and the rows and columns of the image that each stands for."""
    beside = (wide + TILE - 1) // TILE
    spot = tl.arange(0, TILE * TILE)
    row = tl.program_id(0) // beside * TILE + spot // TILE
    column = tl.program_id(0) % beside * TILE + spot % TILE
    inside = (row < high) & (column < wide)
    region = tl.load(ids + tl.program_id(1).to(tl.int64) * high * wide + row * wide + column, mask=inside, other=0)
    top = tl.load(rows + row, mask=inside, other=0).to(tl.int64)
    bottom = tl.load(rows + high + row, mask=inside, other=0).to(tl.int64)
    left = tl.load(columns + column, mask=inside, other=0).to(tl.int64)
    right = tl.load(columns + wide + column, mask=inside, other=0).to(tl.int64)
    return inside, region, top, bottom, left, right


@triton.jit
def _add(ids, sums, rows, columns, high, wide, MOST: tl.constexpr, TILE: tl.constexpr):
    rest, region, top, bottom, left, right = _part(ids, rows, columns, high, wide, TILE)
    area = (bottom - top) * (right - left)
    while tl.max(rest.to(tl.int32), axis=0) > 0:  # one region after another: few meet in a square
        which = tl.min(tl.where(rest, region, 1 << 30), axis=0)
        mine = rest & (region == which)
        at = sums + (tl.program_id(1).to(tl.int64) * MOST + which) * 4
        tl.atomic_add(at, tl.sum(tl.where(mine, area, 0), axis=0))
        tl.atomic_add(at + 1, tl.sum(tl.where(mine, area * (top + bottom), 0), axis=0))
        tl.atomic_add(at + 2, tl.sum(tl.where(mine, area * (left + right), 0), axis=0))
        rest = rest & (region != which)


@triton.jit
def _farthest(ids, sums, rows, columns, high, wide, MOST: tl.constexpr, TILE: tl.constexpr):
    """The farthest member of each region: of a rectangle it is a corner's pixel."""
    rest, region, top, bottom, left, right = _part(ids, rows, columns, high, wide, TILE)
    at = sums + (tl.program_id(1).to(tl.int64) * MOST + region) * 4
    twice = 2 * tl.load(at, mask=rest, other=1).to(tl.float64)
    centre_y = tl.load(at + 1, mask=rest, other=0).to(tl.float64) / twice
    centre_x = tl.load(at + 2, mask=rest, other=0).to(tl.float64) / twice
    reach_y = tl.maximum(tl.abs(top.to(tl.float64) + 0.5 - centre_y), tl.abs(bottom.to(tl.float64) - 0.5 - centre_y))
    reach_x = tl.maximum(tl.abs(left.to(tl.float64) + 0.5 - centre_x), tl.abs(right.to(tl.float64) - 0.5 - centre_x))
    # What is not negative is ordered as its bits are.
    far = (reach_y * reach_y + reach_x * reach_x).to(tl.int64, bitcast=True)
    while tl.max(rest.to(tl.int32), axis=0) > 0:
        which = tl.min(tl.where(rest, region, 1 << 30), axis=0)
        most = tl.max(tl.where(rest & (region == which), far, 0), axis=0)
        tl.atomic_max(sums + (tl.program_id(1).to(tl.int64) * MOST + which) * 4 + 3, most)
        rest = rest & (region != which)


@triton.jit
def _settle(sums, measured, pixels, MOST: tl.constexpr):
    region = tl.program_id(0).to(tl.int64) * MOST + tl.arange(0, MOST)
    area = tl.load(sums + region * 4).to(tl.float64)
    twice = 2 * tl.maximum(area, 1.0)
    radius = tl.sqrt(tl.load(sums + region * 4 + 3).to(tl.float64, bitcast=True).to(tl.float32))
    tl.store(measured + region * 4, (tl.load(sums + region * 4 + 1).to(tl.float64) / twice).to(tl.float32))
    tl.store(measured + region * 4 + 1, (tl.load(sums + region * 4 + 2).to(tl.float64) / twice).to(tl.float32))
    tl.store(measured + region * 4 + 2, 1 / tl.maximum(radius, 1e-6))
    tl.store(measured + region * 4 + 3, (area / pixels).to(tl.float32))


@triton.jit
def _write(
    ids, measured, out, from_rows, from_columns, height, width, high, wide, out_b, out_c, out_y,
    MOST: tl.constexpr, BLOCK: tl.constexpr,
    SLOT_CLUSTER_ID: tl.constexpr, SLOT_CLUSTER_DISTANCE: tl.constexpr, SLOT_CLUSTER_SIZE: tl.constexpr,
    SLOT_BOUNDARIES: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    y, x = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = x < width
    small_y, small_x = tl.load(from_rows + y), tl.load(from_columns + x, mask=inside, other=0)
    mine = ids + image * high * wide
    region = tl.load(mine + small_y * wide + small_x, mask=inside, other=0)
    table = measured + (image * MOST + region) * 4
    target = out + image * out_b + y.to(tl.int64) * out_y + x
    plane = tl.cast(out_c, tl.int64)
    kind = out.dtype.element_ty
    if SLOT_CLUSTER_ID >= 0:
        tl.store(target + SLOT_CLUSTER_ID * plane, region.to(kind), mask=inside)
    if SLOT_CLUSTER_DISTANCE >= 0:
        down = y.to(tl.float32) + 0.5 - tl.load(table, mask=inside, other=0.0)
        across = x.to(tl.float32) + 0.5 - tl.load(table + 1, mask=inside, other=0.0)
        far = tl.sqrt(down * down + across * across) * tl.load(table + 2, mask=inside, other=0.0)
        tl.store(target + SLOT_CLUSTER_DISTANCE * plane, tl.minimum(far, 1.0).to(kind), mask=inside)
    if SLOT_CLUSTER_SIZE >= 0:
        share = tl.load(table + 3, mask=inside, other=0.0)
        tl.store(target + SLOT_CLUSTER_SIZE * plane, share.to(kind), mask=inside)
    if SLOT_BOUNDARIES >= 0:
        above = tl.load(from_rows + tl.maximum(y - 1, 0))
        below = tl.load(from_rows + tl.minimum(y + 1, height - 1))
        before = tl.load(from_columns + tl.maximum(x - 1, 0), mask=inside, other=0)
        after = tl.load(from_columns + tl.minimum(x + 1, width - 1), mask=inside, other=0)
        border = tl.load(mine + above * wide + small_x, mask=inside, other=0) != region
        border = border | (tl.load(mine + below * wide + small_x, mask=inside, other=0) != region)
        border = border | (tl.load(mine + small_y * wide + before, mask=inside, other=0) != region)
        border = border | (tl.load(mine + small_y * wide + after, mask=inside, other=0) != region)
        tl.store(target + SLOT_BOUNDARIES * plane, border.to(tl.float32).to(kind), mask=inside)
