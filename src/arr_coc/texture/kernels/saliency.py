"""Kernels for saliency: Lab at the finest centre, its pyramid, all centre-surround differences, their sum, stretched to [0, 1].

The same as `texture/channels/edges.py` except for the order of the sums: each difference is summed over L, a and b at its
own size and enlarged once. The minimum and maximum of the enlarged map are found by blocks on the device and read by the
kernel that writes it, so that the host never waits. `write_lab` also serves superpixels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.devices import to_device
from arr_coc.texture.channels.edges import FLAT, centre_surround_pairs
from arr_coc.texture.filters import level_count, level_size
from arr_coc.texture.kernels.pooling import _part, needs_int64, plane_table, rule_codes, touched_pixels, write_cells

BLOCK = 512
LAB_BLOCK = 256  # cells of a program
RANGE_BLOCKS = 128  # programs per image that search the minimum and maximum


class CentreSurround:
    """Buffers for the saliency of images of one size: made once, written often."""

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
        self.tables = {number: plane_table(list(level)) for number, level in self.levels.items()}
        self.means = rule_codes(["mean"] * (batch * 3), device)
        self.differences = [torch.empty(batch, *sizes[centre], device=device) for centre, _ in self.pairs]
        # Per pair: the address of its difference, and address and size of both levels.
        rows = [
            [made.data_ptr(), *(each for level in pair for each in (self.levels[level].data_ptr(), *sizes[level]))]
            for pair, made in zip(self.pairs, self.differences, strict=True)
        ]
        self.table = to_device(torch.tensor(rows, dtype=torch.int64), device)
        self.total = torch.empty(batch, *sizes[self.finest], dtype=torch.float32, device=device)
        self.ranges = torch.empty(batch, 2, RANGE_BLOCKS, dtype=torch.float32, device=device)

    def write(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Write the saliency of images `[B, 3, H, W]` into `out` `[B, H, W]`, which may be planes of a block."""
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
        _range[(RANGE_BLOCKS, batch)](
            self.total, self.ranges, height, width, high, wide, BLOCK=1024, PARTS=RANGE_BLOCKS, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
        _stretch[(triton.cdiv(height * width, 1024), batch)](
            self.total, self.ranges, out, height, width, high, wide, out.stride(0), out.stride(1), FLAT,
            BLOCK=1024, PARTS=RANGE_BLOCKS, WIDE=needs_int64(out), num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


def write_lab(pixels: torch.Tensor, out: torch.Tensor, size: tuple[int, int]) -> None:
    """Write the mean colours of images `[B, 3, H, W]` over `size` cells, in Lab, into `out`, contiguous `[B, 3, h, w]`."""
    batch, _, height, width = pixels.shape
    high, wide = size
    even = height % high == 0 and width % wide == 0  # cells cut no pixels
    even = even and width // wide in (1, 2, 4, 8) and height // high <= 8 and pixels.stride(3) == 1
    _lab[(triton.cdiv(high * wide, LAB_BLOCK), batch)](
        pixels, out, height, width, high, wide, *pixels.stride(),
        REACH_Y=touched_pixels(height, high), REACH_X=touched_pixels(width, wide), EVEN=even, BLOCK=LAB_BLOCK,
        WIDE=needs_int64(pixels), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _corners(at, size, wanted):
    """The two neighbours of a position on an enlarged axis, and the weight of the second.

    The weight is computed separately from the index: a position of several hundred pixels in float32 is off by 1e-5.
    """
    scale = tl.cast(size, tl.float64) / tl.cast(wanted, tl.float64)
    rough = scale.to(tl.float32)
    rest = (scale - rough.to(tl.float64)).to(tl.float32)
    middle = at.to(tl.float32) + 0.5
    before = tl.floor(middle * rough - 0.5)
    share = tl.fma(middle, rough, -0.5 - before) + middle * rest
    before += tl.floor(share)  # where rounding led to the neighbouring pixel
    share = tl.where(before < 0, 0.0, share - tl.floor(share))
    first = tl.minimum(tl.maximum(before, 0.0).to(tl.int32), size - 1)
    return first, tl.minimum(first + 1, size - 1), share


@triton.jit
def _enlarged(plane, y, x, high, wide, to_high, to_wide, mask):
    """Read a small plane at pixels of a larger one, bilinearly."""
    top, bottom, down = _corners(y, high, to_high)
    left, right, across = _corners(x, wide, to_wide)
    a = tl.load(plane + top * wide + left, mask=mask, other=0.0)
    b = tl.load(plane + top * wide + right, mask=mask, other=0.0)
    c = tl.load(plane + bottom * wide + left, mask=mask, other=0.0)
    d = tl.load(plane + bottom * wide + right, mask=mask, other=0.0)
    return (1 - down) * ((1 - across) * a + across * b) + down * ((1 - across) * c + across * d)


@triton.jit
def _differ(table, BLOCK: tl.constexpr):
    """Absolute difference of a fine and an enlarged coarse level, summed over L, a and b."""
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
    """The output of a pair, and its two levels with their sizes."""
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
    """Minimum and maximum of the enlarged map, per program."""
    image = tl.program_id(1).to(tl.int64)
    low = tl.full([BLOCK], float("inf"), tl.float32)
    high = tl.full([BLOCK], -float("inf"), tl.float32)
    pixels = height * width  # below 2^31: see dispatch.MAX_SIDE
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


@triton.jit
def _lab(
    pixels, out, height, width, rows, columns, in_b, in_c, in_y, in_x,
    REACH_Y: tl.constexpr, REACH_X: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The mean colour of each cell, in Lab. EVEN: cells cut no pixels, and a lane loads a row of a cell at once."""
    image = pixels + tl.program_id(1).to(tl.int64) * in_b
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < rows * columns
    row, column = cell // columns, cell % columns
    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    if EVEN:
        part = 1.0 / (REACH_Y * REACH_X)
        for down in tl.static_range(REACH_Y):
            y = row * REACH_Y + down
            if WIDE:
                y = y.to(tl.int64)
            at = image + (y * in_y)[:, None] + (column * REACH_X)[:, None] + tl.arange(0, REACH_X)[None, :]
            red += tl.sum(tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32), axis=1) * part
            green += tl.sum(tl.load(at + in_c, mask=inside[:, None], other=0.0).to(tl.float32), axis=1) * part
            blue += tl.sum(tl.load(at + 2 * in_c, mask=inside[:, None], other=0.0).to(tl.float32), axis=1) * part
    else:
        first_y, first_x = row * height // rows, column * width // columns
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
def _linear(value):
    """sRGB to linear light."""
    base = tl.maximum((value + 0.055) / 1.055, 1e-6)
    square = base * base
    root = tl.exp2(0.4 * tl.log2(base))  # its fifth power is the square
    # One Newton step corrects the low-precision logarithm.
    fourth = root * root * root * root
    root = root - (fourth * root - square) / (5 * fourth)
    return tl.where(value > 0.04045, square * root, value / 12.92)


@triton.jit
def _cube_root(value):
    root = tl.exp2(tl.log2(tl.maximum(value, 1e-6)) / 3)
    # One Newton step corrects the low-precision logarithm.
    root = root - (root * root * root - tl.maximum(value, 1e-6)) / (3 * root * root)
    return tl.where(value > 0.008856, root, 7.787 * value + 16 / 116)


@triton.jit
def _store_lab(red, green, blue, at, plane, mask):
    """Convert RGB to Lab and store three planes."""
    r, g, b = _linear(red), _linear(green), _linear(blue)
    x = _cube_root((0.412453 / 0.95047) * r + (0.357580 / 0.95047) * g + (0.180423 / 0.95047) * b)
    y = _cube_root(0.212671 * r + 0.715160 * g + 0.072169 * b)
    z = _cube_root((0.019334 / 1.08883) * r + (0.119193 / 1.08883) * g + (0.950227 / 1.08883) * b)
    tl.store(at, 116 * y - 16, mask=mask)
    tl.store(at + plane, 500 * (x - y), mask=mask)
    tl.store(at + 2 * plane, 200 * (y - z), mask=mask)
