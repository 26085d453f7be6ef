"""Saliency in a few launches: Lab at the finest centre, its pyramid, all centre-surround differences, their sum, stretched.

The same sums as `texture/channels/saliency.py`, but for their order: each difference is summed over L, a and b at its own size, and
enlarged once. What that stretches by, the least and the largest value of the enlarged map, is
found by blocks and read by everybody who writes, so that nobody waits for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.devices import placed
from arr_coc.texture.channels.saliency import FLAT, centre_surround_pairs
from arr_coc.texture.kernels import tables
from arr_coc.texture.kernels.cells import write_cells
from arr_coc.texture.kernels.lab import write_lab
from arr_coc.texture.pyramid import level_count, level_size

BLOCK = 512
PARTS = 128  # blocks that look for the least and the largest value of an image


class CentreSurround:
    """Everything that saliency of images of one size needs beside the images: made once, written to often."""

    def __init__(self, batch: int, size: tuple[int, int], device: torch.device) -> None:
        self.size = size
        self.pairs = centre_surround_pairs(level_count(size))
        if not self.pairs:
            return
        self.finest, coarsest = self.pairs[0][0], max(surround for _, surround in self.pairs)
        sizes = {number: level_size(size, number) for number in range(self.finest, coarsest + 1)}
        self.levels = {
            number: torch.empty(batch * 3, *one, dtype=torch.float32, device=device) for number, one in sizes.items()
        }
        self.tables = {number: tables.table(list(level)) for number, level in self.levels.items()}
        self.means = tables.rules(["mean"] * (batch * 3), device)
        self.differences = [torch.empty(batch, *sizes[centre], device=device) for centre, _ in self.pairs]
        # Levels lie apart: their addresses go along, with their sizes.
        rows = [
            [made.data_ptr(), *(each for level in pair for each in (self.levels[level].data_ptr(), *sizes[level]))]
            for pair, made in zip(self.pairs, self.differences, strict=True)
        ]
        self.table = placed(torch.tensor(rows, dtype=torch.int64), device)
        self.total = torch.empty(batch, *sizes[self.finest], dtype=torch.float32, device=device)
        self.ranges = torch.empty(batch, 2, PARTS, dtype=torch.float32, device=device)

    def write(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Write the saliency of images `[B, 3, H, W]` into `out` `[B, H, W]`, planes of a block or not."""
        batch, _, height, width = pixels.shape
        if not self.pairs:
            out.zero_()
            return
        high, wide = level_size(self.size, self.finest)
        write_lab(pixels, self.levels[self.finest], (high, wide))
        for number in sorted(self.levels)[1:]:
            write_cells(self.tables[number - 1], self.means, level_size(self.size, number - 1), self.levels[number])
        _differ[(triton.cdiv(high * wide, BLOCK), len(self.pairs), batch)](
            self.table, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False
        )
        _contrast[(triton.cdiv(high * wide, BLOCK), batch)](
            self.table, self.total, high, wide, PAIRS=len(self.pairs), BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False
        )
        _range[(PARTS, batch)](
            self.total, self.ranges, height, width, high, wide, BLOCK=1024, PARTS=PARTS, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
        _stretch[(triton.cdiv(height * width, 1024), batch)](
            self.total, self.ranges, out, height, width, high, wide, out.stride(0), out.stride(1), FLAT,
            BLOCK=1024, PARTS=PARTS, WIDE=tables.wide(out), num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit
def _corners(at, size, wanted):
    """The two neighbours of a place on an enlarged axis, and the share of the second.

    The share is found apart from the neighbour's number: a place of several hundred pixels in 32 bits is off by 1e-5 of one.
    """
    scale = tl.cast(size, tl.float64) / tl.cast(wanted, tl.float64)
    rough = scale.to(tl.float32)
    rest = (scale - rough.to(tl.float64)).to(tl.float32)
    middle = at.to(tl.float32) + 0.5
    before = tl.floor(middle * rough - 0.5)
    share = tl.fma(middle, rough, -0.5 - before) + middle * rest
    before += tl.floor(share)  # where rounding has led to the pixel beside
    share = tl.where(before < 0, 0.0, share - tl.floor(share))
    first = tl.minimum(tl.maximum(before, 0.0).to(tl.int32), size - 1)
    return first, tl.minimum(first + 1, size - 1), share


@triton.jit
def _enlarged(plane, y, x, high, wide, to_high, to_wide, mask):
    """A small plane read at pixels of a larger one."""
    top, bottom, down = _corners(y, high, to_high)
    left, right, across = _corners(x, wide, to_wide)
    a = tl.load(plane + top * wide + left, mask=mask, other=0.0)
    b = tl.load(plane + top * wide + right, mask=mask, other=0.0)
    c = tl.load(plane + bottom * wide + left, mask=mask, other=0.0)
    d = tl.load(plane + bottom * wide + right, mask=mask, other=0.0)
    return (1 - down) * ((1 - across) * a + across * b) + down * ((1 - across) * c + across * d)


@triton.jit
def _differ(table, BLOCK: tl.constexpr):
    """What the pixels of a fine level differ from a coarse one by, over L, a and b."""
    image = tl.program_id(2).to(tl.int64)
    out, fine, high, wide, coarse, small_high, small_wide = _pair(table, tl.program_id(1))
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cell < high * wide
    row, column = cell // wide, cell % wide
    found = tl.zeros([BLOCK], tl.float32)
    for channel in tl.static_range(3):
        here = tl.load(fine + (image * 3 + channel) * high * wide + cell, mask=mask, other=0.0)
        around = coarse + (image * 3 + channel) * small_high * small_wide
        found += tl.abs(here - _enlarged(around, row, column, small_high, small_wide, high, wide, mask))
    tl.store(out + image * high * wide + cell, found, mask=mask)


@triton.jit
def _pair(table, number):
    """Where a difference goes, and its two levels: each with its size."""
    at = table + 7 * number
    kind = tl.pointer_type(tl.float32)
    out, fine, coarse = tl.load(at).to(kind), tl.load(at + 1).to(kind), tl.load(at + 4).to(kind)
    high, wide = tl.load(at + 2).to(tl.int32), tl.load(at + 3).to(tl.int32)
    return out, fine, high, wide, coarse, tl.load(at + 5).to(tl.int32), tl.load(at + 6).to(tl.int32)


@triton.jit
def _contrast(table, total, rows, columns, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """All differences, enlarged to the finest level and summed."""
    image = tl.program_id(1).to(tl.int64)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cell < rows * columns
    row, column = cell // columns, cell % columns
    found = tl.zeros([BLOCK], tl.float32)
    for number in tl.static_range(PAIRS):
        made, _, high, wide, _, _, _ = _pair(table, number)
        made += image * high * wide
        if (high == rows) & (wide == columns):
            found += tl.load(made + cell, mask=mask, other=0.0)
        else:
            found += _enlarged(made, row, column, high, wide, rows, columns, mask)
    tl.store(total + image * rows * columns + cell, found, mask=mask)


@triton.jit
def _range(total, ranges, height, width, rows, columns, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """The least and the largest value of the enlarged map, by part."""
    image = tl.program_id(1).to(tl.int64)
    low = tl.full([BLOCK], float("inf"), tl.float32)
    high = tl.full([BLOCK], -float("inf"), tl.float32)
    pixels = height * width  # below 2^31: see dispatch.LONGEST
    for start in range(tl.program_id(0) * BLOCK, pixels, PARTS * BLOCK):
        place = start + tl.arange(0, BLOCK)
        mask = place < pixels
        y, x = place // width, place % width
        value = _enlarged(total + image * rows * columns, y, x, rows, columns, height, width, mask)
        low = tl.minimum(low, tl.where(mask, value, float("inf")))
        high = tl.maximum(high, tl.where(mask, value, -float("inf")))
    tl.store(ranges + image * 2 * PARTS + tl.program_id(0), tl.min(low))
    tl.store(ranges + image * 2 * PARTS + PARTS + tl.program_id(0), tl.max(high))


@triton.jit
def _stretch(
    total, ranges, out, height, width, rows, columns, out_b, out_y, flat,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, PARTS)
    low = tl.min(tl.load(ranges + image * 2 * PARTS + part))
    high = tl.max(tl.load(ranges + image * 2 * PARTS + PARTS + part))
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < height * width
    y, x = place // width, place % width
    value = _enlarged(total + image * rows * columns, y, x, rows, columns, height, width, mask)
    value = tl.where(high - low < flat, 0.0, (value - low) / tl.maximum(high - low, 1e-12))
    if WIDE:
        y = y.to(tl.int64)
    tl.store(out + image * out_b + y * out_y + x, value.to(out.dtype.element_ty), mask=mask)
