"""Mean colours of cells in CIE Lab, straight from the image: what saliency and superpixels start from."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels import tables
from arr_coc.texture.kernels.cells import _part, _reach

BLOCK = 256  # cells of a program


def write_lab(pixels: torch.Tensor, out: torch.Tensor, size: tuple[int, int]) -> None:
    """Write the mean colours of images `[B, 3, H, W]` over cells, in Lab, into `out`, contiguous `[B, 3, h, w]`."""
    batch, _, height, width = pixels.shape
    high, wide = size
    beside, below = width // wide, height // high  # px of a cell, where all are alike
    even = height % high == 0 and width % wide == 0 and beside in (1, 2, 4, 8) and below <= 8 and pixels.stride(3) == 1
    _lab[(triton.cdiv(high * wide, BLOCK), batch)](
        pixels, out, height, width, high, wide, pixels.stride(0), pixels.stride(1), pixels.stride(2), pixels.stride(3),
        REACH_Y=_reach(height, high), REACH_X=_reach(width, wide), EVEN=even, BLOCK=BLOCK, WIDE=tables.wide(pixels),
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _lab(
    pixels, out, height, width, rows, columns, in_b, in_c, in_y, in_x,
    REACH_Y: tl.constexpr, REACH_X: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The mean colour of each cell, in Lab. EVEN: cells do not cut pixels, and a lane loads those of a row at once."""
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
