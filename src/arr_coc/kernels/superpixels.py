"""Superpixels assigned on the GPU: rounds of k-means over colour and place, for all three weights of place at once.

The same rounds as `texture/slic.py`. There the weight of place rises until segments hold together; here all three weights run
side by side, because nobody can wait for the answer, and `connecting.py` chooses. A program takes a square of pixels and looks
only at the segments whose centre is near it. What a square adds to a segment is added up as whole numbers, which give the
same sum in any order: ids are the same from run to run.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from arr_coc.kernels import tables
from arr_coc.kernels.cells import _reach
from arr_coc.kernels.centre_surround import _lab
from arr_coc.texture.slic import COMPACTNESS, ROUNDS, SEGMENTS, WORK_SIDE

TILE = 16  # px of a square's side
PARTS = 1 << 20  # that a unit of colour is counted in


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
        self.sums = torch.empty(variants, self.room, 8, dtype=torch.int64, device=device)
        self.centres = torch.zeros(variants, 8, self.room, dtype=torch.float32, device=device)
        self.weights = torch.tensor(
            [(one / self.spacing) ** 2 for one in COMPACTNESS], dtype=torch.float32, device=device
        )

    def look(self, pixels: torch.Tensor) -> None:
        """Images `[B, 3, H, W]` to Lab at the working size."""
        (height, width), (high, wide) = self.size, self.small
        _lab[(triton.cdiv(high * wide, 128), self.batch)](
            pixels, self.lab, height, width, high, wide,
            pixels.stride(0), pixels.stride(1), pixels.stride(2), pixels.stride(3),
            REACH_Y=_reach(height, high), REACH_X=_reach(width, wide), BLOCK=128, WIDE=tables.wide(pixels), num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip

    def assign(self) -> torch.Tensor:
        """Lab to labels int32 `[B * 3, h, w]`: for each image, one map for each weight of place."""
        height, width = self.small
        variants = self.batch * len(COMPACTNESS)
        reach_y, reach_x = math.ceil(height / self.down), math.ceil(width / self.across)
        self.sums.zero_()
        for number in range(ROUNDS + 1):
            _assign[(self.tiles, variants)](
                self.lab, self.labels, self.centres, self.sums, self.weights, height, width, self.down, self.across,
                reach_y, reach_x,
                FIRST=number == 0, LAST=number == ROUNDS, VARIANTS=len(COMPACTNESS), ROOM=self.room, TILE=TILE, PARTS=PARTS,
                num_warps=2, enable_fp_fusion=False,
            )  # fmt: skip
            if number < ROUNDS:
                _centre[(variants,)](
                    self.sums, self.centres, number > 0, ROOM=self.room, PARTS=PARTS, num_warps=1, enable_fp_fusion=True
                )
        return self.labels


@triton.jit
def _centre(sums, centres, kept, ROOM: tl.constexpr, PARTS: tl.constexpr):
    """The means of all features over each segment's members; a segment without any keeps its centre."""
    segment = tl.program_id(0).to(tl.int64) * ROOM + tl.arange(0, ROOM)
    members = tl.load(sums + segment * 8 + 5).to(tl.float64)
    for feature in tl.static_range(5):
        mean = tl.load(sums + segment * 8 + feature).to(tl.float64) / tl.maximum(members, 1.0)
        if feature < 3:
            mean = mean / PARTS
        place = centres + tl.program_id(0).to(tl.int64) * 8 * ROOM + feature * ROOM + tl.arange(0, ROOM)
        old = tl.where(kept, tl.load(place), 0.0)
        tl.store(place, tl.where(members > 0, mean.to(tl.float32), old))
        tl.store(sums + segment * 8 + feature, tl.zeros([ROOM], tl.int64))
    tl.store(sums + segment * 8 + 5, tl.zeros([ROOM], tl.int64))


@triton.jit
def _assign(
    lab, labels, centres, sums, weights, height, width, down, across, reach_y, reach_x,
    FIRST: tl.constexpr, LAST: tl.constexpr, VARIANTS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    variant = tl.program_id(1).to(tl.int64)
    pixels = height * width
    beside = (width + TILE - 1) // TILE
    top, left = tl.program_id(0) // beside * TILE, tl.program_id(0) % beside * TILE
    spot = tl.arange(0, TILE * TILE)
    row, column = top + spot // TILE, left + spot % TILE
    inside = (row < height) & (column < width)
    place = row * width + column
    image = lab + (variant // VARIANTS) * 3 * pixels + place
    light = tl.load(image, mask=inside, other=0.0)
    a = tl.load(image + pixels, mask=inside, other=0.0)
    b = tl.load(image + 2 * pixels, mask=inside, other=0.0)
    at = labels + variant * pixels + place
    if FIRST:
        label = (row * down // height) * across + column * across // width
    else:
        y, x = row.to(tl.float32), column.to(tl.float32)
        label = tl.load(at, mask=inside, other=0)
        nearest = tl.full([TILE * TILE], float("inf"), tl.float32)
        weight = tl.load(weights + variant % VARIANTS)
        for segment in range(down * across):
            centre = centres + variant * 8 * ROOM + segment
            centre_y, centre_x = tl.load(centre + 3 * ROOM), tl.load(centre + 4 * ROOM)
            at_y, at_x = centre_y.to(tl.int32), centre_x.to(tl.int32)
            by_row = (at_y + reach_y >= top) & (at_y - reach_y < top + TILE)
            by_column = (at_x + reach_x >= left) & (at_x - reach_x < left + TILE)
            if by_row & by_column:
                off_y, off_x = y - centre_y, x - centre_x
                far = (off_y * off_y + off_x * off_x) * weight
                by = light - tl.load(centre)
                far += by * by
                by = a - tl.load(centre + ROOM)
                far += by * by
                by = b - tl.load(centre + 2 * ROOM)
                far += by * by
                away_y, away_x = row - at_y, column - at_x
                near = (away_y <= reach_y) & (away_y >= -reach_y) & (away_x <= reach_x) & (away_x >= -reach_x)
                nearer = near & (far < nearest)
                nearest = tl.where(nearer, far, nearest)
                label = tl.where(nearer, segment, label)
    tl.store(at, label, mask=inside)
    if not LAST:
        rest = inside
        while tl.max(rest.to(tl.int32), axis=0) > 0:  # one segment after another: few meet in a square
            which = tl.min(tl.where(rest, label, 1 << 30), axis=0)
            mine = rest & (label == which)
            target = sums + (variant * ROOM + which) * 8
            tl.atomic_add(target, _parts(light, mine, PARTS))
            tl.atomic_add(target + 1, _parts(a, mine, PARTS))
            tl.atomic_add(target + 2, _parts(b, mine, PARTS))
            tl.atomic_add(target + 3, tl.sum(tl.where(mine, row, 0), axis=0).to(tl.int64))
            tl.atomic_add(target + 4, tl.sum(tl.where(mine, column, 0), axis=0).to(tl.int64))
            tl.atomic_add(target + 5, tl.sum(mine.to(tl.int32), axis=0).to(tl.int64))
            rest = rest & (label != which)


@triton.jit
def _parts(values, mine, PARTS: tl.constexpr):
    """The sum of some values, as a whole number."""
    return tl.floor(tl.sum(tl.where(mine, values, 0.0), axis=0) * PARTS + 0.5).to(tl.int64)
