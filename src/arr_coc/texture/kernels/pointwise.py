"""Kernels for colour, position, motion, edges, detail and blur, in three passes that read the image once.

    image -> colour, position, motion, luma -> luma blurred along rows, by both sigmas
                                            -> blurred down columns, gradients: edges, detail, blur

- the passes exchange luma and its two row blurs in float32; for one picture these stay in the GPU's cache;
- rows of luma are padded with their border values, so that the row blur needs no bounds checks;
- along rows a lane computes four pixels from vector loads of four values;
- down columns a lane holds several rows: each line it loads serves all of them;
- a pass writes only the requested channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture import filters
from arr_coc.texture.channels.edges import COARSE, IS_EDGE, SURROUNDINGS
from arr_coc.texture.kernels.pooling import needs_int64

NEAR, FAR = (len(filters.gaussian_taps(sigma)) // 2 for sigma in (SURROUNDINGS, COARSE))  # px that the blurs reach
NEAR_TAPS, FAR_TAPS = (
    tl.constexpr(tuple(float(tap) for tap in filters.gaussian_taps(sigma))) for sigma in (SURROUNDINGS, COARSE)
)
ROW = 1024  # columns of a program of the first pass, at most
LINE = 512  # of the second, four per lane
ROWS, COLUMNS = 4, 128  # px of a program of the last, a column per lane

BY_PIXEL = ("red", "green", "blue", "motion", "x", "y", "eccentricity")
BY_NEIGHBOURHOOD = ("edges", "edges_inverted", "highpass", "lowpass", "sobel_x", "sobel_y", "edge_magnitude")
BLURRED = ("edges", "edges_inverted", "lowpass")
POINTWISE = (*BY_PIXEL, *BY_NEIGHBOURHOOD)


@dataclass(frozen=True, eq=False)
class PassBuffers:
    """What the passes exchange, float32: luma `[B, H, FAR + w + FAR]`, and its two row blurs `[B, H, w]`.

    w: the image's width, rounded up so that rows are aligned for vector loads.
    """

    luma: torch.Tensor
    near: torch.Tensor
    far: torch.Tensor


def pass_buffers(batch: int, size: tuple[int, int], device: torch.device) -> PassBuffers:
    """Buffers for images of one size."""
    height, width = size
    broad = triton.cdiv(width, 16) * 16
    luma = torch.empty(batch, height, broad + 2 * FAR, dtype=torch.float32, device=device)
    near, far = torch.empty(2, batch, height, broad, dtype=torch.float32, device=device)
    return PassBuffers(luma, near, far)


def write_pointwise(
    pixels: torch.Tensor,
    out: torch.Tensor,
    slots: Mapping[str, int],
    before: torch.Tensor | None = None,
    edge: torch.Tensor | None = None,
    buffers: PassBuffers | None = None,
) -> None:
    """Write channels of images `[B, 3, H, W]` into planes of `out` `[B, C, H, W]`; slots: channel name to plane number.

    before: the previous frames, like `pixels`, for motion. edge: uint8 `[B, H, W]`, written with 1 on edges.
    buffers: `pass_buffers`; allocated if not given.
    """
    batch, _, height, width = pixels.shape
    numbers: dict[str, Any] = {f"SLOT_{name.upper()}": slots.get(name, -1) for name in POINTWISE}
    old = pixels if before is None else before
    if before is None:
        numbers["SLOT_MOTION"] = -1
    around = edge is not None or any(name in slots for name in BY_NEIGHBOURHOOD)
    if buffers is None and around:
        buffers = pass_buffers(batch, (height, width), pixels.device)
    luma = pixels if buffers is None else buffers.luma
    broad = 0 if buffers is None else buffers.near.shape[2]
    by_pixel, by_neighbourhood = (
        {key: numbers[key] for key in (f"SLOT_{name.upper()}" for name in names)}
        for names in (BY_PIXEL, BY_NEIGHBOURHOOD)
    )
    wide = needs_int64(pixels, old, out, luma)
    farthest = ((height - 1) ** 2 + (width - 1) ** 2) ** 0.5 / 2
    block = min(ROW, triton.next_power_of_2(width))
    _points[(triton.cdiv(width, block), height, batch)](
        pixels, old, out, luma, height, width, broad, *pixels.stride(), *old.stride(), *out.stride(),
        width / farthest if farthest else 0.0, height / farthest if farthest else 0.0,
        *filters.LUMA_WEIGHTS, AROUND=around, FAR=FAR, WIDE=wide, BLOCK=block, **by_pixel, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    if not around:
        return
    assert buffers is not None
    if any(name in slots for name in BLURRED):
        line = min(LINE, triton.next_power_of_2(broad))
        _sideways[(triton.cdiv(broad, line), height, batch)](
            buffers.luma, buffers.near, buffers.far, height, broad, NEAR=NEAR, FAR=FAR, BLOCK=line, num_warps=triton.cdiv(line, 128), enable_fp_fusion=True
        )  # fmt: skip
    mask = out if edge is None else edge
    _downward[(triton.cdiv(width, COLUMNS), triton.cdiv(height, ROWS), batch)](
        buffers.luma, buffers.near, buffers.far, out, mask, height, width, broad, *out.stride(), mask.stride(0),
        IS_EDGE, HAS_EDGE=edge is not None, WIDE=wide, NEAR=NEAR, FAR=FAR, ROWS=ROWS, COLUMNS=COLUMNS, **by_neighbourhood,
        num_warps=COLUMNS // 32, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _points(
    pixels, before, out, lumas, height, width, broad,
    in_b, in_c, in_y, in_x, old_b, old_c, old_y, old_x, out_b, out_c, out_y, out_x, per_x, per_y,
    RED: tl.constexpr, GREEN: tl.constexpr, BLUE: tl.constexpr, AROUND: tl.constexpr, FAR: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    SLOT_RED: tl.constexpr, SLOT_GREEN: tl.constexpr, SLOT_BLUE: tl.constexpr, SLOT_MOTION: tl.constexpr,
    SLOT_X: tl.constexpr, SLOT_Y: tl.constexpr, SLOT_ECCENTRICITY: tl.constexpr,
):  # fmt: skip
    """One row of the channels that depend on a single pixel, and its padded luma for the next passes."""
    image = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    y, x = row, columns
    if WIDE:
        y, x = row.to(tl.int64), columns.to(tl.int64)
    place = out + image * out_b + y * out_y + x * out_x
    plane = tl.cast(out_c, tl.int64)
    kind = out.dtype.element_ty
    at = pixels + image * in_b + y * in_y + x * in_x
    red = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    green = tl.load(at + in_c, mask=inside, other=0.0).to(tl.float32)
    blue = tl.load(at + 2 * in_c, mask=inside, other=0.0).to(tl.float32)
    if SLOT_RED >= 0:
        tl.store(place + SLOT_RED * plane, red.to(kind), mask=inside)
    if SLOT_GREEN >= 0:
        tl.store(place + SLOT_GREEN * plane, green.to(kind), mask=inside)
    if SLOT_BLUE >= 0:
        tl.store(place + SLOT_BLUE * plane, blue.to(kind), mask=inside)
    if SLOT_MOTION >= 0:
        was = before + image * old_b + y * old_y + x * old_x
        by_red = red - tl.load(was, mask=inside, other=0.0).to(tl.float32)
        by_green = green - tl.load(was + old_c, mask=inside, other=0.0).to(tl.float32)
        by_blue = blue - tl.load(was + 2 * old_c, mask=inside, other=0.0).to(tl.float32)
        moved = tl.sqrt(by_red * by_red + by_green * by_green + by_blue * by_blue)
        tl.store(place + SLOT_MOTION * plane, moved.to(kind), mask=inside)
    if (SLOT_X >= 0) or (SLOT_Y >= 0) or (SLOT_ECCENTRICITY >= 0):
        across = (columns.to(tl.float32) + 0.5) / width
        downward = (row.to(tl.float32) + 0.5) / height + tl.zeros([BLOCK], tl.float32)
        if SLOT_X >= 0:
            tl.store(place + SLOT_X * plane, across.to(kind), mask=inside)
        if SLOT_Y >= 0:
            tl.store(place + SLOT_Y * plane, downward.to(kind), mask=inside)
        if SLOT_ECCENTRICITY >= 0:
            off_x, off_y = (across - 0.5) * per_x, (downward - 0.5) * per_y
            far = tl.minimum(tl.sqrt(off_x * off_x + off_y * off_y), 1.0)
            tl.store(place + SLOT_ECCENTRICITY * plane, far.to(kind), mask=inside)
    luma = red * RED + green * GREEN + blue * BLUE
    if AROUND:
        line = lumas + (image * height + row) * (broad + 2 * FAR)
        tl.store(line + FAR + columns, luma, mask=inside)
        beyond = tl.zeros([FAR], tl.float32)
        start = pixels + image * in_b + y * in_y
        if tl.program_id(0) == 0:
            first = _luma(start, in_c, RED, GREEN, BLUE)
            tl.store(line + tl.arange(0, FAR), beyond + first)
        if tl.program_id(0) == tl.num_programs(0) - 1:
            last = _luma(start + tl.cast(width - 1, tl.int64) * in_x, in_c, RED, GREEN, BLUE)
            tl.store(line + FAR + width + tl.arange(0, FAR), beyond + last)


@triton.jit
def _luma(at, in_c, RED: tl.constexpr, GREEN: tl.constexpr, BLUE: tl.constexpr):
    red, green, blue = tl.load(at), tl.load(at + in_c), tl.load(at + 2 * in_c)
    return red.to(tl.float32) * RED + green.to(tl.float32) * GREEN + blue.to(tl.float32) * BLUE


@triton.jit
def _sideways(lumas, nears, fars, height, broad, NEAR: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr):
    """Both row blurs of luma: four pixels per lane, from all values within FAR of them."""
    row = tl.program_id(2).to(tl.int64) * height + tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + (4 * tl.arange(0, BLOCK // 4))[:, None] + tl.arange(0, 4)[None, :]
    inside = columns < broad
    at = lumas + row * (broad + 2 * FAR) + columns
    near_0 = tl.zeros([BLOCK // 4], tl.float32)
    near_1, near_2, near_3 = near_0, near_0, near_0
    far_0, far_1, far_2, far_3 = near_0, near_0, near_0, near_0
    for start in tl.static_range(-FAR, FAR + 1, 4):  # offset of the loaded four from the computed four
        four = tl.load(at + (start + FAR), mask=inside, other=0.0)
        far_0 = _weighed(far_0, four, FAR_TAPS, start, FAR, BLOCK)
        far_1 = _weighed(far_1, four, FAR_TAPS, start - 1, FAR, BLOCK)
        far_2 = _weighed(far_2, four, FAR_TAPS, start - 2, FAR, BLOCK)
        far_3 = _weighed(far_3, four, FAR_TAPS, start - 3, FAR, BLOCK)
        near_0 = _weighed(near_0, four, NEAR_TAPS, start, NEAR, BLOCK)
        near_1 = _weighed(near_1, four, NEAR_TAPS, start - 1, NEAR, BLOCK)
        near_2 = _weighed(near_2, four, NEAR_TAPS, start - 2, NEAR, BLOCK)
        near_3 = _weighed(near_3, four, NEAR_TAPS, start - 3, NEAR, BLOCK)
    tl.store(nears + row * broad + columns, _joined(near_0, near_1, near_2, near_3, BLOCK), mask=inside)
    tl.store(fars + row * broad + columns, _joined(far_0, far_1, far_2, far_3, BLOCK), mask=inside)


@triton.jit
def _weighed(total, four, TAPS: tl.constexpr, START: tl.constexpr, REACH: tl.constexpr, BLOCK: tl.constexpr):
    """Add four values at offsets START to START + 3 to a blur's sum, as far as the blur reaches."""
    if (START + 3 >= -REACH) & (START <= REACH):
        even, odd = tl.split(tl.reshape(four, [BLOCK // 4, 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        if START >= -REACH:
            total += a * TAPS[START + REACH]
        if (START + 1 >= -REACH) & (START + 1 <= REACH):
            total += b * TAPS[START + 1 + REACH]
        if (START + 2 >= -REACH) & (START + 2 <= REACH):
            total += c * TAPS[START + 2 + REACH]
        if START + 3 <= REACH:
            total += d * TAPS[START + 3 + REACH]
    return total


@triton.jit
def _joined(a, b, c, d, BLOCK: tl.constexpr):
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK // 4, 4])


@triton.jit
def _downward(
    lumas, nears, fars, out, edge, height, width, broad, out_b, out_c, out_y, out_x, edge_b, least,
    HAS_EDGE: tl.constexpr, WIDE: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SLOT_EDGES: tl.constexpr, SLOT_EDGES_INVERTED: tl.constexpr, SLOT_HIGHPASS: tl.constexpr, SLOT_LOWPASS: tl.constexpr,
    SLOT_SOBEL_X: tl.constexpr, SLOT_SOBEL_Y: tl.constexpr, SLOT_EDGE_MAGNITUDE: tl.constexpr,
):  # fmt: skip
    """Gradients and detail from luma, and both blurs completed down the columns."""
    image = tl.program_id(2).to(tl.int64)
    top, left = tl.program_id(1) * ROWS, tl.program_id(0) * COLUMNS
    rows = (top + tl.arange(0, ROWS))[:, None]
    columns = (left + tl.arange(0, COLUMNS))[None, :]
    inside = (rows < height) & (columns < width)
    if WIDE:
        y, x = rows.to(tl.int64), columns.to(tl.int64)
    else:
        y, x = rows, columns
    place = out + image * out_b + y * out_y + x * out_x
    each = tl.cast(out_c, tl.int64)
    kind = out.dtype.element_ty
    full = broad + 2 * FAR
    luma = lumas + image * height * full + FAR + x
    above, below = tl.maximum(y - 1, 0) * full, tl.minimum(y + 1, height - 1) * full
    here = tl.load(luma + y * full, mask=inside, other=0.0)
    n = tl.load(luma + above, mask=inside, other=0.0)
    s = tl.load(luma + below, mask=inside, other=0.0)
    w = tl.load(luma + y * full - 1, mask=inside, other=0.0)
    e = tl.load(luma + y * full + 1, mask=inside, other=0.0)
    if SLOT_HIGHPASS >= 0:
        tl.store(place + SLOT_HIGHPASS * each, tl.abs((n + s + w + e) / 4 - here).to(kind), mask=inside)
    nw = tl.load(luma + above - 1, mask=inside, other=0.0)
    ne = tl.load(luma + above + 1, mask=inside, other=0.0)
    sw = tl.load(luma + below - 1, mask=inside, other=0.0)
    se = tl.load(luma + below + 1, mask=inside, other=0.0)
    slope_x = (0.25 * ne + 0.5 * e + 0.25 * se) - (0.25 * nw + 0.5 * w + 0.25 * sw)
    slope_y = (0.25 * sw + 0.5 * s + 0.25 * se) - (0.25 * nw + 0.5 * n + 0.25 * ne)
    steep = tl.sqrt(slope_x * slope_x + slope_y * slope_y)
    if SLOT_SOBEL_X >= 0:
        tl.store(place + SLOT_SOBEL_X * each, slope_x.to(kind), mask=inside)
    if SLOT_SOBEL_Y >= 0:
        tl.store(place + SLOT_SOBEL_Y * each, slope_y.to(kind), mask=inside)
    if SLOT_EDGE_MAGNITUDE >= 0:
        tl.store(place + SLOT_EDGE_MAGNITUDE * each, steep.to(kind), mask=inside)
    if HAS_EDGE:
        tl.store(edge + image * edge_b + y * width + x, (steep > least).to(tl.uint8), mask=inside)
    start = image * height * broad
    if (SLOT_EDGES >= 0) or (SLOT_EDGES_INVERTED >= 0):
        dark = here < _blurred(nears + start, NEAR_TAPS, top, left, height, width, broad, WIDE, NEAR, ROWS, COLUMNS)
        if SLOT_EDGES >= 0:
            tl.store(place + SLOT_EDGES * each, tl.where(dark, steep, 0.0).to(kind), mask=inside)
        if SLOT_EDGES_INVERTED >= 0:
            tl.store(place + SLOT_EDGES_INVERTED * each, tl.where(dark, 0.0, steep).to(kind), mask=inside)
    if SLOT_LOWPASS >= 0:
        coarse = _blurred(fars + start, FAR_TAPS, top, left, height, width, broad, WIDE, FAR, ROWS, COLUMNS)
        tl.store(place + SLOT_LOWPASS * each, coarse.to(kind), mask=inside)


@triton.jit
def _blurred(
    plane, TAPS: tl.constexpr, top, left, height, width, broad,
    WIDE: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A blur down the columns; border rows are repeated."""
    columns = left + tl.arange(0, COLUMNS)
    rows = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for number in tl.static_range(ROWS + 2 * REACH):
        row = tl.minimum(tl.maximum(top + number - REACH, 0), height - 1)
        if WIDE:
            row = row.to(tl.int64)
        line = tl.load(plane + row * broad + columns, mask=columns < width, other=0.0)
        weight = tl.zeros([ROWS], tl.float32)
        for one in tl.static_range(ROWS):  # unrolled, so that the weights become constants in the instructions
            if (number - one >= 0) & (number - one <= 2 * REACH):
                weight = tl.where(rows == one, TAPS[number - one], weight)
        total += weight[:, None] * line[None, :]
    return total
