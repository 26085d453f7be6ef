"""Optical flow of fixed shape on the GPU, in both directions at once, without a wait: the steps of `frames/flow.py`.

    start: vectors of the coarser level, slopes, brightness change -> along rows -> down columns, and a step -> ...
                                                                   -> smoothed by structure -> the next finer level

Every average there, with its borders repeated, is a linear map along each axis, computed here once as a matrix in float64.
A matrix with few entries per row is stored as these entries (`to_bands`). A round is two launches: one sums along rows; the
other sums down columns, solves the normal equations, takes the step and reads the frame again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from arr_coc.frames import flow as flows
from arr_coc.frames.flow import LK_DAMPING, LK_ITERATIONS, LK_MAX_STEP, LK_MIN_SIDE, LK_SMOOTH, LK_WINDOW
from arr_coc.texture.kernels.saliency import _enlarged

BLOCK = 128


def box_matrix(length: int, window: int) -> torch.Tensor:
    """`[n, n]`: the mean over a window, taken twice, each time with the border repeated."""
    once = filter_matrix(length, torch.full((window,), 1 / window, dtype=torch.float64))
    return once @ once


def filter_matrix(length: int, taps: torch.Tensor) -> torch.Tensor:
    """`[n, n]`: a filter with an odd number of taps, the border repeated."""
    made = torch.zeros(length, length, dtype=torch.float64)
    rows = torch.arange(length)
    for off, tap in enumerate(taps.double(), start=-(len(taps) // 2)):
        made.index_put_((rows, (rows + off).clamp(0, length - 1)), tap.expand(length), accumulate=True)
    return made


def halving_matrix(length: int) -> torch.Tensor:
    """`[ceil(n / 2), n]`: blurred by 3 twice, then the mean of each pair; the last of an odd number alone."""
    pairs = F.avg_pool1d(torch.eye(length, dtype=torch.float64)[None], 2, ceil_mode=True)[0].T
    return pairs @ box_matrix(length, 3)


def resize_matrix(length: int, wanted: int) -> torch.Tensor:
    """`[wanted, n]`: bilinear, with antialiasing where it shrinks."""
    unit = torch.eye(length, dtype=torch.float64)[:, None, None, :]
    return F.interpolate(unit, (1, wanted), mode="bilinear", antialias=True, align_corners=False)[:, 0, 0].T


@dataclass(frozen=True, eq=False)
class BandMatrix:
    """A band matrix: row i has `weights[i, t]` at column `step * i + low + t`."""

    weights: torch.Tensor  # float32 [rows, width]
    low: int

    @property
    def width(self) -> int:
        return int(self.weights.shape[1])


def to_bands(matrix: torch.Tensor, device: torch.device | str, step: int = 1) -> BandMatrix:
    """A matrix `[m, n]` as its entries around `step * i`."""
    rows, columns = matrix.nonzero(as_tuple=True)
    off = columns - step * rows
    low, high = int(off.min()), int(off.max())
    weights = torch.zeros(len(matrix), high - low + 1)
    weights[rows, off - low] = matrix[rows, columns].float()
    return BandMatrix(weights.to(device).contiguous(), low)


class _Level:
    """Buffers and averages of one size. Two frames each: `[2, ...]`."""

    def __init__(self, size: tuple[int, int], device: torch.device | str) -> None:
        self.size = size
        self.grid = (triton.cdiv(size[0] * size[1], BLOCK), 2)
        self.wide = [to_bands(box_matrix(length, LK_WINDOW), device) for length in size]
        self.narrow = [to_bands(box_matrix(length, LK_SMOOTH), device) for length in size]
        self.halving = [to_bands(halving_matrix(length), device, 2) for length in size]
        self.luma, self.found, self.smooth, self.slopes, self.parts, self.rows, self.structure = (
            torch.zeros(2, planes, *size, device=device) for planes in (1, 2, 2, 2, 5, 5, 3)
        )


class PyramidFlow:
    """The flow between two small lumas `[h, w]` of one size: `between` returns vectors and confidence."""

    def __init__(self, size: tuple[int, int], device: torch.device | str = "cuda") -> None:
        sizes = [size]
        while min(sizes[-1]) >= 2 * LK_MIN_SIDE:
            sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
        self.size = size
        self._levels = [_Level(one, device) for one in sizes]
        self._confidence = torch.zeros(size, device=device)

    @property
    def flow(self) -> flows.Flow:
        """The last result; the next call overwrites it."""
        return flows.Flow(self._levels[0].smooth[0], self._confidence)

    def between(self, before: torch.Tensor, after: torch.Tensor) -> flows.Flow:
        """The flow from `before` to `after`: vectors point back in time, as in `frames/flow.py`."""
        first = self._levels[0]
        first.luma[0, 0].copy_(after)
        first.luma[1, 0].copy_(before)
        for fine, coarse in zip(self._levels, self._levels[1:], strict=False):
            self._halve(fine, coarse)
        behind: _Level | None = None
        for level in reversed(self._levels):
            self._refine(level, behind)
            behind = level
        height, width = self.size
        _return[first.grid[:1]](
            first.smooth, self._confidence, height, width, flows.MISS, flows.MISS_SHARE, BLOCK=BLOCK, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip
        return self.flow

    def _halve(self, fine: _Level, coarse: _Level) -> None:
        down, across = fine.halving
        _halve[coarse.grid](
            fine.luma, coarse.luma, down.weights, across.weights, *fine.size, *coarse.size, down.low, across.low,
            DOWN=down.width, ACROSS=across.width, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip

    def _refine(self, level: _Level, coarse: _Level | None) -> None:
        height, width = level.size
        behind = level if coarse is None else coarse
        _start[level.grid](
            level.luma, behind.smooth, level.found, level.slopes, level.parts, height, width, *behind.size,
            width / behind.size[1], height / behind.size[0],
            COARSEST=coarse is None, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
        for number in range(LK_ITERATIONS):
            self._along(level, level.wide[1], *((0, 5) if number == 0 else (3, 2)))
            down = level.wide[0]
            _step[level.grid](
                level.rows, down.weights, level.structure, level.slopes, level.luma, level.found, level.parts, height, width,
                down.low, LK_DAMPING, LK_MAX_STEP,
                FIRST=number == 0, LAST=number == LK_ITERATIONS - 1, TAPS=down.width, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
        self._along(level, level.narrow[1], 0, 3)
        down = level.narrow[0]
        _smooth[level.grid](
            level.rows, down.weights, level.smooth, height, width, down.low, TAPS=down.width, BLOCK=BLOCK, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip

    def _along(self, level: _Level, across: BandMatrix, first: int, count: int) -> None:
        """Sum some of both frames' parts along rows."""
        height, width = level.size
        _along[(level.grid[0], 2 * count)](
            level.parts, level.rows, across.weights, height, width, across.low, FIRST=first, COUNT=count, TAPS=across.width,
            BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def _clamped(at, length):
    return tl.minimum(tl.maximum(at, 0), length - 1)


@triton.jit
def _halve(
    fine, coarse, down, across, height, width, high, wide, low_y, low_x,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < high * wide
    row, column = place // wide, place % wide
    total = tl.zeros([BLOCK], tl.float32)
    for a in tl.static_range(DOWN):
        source = fine + frame * height * width + _clamped(2 * row + low_y + a, height) * width
        line = tl.zeros([BLOCK], tl.float32)
        for b in tl.static_range(ACROSS):
            value = tl.load(source + _clamped(2 * column + low_x + b, width), mask=inside, other=0.0)
            line += value * tl.load(across + column * ACROSS + b, mask=inside, other=0.0)
        total += line * tl.load(down + row * DOWN + a, mask=inside, other=0.0)
    tl.store(coarse + frame * high * wide + place, total, mask=inside)


@triton.jit
def _bilinear(plane, x, y, height, width, mask):
    """Read a plane bilinearly; the border is repeated."""
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    west, north = tl.floor(x).to(tl.int32), tl.floor(y).to(tl.int32)
    east, south = tl.minimum(west + 1, width - 1), tl.minimum(north + 1, height - 1)
    fx, fy = x - west.to(tl.float32), y - north.to(tl.float32)
    value = tl.load(plane + north * width + west, mask=mask, other=0.0) * ((1 - fy) * (1 - fx))
    value += tl.load(plane + north * width + east, mask=mask, other=0.0) * ((1 - fy) * fx)
    value += tl.load(plane + south * width + west, mask=mask, other=0.0) * (fy * (1 - fx))
    return value + tl.load(plane + south * width + east, mask=mask, other=0.0) * (fy * fx)


@triton.jit
def _change(luma, frame, row, column, along, down, height, width, mask):
    """The brightness difference at the position of a pixel in the other frame."""
    there = luma + (1 - frame) * height * width
    value = _bilinear(there, column.to(tl.float32) + along, row.to(tl.float32) + down, height, width, mask)
    return value - tl.load(luma + frame * height * width + row * width + column, mask=mask, other=0.0)


@triton.jit
def _start(
    luma, coarse, found, slopes, parts, height, width, high, wide, scale_x, scale_y,
    COARSEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The coarser level's vectors, central differences, their products, and the remaining change."""
    pixels = height * width
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    along = tl.zeros([BLOCK], tl.float32)
    down = tl.zeros([BLOCK], tl.float32)
    if not COARSEST:
        source = coarse + frame * 2 * high * wide
        along = _enlarged(source, row, column, high, wide, height, width, inside) * scale_x
        down = _enlarged(source + high * wide, row, column, high, wide, height, width, inside) * scale_y
    tl.store(found + frame * 2 * pixels + place, along, mask=inside)
    tl.store(found + (frame * 2 + 1) * pixels + place, down, mask=inside)
    here = luma + frame * pixels
    up, low = tl.maximum(row - 1, 0), tl.minimum(row + 1, height - 1)
    west, east = tl.maximum(column - 1, 0), tl.minimum(column + 1, width - 1)
    x = tl.load(here + row * width + east, mask=inside, other=0.0)
    x = (x - tl.load(here + row * width + west, mask=inside, other=0.0)) / 2
    y = tl.load(here + low * width + column, mask=inside, other=0.0)
    y = (y - tl.load(here + up * width + column, mask=inside, other=0.0)) / 2
    tl.store(slopes + frame * 2 * pixels + place, x, mask=inside)
    tl.store(slopes + (frame * 2 + 1) * pixels + place, y, mask=inside)
    change = _change(luma, frame, row, column, along, down, height, width, inside)
    part = parts + frame * 5 * pixels + place
    tl.store(part, x * x, mask=inside)
    tl.store(part + pixels, x * y, mask=inside)
    tl.store(part + 2 * pixels, y * y, mask=inside)
    tl.store(part + 3 * pixels, change * x, mask=inside)
    tl.store(part + 4 * pixels, change * y, mask=inside)


@triton.jit
def _along(
    parts, rows, weights, height, width, low,
    FIRST: tl.constexpr, COUNT: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(1) // COUNT * 5 + FIRST + tl.program_id(1) % COUNT
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < height * width
    row, column = place // width, place % width
    source = parts + plane * height * width + row * width
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        value = tl.load(source + _clamped(column + low + tap, width), mask=inside, other=0.0)
        total += value * tl.load(weights + column * TAPS + tap, mask=inside, other=0.0)
    tl.store(rows + plane * height * width + place, total, mask=inside)


@triton.jit
def _down(plane, weights, row, column, height, width, low, mask, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum a plane down its columns."""
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        value = tl.load(plane + _clamped(row + low + tap, height) * width + column, mask=mask, other=0.0)
        total += value * tl.load(weights + row * TAPS + tap, mask=mask, other=0.0)
    return total


@triton.jit
def _step(
    rows, weights, structure, slopes, luma, found, parts, height, width, low, steady, most,
    FIRST: tl.constexpr, LAST: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The least-squares step, at most `most` along each axis, and the change that remains."""
    pixels = height * width
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    source = rows + frame * 5 * pixels
    x = _down(source + 3 * pixels, weights, row, column, height, width, low, inside, TAPS, BLOCK)
    y = _down(source + 4 * pixels, weights, row, column, height, width, low, inside, TAPS, BLOCK)
    known = structure + frame * 3 * pixels + place
    if FIRST:
        xx = _down(source, weights, row, column, height, width, low, inside, TAPS, BLOCK)
        xy = _down(source + pixels, weights, row, column, height, width, low, inside, TAPS, BLOCK)
        yy = _down(source + 2 * pixels, weights, row, column, height, width, low, inside, TAPS, BLOCK)
        tl.store(known, xx, mask=inside)
        tl.store(known + pixels, xy, mask=inside)
        tl.store(known + 2 * pixels, yy, mask=inside)
    else:
        xx = tl.load(known, mask=inside, other=0.0)
        xy = tl.load(known + pixels, mask=inside, other=0.0)
        yy = tl.load(known + 2 * pixels, mask=inside, other=0.0)
    determinant = (xx + steady) * (yy + steady) - xy * xy
    along = tl.minimum(tl.maximum(((yy + steady) * x - xy * y) / determinant, -most), most)
    down = tl.minimum(tl.maximum(((xx + steady) * y - xy * x) / determinant, -most), most)
    target = found + frame * 2 * pixels + place
    along = tl.load(target, mask=inside, other=0.0) - along
    down = tl.load(target + pixels, mask=inside, other=0.0) - down
    part = parts + frame * 5 * pixels + place
    if LAST:
        weight = (xx + yy) / 2 + 1e-9
        tl.store(part, along * weight, mask=inside)
        tl.store(part + pixels, down * weight, mask=inside)
        tl.store(part + 2 * pixels, weight, mask=inside)
    else:
        tl.store(target, along, mask=inside)
        tl.store(target + pixels, down, mask=inside)
        change = _change(luma, frame, row, column, along, down, height, width, inside)
        slope = slopes + frame * 2 * pixels + place
        tl.store(part + 3 * pixels, change * tl.load(slope, mask=inside, other=0.0), mask=inside)
        tl.store(part + 4 * pixels, change * tl.load(slope + pixels, mask=inside, other=0.0), mask=inside)


@triton.jit
def _smooth(rows, weights, smooth, height, width, low, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Average vectors, weighted by the image structure under them."""
    pixels = height * width
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    source = rows + frame * 5 * pixels
    weight = _down(source + 2 * pixels, weights, row, column, height, width, low, inside, TAPS, BLOCK)
    weight = tl.where(inside, weight, 1.0)
    along = _down(source, weights, row, column, height, width, low, inside, TAPS, BLOCK) / weight
    down = _down(source + pixels, weights, row, column, height, width, low, inside, TAPS, BLOCK) / weight
    tl.store(smooth + frame * 2 * pixels + place, along, mask=inside)
    tl.store(smooth + (frame * 2 + 1) * pixels + place, down, mask=inside)


@triton.jit
def _return(vectors, confidence, height, width, stray, share, BLOCK: tl.constexpr):
    """Confidence: how near a pixel comes to itself when it follows the flow back and forth."""
    pixels = height * width
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    along = tl.load(vectors + place, mask=inside, other=0.0)
    down = tl.load(vectors + pixels + place, mask=inside, other=0.0)
    x, y = column.to(tl.float32) + along, row.to(tl.float32) + down
    off_x = along + _bilinear(vectors + 2 * pixels, x, y, height, width, inside)
    off_y = down + _bilinear(vectors + 3 * pixels, x, y, height, width, inside)
    missed = tl.sqrt(off_x * off_x + off_y * off_y) / (stray + share * tl.sqrt(along * along + down * down))
    there = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    tl.store(confidence + place, tl.where(there, 1 / (1 + missed * missed), 0.0), mask=inside)
