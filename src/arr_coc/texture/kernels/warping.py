"""Maps carried along the flow, all planes in one launch, each times how sure the flow is, if that is wanted.

As `video/flow.py` does it: linear between pixels or the nearest, and beyond the border the border is repeated.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels import tables

BLOCK = 256


def warp_planes(
    planes: torch.Tensor, vectors: torch.Tensor, confidence: torch.Tensor | None = None, nearest: bool = False
) -> torch.Tensor:
    """Planes `[C, H, W]` read where each pixel was: `vectors` `[2, H, W]`; times `confidence` `[H, W]` if given."""
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
        SURE=confidence is not None, NEAREST=nearest, AT_ONCE=at_once, BLOCK=BLOCK, WIDE=tables.wide(planes), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit
def _to_even(value):
    """The nearest whole number; of two as near, the even one."""
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
