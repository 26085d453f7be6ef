"""Superpixels assigned on the GPU: rounds of k-means over colour and place, for all three weights of place at once.

The same rounds as `texture/slic.py`. There the weight of place rises until segments hold together; here all three weights run
side by side, because nobody can wait for the answer, and `connecting.py` chooses. Sums are taken by blocks and then added
in float64, in one fixed order: ids are the same from run to run.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from arr_coc.kernels import tables
from arr_coc.kernels.cells import _reach
from arr_coc.kernels.centre_surround import _lab
from arr_coc.kernels.dispatch import precision
from arr_coc.texture.slic import COMPACTNESS, ROUNDS, SEGMENTS, WORK_SIDE

BLOCK = 64  # pixels of a program: with more, the table of who belongs to whom does not fit its registers


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
        self.blocks = triton.cdiv(height * width, BLOCK)
        variants = batch * len(COMPACTNESS)
        self.lab = torch.empty(batch, 3, height, width, dtype=torch.float32, device=device)
        self.labels = torch.empty(variants, height, width, dtype=torch.int32, device=device)
        self.sums = torch.empty(variants, self.blocks, 8, self.room, dtype=torch.float32, device=device)
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
        for number in range(ROUNDS + 1):
            _assign[(self.blocks, variants)](
                self.lab, self.labels, self.centres, self.sums, self.weights, height, width, self.down, self.across,
                reach_y, reach_x, self.blocks,
                FIRST=number == 0, LAST=number == ROUNDS, VARIANTS=len(COMPACTNESS), ROOM=self.room, BLOCK=BLOCK,
                PRECISION=precision(self.lab.device), num_warps=2, enable_fp_fusion=False,
            )  # fmt: skip
            if number < ROUNDS:
                _centre[(5, variants)](
                    self.sums, self.centres, self.blocks, number > 0,
                    BLOCKS=triton.next_power_of_2(self.blocks), ROOM=self.room, CHUNK=128, num_warps=8, enable_fp_fusion=True,
                )  # fmt: skip
        return self.labels


@triton.jit
def _centre(sums, centres, blocks, kept, BLOCKS: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr):
    """The mean of one feature over each segment's members; a segment without any keeps its centre."""
    feature, variant = tl.program_id(0), tl.program_id(1).to(tl.int64)
    segment = tl.arange(0, ROOM)
    total = tl.zeros([ROOM], tl.float64)
    members = tl.zeros([ROOM], tl.float64)
    for start in range(0, blocks, CHUNK):
        block = start + tl.arange(0, CHUNK)
        at = sums + (variant * blocks + block[:, None]) * 8 * ROOM + segment[None, :]
        there = (block < blocks)[:, None] & (segment < ROOM)[None, :]
        total += tl.sum(tl.load(at + feature * ROOM, mask=there, other=0.0).to(tl.float64), axis=0)
        members += tl.sum(tl.load(at + 5 * ROOM, mask=there, other=0.0).to(tl.float64), axis=0)
    place = centres + variant * 8 * ROOM + feature * ROOM + segment
    old = tl.load(place)
    old = tl.where(kept, old, 0.0)
    mean = (total / tl.maximum(members, 1.0)).to(tl.float32)
    tl.store(place, tl.where(members > 0, mean, old))


@triton.jit
def _assign(
    lab, labels, centres, sums, weights, height, width, down, across, reach_y, reach_x, blocks,
    FIRST: tl.constexpr, LAST: tl.constexpr, VARIANTS: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    variant = tl.program_id(1).to(tl.int64)
    pixels = height * width
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    image = lab + (variant // VARIANTS) * 3 * pixels + place
    light = tl.load(image, mask=inside, other=0.0)
    a = tl.load(image + pixels, mask=inside, other=0.0)
    b = tl.load(image + 2 * pixels, mask=inside, other=0.0)
    y, x = row.to(tl.float32), column.to(tl.float32)
    at = labels + variant * pixels + place
    if FIRST:
        label = (row * down // height) * across + column * across // width
    else:
        label = tl.load(at, mask=inside, other=0)
        nearest = tl.full([BLOCK], float("inf"), tl.float32)
        weight = tl.load(weights + variant % VARIANTS)
        for segment in range(down * across):
            centre = centres + variant * 8 * ROOM + segment
            centre_y, centre_x = tl.load(centre + 3 * ROOM), tl.load(centre + 4 * ROOM)
            off_y, off_x = y - centre_y, x - centre_x
            far = (off_y * off_y + off_x * off_x) * weight
            by = light - tl.load(centre)
            far += by * by
            by = a - tl.load(centre + ROOM)
            far += by * by
            by = b - tl.load(centre + 2 * ROOM)
            far += by * by
            away_y, away_x = row - centre_y.to(tl.int32), column - centre_x.to(tl.int32)
            near = (away_y <= reach_y) & (away_y >= -reach_y) & (away_x <= reach_x) & (away_x >= -reach_x)
            nearer = near & (far < nearest)
            nearest = tl.where(nearer, far, nearest)
            label = tl.where(nearer, segment, label)
    tl.store(at, label, mask=inside)
    if not LAST:
        which = tl.arange(0, 16)[None, :]
        members = tl.where(
            which == 0, light[:, None], tl.where(which == 1, a[:, None], tl.where(which == 2, b[:, None], 0.0))
        )
        members += tl.where(which == 3, y[:, None], tl.where(which == 4, x[:, None], tl.where(which == 5, 1.0, 0.0)))
        mine = ((label[None, :] == tl.arange(0, ROOM)[:, None]) & inside[None, :]).to(tl.float32)
        made = tl.dot(mine, members, input_precision=PRECISION)  # [ROOM, 16]
        target = sums + (variant * blocks + tl.program_id(0)) * 8 * ROOM
        target = target + tl.arange(0, 16)[None, :] * ROOM + tl.arange(0, ROOM)[:, None]
        tl.store(target, made, mask=(which < 6) & (tl.arange(0, ROOM)[:, None] >= 0))
