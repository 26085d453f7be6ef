"""Saliency in a few launches: Lab at the finest centre, its pyramid, all centre-surround differences in one pass, stretched.

The same sums as `texture/channels/saliency.py`. What that stretches by, the least and the largest value of the enlarged map, is
found by blocks and read by everybody who writes, so that nobody waits for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.devices import placed
from arr_coc.kernels import tables
from arr_coc.kernels.cells import _part, _reach, write_cells
from arr_coc.texture.channels.saliency import FLAT, centre_surround_pairs
from arr_coc.texture.pyramid import level_count, level_size

BLOCK = 256
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
        # Levels lie apart: their addresses go along, with their sizes.
        rows = [[self.levels[level].data_ptr(), *sizes[level]] for pair in self.pairs for level in pair]
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
        _lab[(triton.cdiv(high * wide, BLOCK), batch)](
            pixels, self.levels[self.finest], height, width, high, wide,
            pixels.stride(0), pixels.stride(1), pixels.stride(2), pixels.stride(3),
            REACH_Y=_reach(height, high), REACH_X=_reach(width, wide), BLOCK=BLOCK, WIDE=tables.wide(pixels), num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
        for number in sorted(self.levels)[1:]:
            write_cells(self.tables[number - 1], self.means, level_size(self.size, number - 1), self.levels[number])
        _contrast[(triton.cdiv(high * wide, BLOCK), batch)](
            self.table, self.total, high, wide, len(self.pairs), BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False
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
def _linear(value):
    """sRGB to linear light."""
    base = tl.maximum((value + 0.055) / 1.055, 1e-6)
    square = base * base
    root = tl.exp2(0.4 * tl.log2(base))  # whose fifth power is the square
    # One step of Newton's makes up for the short logarithm.
    fourth = root * root * root * root
    root = root - (fourth * root - square) / (5 * fourth)
    return tl.where(value > 0.04045, square * root, value / 12.92)


@triton.jit
def _cube_root(value):
    root = tl.exp2(tl.log2(tl.maximum(value, 1e-6)) / 3)
    # One step of Newton's makes up for the short logarithm.
    root = root - (root * root * root - tl.maximum(value, 1e-6)) / (3 * root * root)
    return tl.where(value > 0.008856, root, 7.787 * value + 16 / 116)


@triton.jit
def _store_lab(red, green, blue, at, plane, mask):
    """Lab of RGB values, into three planes."""
    r, g, b = _linear(red), _linear(green), _linear(blue)
    x = _cube_root((0.412453 / 0.95047) * r + (0.357580 / 0.95047) * g + (0.180423 / 0.95047) * b)
    y = _cube_root(0.212671 * r + 0.715160 * g + 0.072169 * b)
    z = _cube_root((0.019334 / 1.08883) * r + (0.119193 / 1.08883) * g + (0.950227 / 1.08883) * b)
    tl.store(at, 116 * y - 16, mask=mask)
    tl.store(at + plane, 500 * (x - y), mask=mask)
    tl.store(at + 2 * plane, 200 * (y - z), mask=mask)


@triton.jit
def _lab(
    pixels, out, height, width, rows, columns, in_b, in_c, in_y, in_x,
    REACH_Y: tl.constexpr, REACH_X: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The mean colour of each cell, in Lab."""
    image = pixels + tl.program_id(1).to(tl.int64) * in_b
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < rows * columns
    row, column = cell // columns, cell % columns
    first_y, first_x = row * height // rows, column * width // columns
    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    for down in range(REACH_Y):
        for across in tl.static_range(REACH_X):
            y, x = first_y + down, first_x + across
            part_y, part_x = _part(row, y, rows, height), _part(column, x, columns, width)
            touched = inside & (part_y > 0) & (part_x > 0)
            part = (part_y.to(tl.float32) / height) * (part_x.to(tl.float32) / width)
            if WIDE:
                y, x = y.to(tl.int64), x.to(tl.int64)
            at = image + y * in_y + x * in_x
            red += tl.load(at, mask=touched, other=0.0).to(tl.float32) * part
            green += tl.load(at + in_c, mask=touched, other=0.0).to(tl.float32) * part
            blue += tl.load(at + 2 * in_c, mask=touched, other=0.0).to(tl.float32) * part
    plane = rows * columns
    _store_lab(red, green, blue, out + tl.program_id(1).to(tl.int64) * 3 * plane + cell, plane, inside)


@triton.jit
def _corners(at, size, wanted):
    """The two neighbours of a place on an enlarged axis, and the share of the second."""
    scale = tl.cast(size, tl.float32) / tl.cast(wanted, tl.float32)
    source = tl.maximum((at.to(tl.float32) + 0.5) * scale - 0.5, 0.0)
    first = tl.minimum(tl.floor(source).to(tl.int32), size - 1)
    return first, tl.minimum(first + 1, size - 1), source - first.to(tl.float32)


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
def _difference(fine, coarse, y, x, high, wide, coarse_high, coarse_wide, mask):
    """What a pixel of a fine plane differs from the coarse one by."""
    here = tl.load(fine + y * wide + x, mask=mask, other=0.0)
    return tl.abs(here - _enlarged(coarse, y, x, coarse_high, coarse_wide, high, wide, mask))


@triton.jit
def _contrast(table, total, rows, columns, pairs, BLOCK: tl.constexpr):
    image = tl.program_id(1).to(tl.int64)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cell < rows * columns
    row, column = cell // columns, cell % columns
    found = tl.zeros([BLOCK], tl.float32)
    for pair in range(pairs):
        at = table + 6 * pair
        fine = tl.load(at).to(tl.pointer_type(tl.float32))
        high, wide = tl.load(at + 1).to(tl.int32), tl.load(at + 2).to(tl.int32)
        coarse = tl.load(at + 3).to(tl.pointer_type(tl.float32))
        small_high, small_wide = tl.load(at + 4).to(tl.int32), tl.load(at + 5).to(tl.int32)
        top, bottom, down = _corners(row, high, rows)
        left, right, across = _corners(column, wide, columns)
        for channel in tl.static_range(3):
            mine = fine + (image * 3 + channel) * high * wide
            around = coarse + (image * 3 + channel) * small_high * small_wide
            a = _difference(mine, around, top, left, high, wide, small_high, small_wide, mask)
            if (high != rows) | (wide != columns):
                b = _difference(mine, around, top, right, high, wide, small_high, small_wide, mask)
                c = _difference(mine, around, bottom, left, high, wide, small_high, small_wide, mask)
                d = _difference(mine, around, bottom, right, high, wide, small_high, small_wide, mask)
                a = (1 - down) * ((1 - across) * a + across * b) + down * ((1 - across) * c + across * d)
            found += a
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
