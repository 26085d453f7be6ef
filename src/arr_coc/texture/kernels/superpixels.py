"""Superpixels assigned on the GPU: rounds of k-means over colour and place, for some weights of place at once.

The same rounds as `texture/slic.py`. There the weight of place rises until segments hold together. Here nobody can wait for the
answer: either several weights run side by side, or those that come later look for themselves whether an image still needs
them. A program takes a square of pixels and looks only at the segments whose centre is near it. What a square adds to a segment
is added up as whole numbers, which give the same sum in any order: ids are the same from run to run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels.connecting import Connecting, Weights, _which
from arr_coc.texture.kernels.lab import write_lab
from arr_coc.texture.slic import COMPACTNESS, ROUNDS, SEGMENTS, WORK_SIDE

TILE = 8  # px of a square's side, one warp each
PARTS = 1 << 17  # that a unit of colour is counted in: what a square adds up to stays within 32 bits
SPAN = 8  # squares of a program that likely has nothing to do


def work_size(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) that segments of images of `size` are worked out at."""
    scale = min(1.0, WORK_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


class Superpixels:
    """Buffers for images of one size, and the rounds."""

    def __init__(self, batch: int, size: tuple[int, int], device: torch.device) -> None:
        self.batch, self.size = batch, size
        height, width = self.small = work_size(size)
        self.spacing = (height * width / SEGMENTS) ** 0.5
        self.down = max(1, min(height, SEGMENTS, round(height / self.spacing)))
        self.across = max(1, min(width, round(SEGMENTS / self.down)))
        self.room = max(16, triton.next_power_of_2(self.down * self.across))
        self.tiles = triton.cdiv(height, TILE) * triton.cdiv(width, TILE)
        variants = batch * len(COMPACTNESS)
        self.lab = torch.empty(batch, 3, height, width, dtype=torch.float32, device=device)
        self.labels = torch.empty(variants, height, width, dtype=torch.int32, device=device)
        self.sums = torch.empty(ROUNDS, variants, self.room, 8, dtype=torch.int64, device=device)
        self.centres = torch.zeros(variants, 8, self.room, dtype=torch.float32, device=device)
        self.weights = torch.tensor(
            [(one / self.spacing) ** 2 for one in COMPACTNESS], dtype=torch.float32, device=device
        )

    def look(self, pixels: torch.Tensor) -> None:
        """Images `[B, 3, H, W]` to Lab at the working size."""
        write_lab(pixels, self.lab, self.small)

    def assign(self, weights: Weights, connecting: Connecting) -> torch.Tensor:
        """Lab to labels int32 `[B * 3, h, w]`: for each image a map for each weight of place, of which some are written.

        connecting: knows which images hold together by the weights before these; theirs are left as they are.
        """
        height, width = self.small
        maps = self.batch * weights.count
        reach_y, reach_x = math.ceil(height / self.down), math.ceil(width / self.across)
        settled = (connecting.large, connecting.labels)
        which: dict[str, Any] = {"FROM": weights.first, "COUNT": weights.count, "VARIANTS": len(COMPACTNESS)}
        span = SPAN if weights.first else 1
        if weights.first == 0:
            self.sums.zero_()
        for number in range(ROUNDS + 1):
            here = self.sums[min(number, ROUNDS - 1)]
            _assign[(triton.cdiv(self.tiles, span), maps)](
                self.lab, self.labels, self.centres, here, self.weights, *settled, height, width, self.down, self.across,
                reach_y, reach_x, self.tiles,
                FIRST=number == 0, LAST=number == ROUNDS, ROOM=self.room, TILE=TILE, PARTS=PARTS, SPAN=span, **which,
                num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
            if number < ROUNDS:
                _centre[(maps, 5)](
                    here, self.centres, *settled, number > 0, ROOM=self.room, PARTS=PARTS, **which, num_warps=1, enable_fp_fusion=True
                )  # fmt: skip
        return self.labels


@triton.jit
def _centre(
    sums, centres, large, numbers, kept,
    ROOM: tl.constexpr, PARTS: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """The mean of one feature over each segment's members; a segment without any keeps its centre."""
    map_, feature = _which(tl.program_id(0), large, numbers, FROM, COUNT, VARIANTS), tl.program_id(1)
    if map_ < 0:
        return
    variant = map_.to(tl.int64)
    segment = tl.arange(0, ROOM)
    at = sums + (variant * ROOM + segment) * 8
    members = tl.load(at + 5).to(tl.float64)
    unit = tl.where(feature < 3, PARTS, 1).to(tl.float64)  # places are whole numbers
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
    """One round for one or several squares of an image, by one weight of place."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    variant = map_.to(tl.int64)
    pixels = height * width
    weight = tl.load(weights + map_ % VARIANTS)
    beside = (width + TILE - 1) // TILE
    for step in range(SPAN):
        square = tl.program_id(0) * SPAN + step
        if square < squares:
            _assign_square(
                lab + (variant // VARIANTS) * 3 * pixels, labels + variant * pixels, centres + variant * 8 * ROOM,
                sums + variant * ROOM * 8, weight, height, width, down, across, reach_y, reach_x,
                square // beside * TILE, square % beside * TILE, FIRST, LAST, ROOM, TILE, PARTS,
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
            # Who is near this square, a bit each.
            bits = tl.sum(tl.where(there & by_row & by_column, tl.full([32], 1, tl.int64) << (some - first), 0), axis=0)
            while bits != 0:
                lowest = bits & -bits
                # A power of two as float32 is its exponent.
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
        while which < (1 << 30):  # one segment after another: few meet in a square
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
