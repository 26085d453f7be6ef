"""Kernels for superpixels: k-means over colour and position, connected parts, and the channels made of them.

The same as `texture/channels/clusters.py`. There the weight of position (compactness) rises until the segments are connected
enough. Here the host must not wait for that check: for few images all weights run at once; in a larger batch the first
runs alone, and the programs of the others end at once for images that do not need them. Nearly every picture is
connected enough with the first.

A program takes a tile of pixels and looks only at the segments with a centre near it. Its sums are integers, which do not
depend on the order of the adds: ids are the same from run to run. Region statistics are computed on the small grid in image
pixels, also in integers, and one pass writes all four channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture.channels.clusters import COMPACTNESS, ROUNDS, SEGMENTS, cell_extent, cell_under, work_size
from arr_coc.texture.kernels.connected_components import MAX_PARTS, ConnectedComponents, Variants, _which
from arr_coc.texture.kernels.saliency import write_lab

TILE = 8  # px of a tile's side, one warp each
COLOUR_STEPS = 1 << 17  # integer steps per unit of Lab: the sum of a tile fits into 32 bits
IDLE_TILES = 8  # tiles of a program that most likely ends at once
BATCHED = 4  # images from which the first compactness runs alone
REGION_CHANNELS = ("cluster_id", "cluster_distance", "cluster_size", "boundaries")


class SlicKMeans:
    """Buffers for the k-means rounds on images of one size."""

    def __init__(self, batch: int, size: tuple[int, int], device: torch.device) -> None:
        self.batch, self.size = batch, size
        height, width = self.small = work_size(size)
        self.spacing = (height * width / SEGMENTS) ** 0.5
        self.down = max(1, min(height, SEGMENTS, round(height / self.spacing)))
        self.across = max(1, min(width, round(SEGMENTS / self.down)))
        self.slots = max(16, triton.next_power_of_2(self.down * self.across))
        self.tiles = triton.cdiv(height, TILE) * triton.cdiv(width, TILE)
        maps = batch * len(COMPACTNESS)
        self.lab = torch.empty(batch, 3, height, width, dtype=torch.float32, device=device)
        self.labels = torch.empty(maps, height, width, dtype=torch.int32, device=device)
        self.sums = torch.empty(ROUNDS, maps, self.slots, 8, dtype=torch.int64, device=device)
        self.centres = torch.zeros(maps, 8, self.slots, dtype=torch.float32, device=device)
        self.weights = torch.tensor(
            [(one / self.spacing) ** 2 for one in COMPACTNESS], dtype=torch.float32, device=device
        )

    def set_images(self, pixels: torch.Tensor) -> None:
        """Convert images `[B, 3, H, W]` to Lab at the working size."""
        write_lab(pixels, self.lab, self.small)

    def assign(self, variants: Variants, components: ConnectedComponents) -> torch.Tensor:
        """Labels int32 `[B * 3, h, w]`: for each image a map per compactness, of which `variants` are written.

        components: knows which images are connected enough by an earlier variant; those are skipped.
        """
        height, width = self.small
        maps = self.batch * variants.count
        reach_y, reach_x = math.ceil(height / self.down), math.ceil(width / self.across)
        settled = (components.large, components.labels)
        which: dict[str, Any] = {"FROM": variants.first, "COUNT": variants.count, "VARIANTS": len(COMPACTNESS)}
        span = IDLE_TILES if variants.first else 1
        if variants.first == 0:
            self.sums.zero_()
        for number in range(ROUNDS + 1):
            here = self.sums[min(number, ROUNDS - 1)]
            _assign[(triton.cdiv(self.tiles, span), maps)](
                self.lab, self.labels, self.centres, here, self.weights, *settled, height, width, self.down, self.across,
                reach_y, reach_x, self.tiles,
                FIRST=number == 0, LAST=number == ROUNDS, ROOM=self.slots, TILE=TILE, PARTS=COLOUR_STEPS, SPAN=span, **which,
                num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
            if number < ROUNDS:
                _centre[(maps, 5)](
                    here, self.centres, *settled, number > 0, ROOM=self.slots, PARTS=COLOUR_STEPS, **which, num_warps=1, enable_fp_fusion=True
                )  # fmt: skip
        return self.labels


class SlicSegmenter:
    """Connected superpixels of images of one size: `ids` int32 `[B, h, w]`, numbered row by row."""

    def __init__(self, batch: int, size: tuple[int, int], device: torch.device) -> None:
        self.kmeans = SlicKMeans(batch, size, device)
        self.small = self.kmeans.small
        self.components = ConnectedComponents(batch, self.small, device)
        self.ids = self.components.ids
        every = len(COMPACTNESS)
        self.variants = [Variants(0, 1), Variants(1, every - 1)] if batch >= BATCHED else [Variants(0, every)]

    def write(self, pixels: torch.Tensor) -> torch.Tensor:
        """The ids of images `[B, 3, H, W]` in [0, 1]."""
        self.kmeans.set_images(pixels)
        self.components.reset()
        for variants in self.variants:
            self.components.find_parts(self.kmeans.assign(variants, self.components), variants)
        return self.components.merge()


class RegionStats:
    """Statistics of regions `[B, h, w]` of images of one size, and the channels made of them."""

    def __init__(self, batch: int, small: tuple[int, int], size: tuple[int, int], device: torch.device) -> None:
        self.batch, self.small, self.size = batch, small, size
        sizes = list(zip(small, size, strict=True))
        self.rows, self.columns = (torch.stack(cell_extent(*one, device)).to(torch.int32) for one in sizes)
        # The small pixel under each row and column of the image.
        self.from_rows, self.from_columns = (cell_under(*one, device).to(torch.int32) for one in sizes)
        # Area, twice the summed rows and columns, and the squared radius as the bits of a float64.
        self.sums = torch.zeros(batch, MAX_PARTS, 4, dtype=torch.int64, device=device)
        self.measured = torch.empty(
            batch, MAX_PARTS, 4, dtype=torch.float32, device=device
        )  # centre, 1 / radius, share

    def measure(self, ids: torch.Tensor) -> None:
        """Centres, radii and shares of regions int32 `[B, h, w]`."""
        (high, wide), (height, width) = self.small, self.size
        self.sums.zero_()
        grid = (triton.cdiv(high, TILE) * triton.cdiv(wide, TILE), self.batch)
        parts = (ids, self.sums, self.rows, self.columns, high, wide)
        _add[grid](*parts, MOST=MAX_PARTS, TILE=TILE, num_warps=1, enable_fp_fusion=True)
        _farthest[grid](*parts, MOST=MAX_PARTS, TILE=TILE, num_warps=1, enable_fp_fusion=True)
        _settle[(self.batch,)](
            self.sums, self.measured, float(height * width), MOST=MAX_PARTS, num_warps=4, enable_fp_fusion=True
        )

    def write(self, ids: torch.Tensor, out: torch.Tensor, slots: Mapping[str, int]) -> None:
        """Write channels into planes of `out` `[B, C, H, W]`; slots: channel name to plane number."""
        height, width = self.size
        numbers: dict[str, Any] = {f"SLOT_{name.upper()}": slots.get(name, -1) for name in REGION_CHANNELS}
        block = min(512, triton.next_power_of_2(width))
        _write[(triton.cdiv(width, block), height, self.batch)](
            ids, self.measured, out, self.from_rows, self.from_columns, height, width, *self.small, *out.stride()[:3],
            MOST=MAX_PARTS, BLOCK=block, **numbers, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def _centre(
    sums, centres, large, numbers, kept,
    ROOM: tl.constexpr, PARTS: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """The mean of one feature over each segment's members; an empty segment keeps its centre."""
    map_, feature = _which(tl.program_id(0), large, numbers, FROM, COUNT, VARIANTS), tl.program_id(1)
    if map_ < 0:
        return
    variant = map_.to(tl.int64)
    segment = tl.arange(0, ROOM)
    at = sums + (variant * ROOM + segment) * 8
    members = tl.load(at + 5).to(tl.float64)
    unit = tl.where(feature < 3, PARTS, 1).to(tl.float64)  # positions are integers already
    mean = tl.load(at + feature).to(tl.float64) / (unit * tl.maximum(members, 1.0))
    place = centres + variant * 8 * ROOM + feature * ROOM + segment
    old = tl.where(kept, tl.load(place), 0.0)
    tl.store(place, tl.where(members > 0, mean.to(tl.float32), old))


@triton.jit
def _assign(
    lab, labels, centres, sums, weights, large, numbers, height, width, down, across, reach_y, reach_x, squares,
    FIRST: tl.constexpr, LAST: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr,
    FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """One round for one or several tiles of an image, with one compactness."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    variant = map_.to(tl.int64)
    pixels = height * width
    weight = tl.load(weights + map_ % VARIANTS)
    per_row = (width + TILE - 1) // TILE
    for step in range(SPAN):
        square = tl.program_id(0) * SPAN + step
        if square < squares:
            _assign_square(
                lab + (variant // VARIANTS) * 3 * pixels, labels + variant * pixels, centres + variant * 8 * ROOM,
                sums + variant * ROOM * 8, weight, height, width, down, across, reach_y, reach_x,
                square // per_row * TILE, square % per_row * TILE, FIRST, LAST, ROOM, TILE, PARTS,
            )  # fmt: skip


@triton.jit
def _assign_square(
    lab, labels, centre, sums, weight, height, width, down, across, reach_y, reach_x, top, left,
    FIRST: tl.constexpr, LAST: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    spot = tl.arange(0, TILE * TILE)
    row, column = top + spot // TILE, left + spot % TILE
    inside = (row < height) & (column < width)
    place = row * width + column
    light = tl.load(lab + place, mask=inside, other=0.0)
    a = tl.load(lab + height * width + place, mask=inside, other=0.0)
    b = tl.load(lab + 2 * height * width + place, mask=inside, other=0.0)
    if FIRST:
        label = (row * down // height) * across + column * across // width
    else:
        y, x = row.to(tl.float32), column.to(tl.float32)
        label = tl.load(labels + place, mask=inside, other=0)
        nearest = tl.full([TILE * TILE], float("inf"), tl.float32)
        for first in range(0, down * across, 32):
            some = first + tl.arange(0, 32)
            there = some < down * across
            at_y = tl.load(centre + 3 * ROOM + some, mask=there, other=0.0).to(tl.int32)
            at_x = tl.load(centre + 4 * ROOM + some, mask=there, other=0.0).to(tl.int32)
            by_row = (at_y + reach_y >= top) & (at_y - reach_y < top + TILE)
            by_column = (at_x + reach_x >= left) & (at_x - reach_x < left + TILE)
            # The segments near this tile, a bit each.
            bits = tl.sum(tl.where(there & by_row & by_column, tl.full([32], 1, tl.int64) << (some - first), 0), axis=0)
            while bits != 0:
                lowest = bits & -bits
                # The exponent of a power of two in float32.
                segment = first + (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
                centre_y, centre_x = tl.load(centre + 3 * ROOM + segment), tl.load(centre + 4 * ROOM + segment)
                by_light = light - tl.load(centre + segment)
                by_a = a - tl.load(centre + ROOM + segment)
                by_b = b - tl.load(centre + 2 * ROOM + segment)
                off_y, off_x = y - centre_y, x - centre_x
                far = (off_y * off_y + off_x * off_x) * weight
                far += by_light * by_light
                far += by_a * by_a
                far += by_b * by_b
                away_y, away_x = row - centre_y.to(tl.int32), column - centre_x.to(tl.int32)
                near = (tl.abs(away_y) <= reach_y) & (tl.abs(away_x) <= reach_x)
                nearer = near & (far < nearest)
                nearest = tl.where(nearer, far, nearest)
                label = tl.where(nearer, segment, label)
                bits = bits - lowest
    tl.store(labels + place, label, mask=inside)
    if not LAST:
        light = tl.floor(light * PARTS + 0.5).to(tl.int32)
        a, b = tl.floor(a * PARTS + 0.5).to(tl.int32), tl.floor(b * PARTS + 0.5).to(tl.int32)
        feature = tl.arange(0, 8)
        rest = tl.where(inside, label, 1 << 30)
        which = tl.min(rest, axis=0)
        while which < (1 << 30):  # one segment after another: few meet in a tile
            mine = rest == which
            total = tl.where(feature == 0, tl.sum(tl.where(mine, light, 0), axis=0), 0)
            total = tl.where(feature == 1, tl.sum(tl.where(mine, a, 0), axis=0), total)
            total = tl.where(feature == 2, tl.sum(tl.where(mine, b, 0), axis=0), total)
            total = tl.where(feature == 3, tl.sum(tl.where(mine, row, 0), axis=0), total)
            total = tl.where(feature == 4, tl.sum(tl.where(mine, column, 0), axis=0), total)
            total = tl.where(feature == 5, tl.sum(mine.to(tl.int32), axis=0), total)
            tl.atomic_add(sums + which * 8 + feature, total.to(tl.int64), mask=feature < 6)
            rest = tl.where(mine, 1 << 30, rest)
            which = tl.min(rest, axis=0)


@triton.jit
def _tile(ids, rows, columns, high, wide, TILE: tl.constexpr):
    """The regions of a tile of small pixels, and the rows and columns of the image that each covers."""
    per_row = (wide + TILE - 1) // TILE
    spot = tl.arange(0, TILE * TILE)
    row = tl.program_id(0) // per_row * TILE + spot // TILE
    column = tl.program_id(0) % per_row * TILE + spot % TILE
    inside = (row < high) & (column < wide)
    region = tl.load(ids + tl.program_id(1).to(tl.int64) * high * wide + row * wide + column, mask=inside, other=0)
    top = tl.load(rows + row, mask=inside, other=0).to(tl.int64)
    bottom = tl.load(rows + high + row, mask=inside, other=0).to(tl.int64)
    left = tl.load(columns + column, mask=inside, other=0).to(tl.int64)
    right = tl.load(columns + wide + column, mask=inside, other=0).to(tl.int64)
    return inside, region, top, bottom, left, right


@triton.jit
def _add(ids, sums, rows, columns, high, wide, MOST: tl.constexpr, TILE: tl.constexpr):
    rest, region, top, bottom, left, right = _tile(ids, rows, columns, high, wide, TILE)
    area = (bottom - top) * (right - left)
    while tl.max(rest.to(tl.int32), axis=0) > 0:  # one region after another: few meet in a tile
        which = tl.min(tl.where(rest, region, 1 << 30), axis=0)
        mine = rest & (region == which)
        at = sums + (tl.program_id(1).to(tl.int64) * MOST + which) * 4
        tl.atomic_add(at, tl.sum(tl.where(mine, area, 0), axis=0))
        tl.atomic_add(at + 1, tl.sum(tl.where(mine, area * (top + bottom), 0), axis=0))
        tl.atomic_add(at + 2, tl.sum(tl.where(mine, area * (left + right), 0), axis=0))
        rest = rest & (region != which)


@triton.jit
def _farthest(ids, sums, rows, columns, high, wide, MOST: tl.constexpr, TILE: tl.constexpr):
    """The squared distance of each region's farthest member: in a rectangle it is a corner pixel."""
    rest, region, top, bottom, left, right = _tile(ids, rows, columns, high, wide, TILE)
    at = sums + (tl.program_id(1).to(tl.int64) * MOST + region) * 4
    twice = 2 * tl.load(at, mask=rest, other=1).to(tl.float64)
    centre_y = tl.load(at + 1, mask=rest, other=0).to(tl.float64) / twice
    centre_x = tl.load(at + 2, mask=rest, other=0).to(tl.float64) / twice
    reach_y = tl.maximum(tl.abs(top.to(tl.float64) + 0.5 - centre_y), tl.abs(bottom.to(tl.float64) - 0.5 - centre_y))
    reach_x = tl.maximum(tl.abs(left.to(tl.float64) + 0.5 - centre_x), tl.abs(right.to(tl.float64) - 0.5 - centre_x))
    # Non-negative floats are ordered like their bits.
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
