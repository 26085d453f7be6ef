"""Kernels that read planes at points: trilinear samples of all channels in one launch, and warping along an optical flow.

Sampling follows `texture/sampler.py`: bilinear on two levels, linear between them; ids at the nearest pixel and level.
A point that is not finite gives NaN, so that the host does not wait for a check. Warping follows `frames/flow.py`: linear
between pixels or nearest, and the border is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from arr_coc.devices import to_device
from arr_coc.texture.kernels.pooling import needs_int64, plane_table, rule_codes, triton_dtype

BLOCK = 256  # px of a program that warps


class MipTable:
    """Addresses, sizes and rules of the levels of some channels: made once for many samples."""

    def __init__(self, levels: Sequence[Sequence[torch.Tensor]], rules: Sequence[str]) -> None:
        """levels: for each level, C planes `[H_l, W_l]`; rules: the channels' pooling rules."""
        first = levels[0][0]
        self.levels = [list(level) for level in levels]  # keeps the memory that the table points to
        self.table = torch.stack([plane_table(level) for level in self.levels])  # [L, C, 3]
        sizes = [[int(level[0].shape[0]), int(level[0].shape[1])] for level in self.levels]
        self.sizes = to_device(torch.tensor(sizes, dtype=torch.int32), first.device)
        self.rules = rule_codes(rules, first.device)
        self.dtype = first.dtype


def sample_mips(mips: MipTable, xy: torch.Tensor, level: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """All channels at points `[N, 2]` (x, y in [0, 1]) and levels `[N]`: `[N, C]` of the planes' dtype."""
    levels, channels, _ = mips.table.shape
    made = torch.empty(len(xy), channels, dtype=mips.dtype, device=xy.device) if out is None else out
    if len(xy) == 0:
        return made
    across = min(64, triton.next_power_of_2(channels))
    points = 8 if len(xy) < 1 << 12 else 16
    grid = (triton.cdiv(len(xy), points), triton.cdiv(channels, across))
    _sample[grid](
        mips.table, mips.sizes, mips.rules, xy, level, made, len(xy), channels, levels - 1,
        xy.stride(0), xy.stride(1), level.stride(0),
        POINTS=points, ACROSS=across, KIND=triton_dtype(mips.dtype), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return made


def warp_planes(
    planes: torch.Tensor, vectors: torch.Tensor, confidence: torch.Tensor | None = None, nearest: bool = False
) -> torch.Tensor:
    """Planes `[C, H, W]` read at each pixel plus its vector `[2, H, W]`; times `confidence` `[H, W]` if given."""
    planes, vectors = planes.contiguous(), vectors.contiguous()
    count, height, width = planes.shape
    out = torch.empty_like(planes)
    if out.numel() == 0:
        return out
    sure = vectors if confidence is None else confidence.contiguous()
    at_once = min(8, triton.next_power_of_2(count))
    grid = (triton.cdiv(height * width, BLOCK), triton.cdiv(count, at_once))
    _warp[grid](
        planes, vectors, sure, out, count, height, width,
        SURE=confidence is not None, NEAREST=nearest, AT_ONCE=at_once, BLOCK=BLOCK, WIDE=needs_int64(planes), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit
def _read(table, level, channel, channels, y, x, mask, KIND: tl.constexpr):
    """Planes of a level at pixels: all `[P, C]`."""
    row = table + 3 * (level * channels + channel)
    address = tl.load(row).to(tl.pointer_type(KIND))
    stride_y, stride_x = tl.load(row + 1), tl.load(row + 2)
    return tl.load(address + y * stride_y + x * stride_x, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _bilinear(table, sizes, level, channel, channels, px, py, mask, KIND: tl.constexpr):
    height, width = tl.load(sizes + 2 * level), tl.load(sizes + 2 * level + 1)
    x = tl.minimum(tl.maximum(px * width.to(tl.float32) - 0.5, 0.0), (width - 1).to(tl.float32))
    y = tl.minimum(tl.maximum(py * height.to(tl.float32) - 0.5, 0.0), (height - 1).to(tl.float32))
    left, above = tl.floor(x).to(tl.int32), tl.floor(y).to(tl.int32)
    right, below = tl.minimum(left + 1, width - 1), tl.minimum(above + 1, height - 1)
    fx, fy = x - left.to(tl.float32), y - above.to(tl.float32)
    total = _read(table, level, channel, channels, above, left, mask, KIND) * ((1 - fy) * (1 - fx))
    total += _read(table, level, channel, channels, above, right, mask, KIND) * ((1 - fy) * fx)
    total += _read(table, level, channel, channels, below, left, mask, KIND) * (fy * (1 - fx))
    total += _read(table, level, channel, channels, below, right, mask, KIND) * (fy * fx)
    return total


@triton.jit
def _sample(
    table, sizes, rules, xy, levels, out, count, channels, top, xy_n, xy_2, level_n,
    POINTS: tl.constexpr, ACROSS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    which = tl.program_id(1) * ACROSS + tl.arange(0, ACROSS)
    there = number < count
    mask = there[:, None] & (which < channels)[None, :]
    px = tl.load(xy + number.to(tl.int64) * xy_n, mask=there, other=0.0).to(tl.float32)
    py = tl.load(xy + number.to(tl.int64) * xy_n + xy_2, mask=there, other=0.0).to(tl.float32)
    at = tl.load(levels + number.to(tl.int64) * level_n, mask=there, other=0.0).to(tl.float32)
    finite = (tl.abs(px) < float("inf")) & (tl.abs(py) < float("inf")) & (tl.abs(at) < float("inf"))
    px, py, at = tl.where(finite, px, 0.0), tl.where(finite, py, 0.0), tl.where(finite, at, 0.0)
    at = tl.minimum(tl.maximum(at, 0.0), tl.cast(top, tl.float32))
    rule = tl.load(rules + which, mask=which < channels, other=0)
    smooth = mask & (rule != 2)[None, :]
    ids = mask & (rule == 2)[None, :]
    safe = tl.where(which < channels, which, 0)[None, :] + tl.zeros([POINTS, ACROSS], tl.int32)

    low = tl.floor(at).to(tl.int32)
    share = (at - low.to(tl.float32))[:, None]
    high = tl.minimum(low + 1, top)
    px, py = px[:, None], py[:, None]
    fine = _bilinear(table, sizes, low[:, None], safe, channels, px, py, smooth, KIND)
    coarse = _bilinear(table, sizes, high[:, None], safe, channels, px, py, smooth & (share > 0), KIND)
    value = fine * (1 - share) + coarse * share

    nearest = tl.minimum(tl.floor(at + 0.5).to(tl.int32), top)[:, None]
    height, width = tl.load(sizes + 2 * nearest), tl.load(sizes + 2 * nearest + 1)
    column = tl.minimum(tl.maximum(tl.floor(px * width.to(tl.float32)), 0.0), (width - 1).to(tl.float32)).to(tl.int32)
    row = tl.minimum(tl.maximum(tl.floor(py * height.to(tl.float32)), 0.0), (height - 1).to(tl.float32)).to(tl.int32)
    read = _read(table, nearest, safe, channels, row, column, ids, KIND)
    value = tl.where((rule == 2)[None, :], read, value)
    value = tl.where(finite[:, None], value, float("nan"))
    tl.store(out + number.to(tl.int64)[:, None] * channels + which[None, :], value.to(KIND), mask=mask)


@triton.jit
def _to_even(value):
    """Round to the nearest integer, ties to even."""
    up = tl.floor(value + 0.5)
    tie = (value + 0.5 == up) & ((up.to(tl.int32) & 1) == 1)
    return tl.where(tie, up - 1, up)


@triton.jit
def _warp(
    planes, vectors, sure, out, count, height, width,
    SURE: tl.constexpr, NEAREST: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    if WIDE:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    else:
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    plane = tl.cast(height, tl.int64) * width
    inside = place < plane
    row, column = place // width, place % width
    x = column.to(tl.float32) + tl.load(vectors + place, mask=inside, other=0.0).to(tl.float32)
    y = row.to(tl.float32) + tl.load(vectors + plane + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    share = 1.0
    if SURE:
        share = tl.load(sure + place, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    if NEAREST:
        at = _to_even(y).to(place.dtype) * width + _to_even(x).to(place.dtype)
    else:
        left, above = tl.floor(x), tl.floor(y)
        fx, fy = x - left, y - above
        west, north = left.to(place.dtype), above.to(place.dtype)
        east, south = tl.minimum(west + 1, width - 1), tl.minimum(north + 1, height - 1)
    for number in tl.static_range(AT_ONCE):
        channel = tl.program_id(1) * AT_ONCE + number
        mine = place < tl.where(channel < count, plane, 0)
        source = planes + channel.to(tl.int64) * plane
        if NEAREST:
            value = tl.load(source + at, mask=mine, other=0.0).to(tl.float32)
        else:
            value = tl.load(source + north * width + west, mask=mine, other=0.0).to(tl.float32) * ((1 - fy) * (1 - fx))
            value += tl.load(source + north * width + east, mask=mine, other=0.0).to(tl.float32) * ((1 - fy) * fx)
            value += tl.load(source + south * width + west, mask=mine, other=0.0).to(tl.float32) * (fy * (1 - fx))
            value += tl.load(source + south * width + east, mask=mine, other=0.0).to(tl.float32) * (fy * fx)
        tl.store(out + channel.to(tl.int64) * plane + place, (value * share).to(kind), mask=mine)
