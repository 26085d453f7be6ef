"""All cheap channels in one pass: the image is read once, and colour, position, edges, detail, blur and motion are written.

Notable:
- a program sees a square of 32 x 32 pixels and 16 around it, which is as far as the widest blur reaches;
- both blurs are products with band matrices, rows and columns in turn, so that nothing but the image is read;
- a program writes only the channels that were asked for: the others cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.kernels import tables
from arr_coc.kernels.dispatch import precision
from arr_coc.texture import filters
from arr_coc.texture.channels.distance import IS_EDGE
from arr_coc.texture.channels.edges import COARSE, SURROUNDINGS

TILE = 32  # px of a square's side
HALO = 16  # px around it: the reach of the blur by COARSE

NAMES = (
    "red", "green", "blue", "edges", "edges_inverted", "highpass", "lowpass", "motion", "x", "y", "eccentricity",
    "sobel_x", "sobel_y", "edge_magnitude", "luma",
)  # fmt: skip


def write_cheap(
    pixels: torch.Tensor,
    out: torch.Tensor,
    slots: Mapping[str, int],
    before: torch.Tensor | None = None,
    edge: torch.Tensor | None = None,
) -> None:
    """Write channels of images `[B, 3, H, W]` into planes of `out` `[B, C, H, W]`: `slots` says which goes where.

    before: the frames before, like `pixels`, for motion. edge: uint8 `[B, H, W]`, 1 where there is an edge, written too.
    """
    batch, _, height, width = pixels.shape
    bands = _bands(pixels.device)
    old = pixels if before is None else before
    mask = out if edge is None else edge
    wanted: dict[str, Any] = {f"SLOT_{name.upper()}": slots.get(name, -1) for name in NAMES}
    if before is None:
        wanted["SLOT_MOTION"] = -1
    farthest = ((height - 1) ** 2 + (width - 1) ** 2) ** 0.5 / 2
    grid = (triton.cdiv(width, TILE), triton.cdiv(height, TILE), batch)
    _cheap[grid](
        pixels, old, out, mask, bands, height, width,
        pixels.stride(0), pixels.stride(1), pixels.stride(2), pixels.stride(3),
        old.stride(0), old.stride(1), old.stride(2), old.stride(3),
        out.stride(0), out.stride(1), out.stride(2), out.stride(3),
        mask.stride(0), width / farthest if farthest else 0.0, height / farthest if farthest else 0.0,
        *filters.LUMA_WEIGHTS, IS_EDGE,
        HAS_EDGE=edge is not None, WIDE=tables.wide(pixels, old, out), PRECISION=precision(pixels.device), **wanted, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _bands(device: torch.device) -> torch.Tensor:
    """`[2, TILE, TILE + 2 * HALO]`: the blurs by SURROUNDINGS and COARSE as band matrices."""
    bands = torch.zeros(2, TILE, TILE + 2 * HALO)
    for number, sigma in enumerate((SURROUNDINGS, COARSE)):
        taps = torch.from_numpy(filters.gaussian_taps(sigma))
        radius = len(taps) // 2
        for row in range(TILE):
            bands[number, row, row + HALO - radius : row + HALO + radius + 1] = taps
    return bands.to(device)


@triton.jit
def _luma(image, rows, columns, inside, stride_c, stride_y, stride_x, RED, GREEN, BLUE):
    at = image + rows * stride_y + columns * stride_x
    red = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    green = tl.load(at + stride_c, mask=inside, other=0.0).to(tl.float32)
    blue = tl.load(at + 2 * stride_c, mask=inside, other=0.0).to(tl.float32)
    return red * RED + green * GREEN + blue * BLUE


@triton.jit
def _cheap(
    pixels, before, out, edge, bands, height, width,
    in_b, in_c, in_y, in_x, old_b, old_c, old_y, old_x, out_b, out_c, out_y, out_x, edge_b, per_x, per_y,
    RED: tl.constexpr, GREEN: tl.constexpr, BLUE: tl.constexpr, LEAST: tl.constexpr,
    HAS_EDGE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    SLOT_RED: tl.constexpr, SLOT_GREEN: tl.constexpr, SLOT_BLUE: tl.constexpr,
    SLOT_EDGES: tl.constexpr, SLOT_EDGES_INVERTED: tl.constexpr, SLOT_HIGHPASS: tl.constexpr,
    SLOT_LOWPASS: tl.constexpr, SLOT_MOTION: tl.constexpr, SLOT_X: tl.constexpr, SLOT_Y: tl.constexpr,
    SLOT_ECCENTRICITY: tl.constexpr, SLOT_SOBEL_X: tl.constexpr, SLOT_SOBEL_Y: tl.constexpr,
    SLOT_EDGE_MAGNITUDE: tl.constexpr, SLOT_LUMA: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = 32
    SEEN: tl.constexpr = 64
    HALO: tl.constexpr = 16
    image = pixels + tl.program_id(2).to(tl.int64) * in_b
    target = out + tl.program_id(2).to(tl.int64) * out_b
    plane = tl.cast(out_c, tl.int64)
    top = tl.program_id(1) * TILE
    left = tl.program_id(0) * TILE
    rows = top + tl.arange(0, TILE)
    columns = left + tl.arange(0, TILE)
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    y = tl.minimum(rows, height - 1)
    x = tl.minimum(columns, width - 1)
    up = tl.maximum(tl.minimum(rows - 1, height - 1), 0)
    down = tl.minimum(rows + 1, height - 1)
    before_x = tl.maximum(tl.minimum(columns - 1, width - 1), 0)
    after_x = tl.minimum(columns + 1, width - 1)
    if WIDE:
        y, x, up, down = y.to(tl.int64), x.to(tl.int64), up.to(tl.int64), down.to(tl.int64)
        before_x, after_x = before_x.to(tl.int64), after_x.to(tl.int64)
        place = target + rows.to(tl.int64)[:, None] * out_y + columns.to(tl.int64)[None, :] * out_x
    else:
        place = target + rows[:, None] * out_y + columns[None, :] * out_x
    kind = out.dtype.element_ty

    at = image + y[:, None] * in_y + x[None, :] * in_x
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
        was = before + tl.program_id(2).to(tl.int64) * old_b + y[:, None] * old_y + x[None, :] * old_x
        by_red = red - tl.load(was, mask=inside, other=0.0).to(tl.float32)
        by_green = green - tl.load(was + old_c, mask=inside, other=0.0).to(tl.float32)
        by_blue = blue - tl.load(was + 2 * old_c, mask=inside, other=0.0).to(tl.float32)
        moved = tl.sqrt(by_red * by_red + by_green * by_green + by_blue * by_blue)
        tl.store(place + SLOT_MOTION * plane, moved.to(kind), mask=inside)
    if (SLOT_X >= 0) or (SLOT_Y >= 0) or (SLOT_ECCENTRICITY >= 0):
        across = ((columns.to(tl.float32) + 0.5) / width)[None, :] + tl.zeros([TILE, TILE], tl.float32)
        downward = ((rows.to(tl.float32) + 0.5) / height)[:, None] + tl.zeros([TILE, TILE], tl.float32)
        if SLOT_X >= 0:
            tl.store(place + SLOT_X * plane, across.to(kind), mask=inside)
        if SLOT_Y >= 0:
            tl.store(place + SLOT_Y * plane, downward.to(kind), mask=inside)
        if SLOT_ECCENTRICITY >= 0:
            off_x, off_y = (across - 0.5) * per_x, (downward - 0.5) * per_y
            far = tl.minimum(tl.sqrt(off_x * off_x + off_y * off_y), 1.0)
            tl.store(place + SLOT_ECCENTRICITY * plane, far.to(kind), mask=inside)

    luma = red * RED + green * GREEN + blue * BLUE
    if SLOT_LUMA >= 0:
        tl.store(place + SLOT_LUMA * plane, luma.to(kind), mask=inside)
    north = _luma(image, up[:, None], x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    south = _luma(image, down[:, None], x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    west = _luma(image, y[:, None], before_x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    east = _luma(image, y[:, None], after_x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    if SLOT_HIGHPASS >= 0:
        detail = tl.abs((north + south + west + east) / 4 - luma)
        tl.store(place + SLOT_HIGHPASS * plane, detail.to(kind), mask=inside)
    north_west = _luma(image, up[:, None], before_x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    north_east = _luma(image, up[:, None], after_x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    south_west = _luma(image, down[:, None], before_x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    south_east = _luma(image, down[:, None], after_x[None, :], inside, in_c, in_y, in_x, RED, GREEN, BLUE)
    slope_x = (0.25 * north_east + 0.5 * east + 0.25 * south_east) - (
        0.25 * north_west + 0.5 * west + 0.25 * south_west
    )
    slope_y = (0.25 * south_west + 0.5 * south + 0.25 * south_east) - (
        0.25 * north_west + 0.5 * north + 0.25 * north_east
    )
    steep = tl.sqrt(slope_x * slope_x + slope_y * slope_y)
    if SLOT_SOBEL_X >= 0:
        tl.store(place + SLOT_SOBEL_X * plane, slope_x.to(kind), mask=inside)
    if SLOT_SOBEL_Y >= 0:
        tl.store(place + SLOT_SOBEL_Y * plane, slope_y.to(kind), mask=inside)
    if SLOT_EDGE_MAGNITUDE >= 0:
        tl.store(place + SLOT_EDGE_MAGNITUDE * plane, steep.to(kind), mask=inside)
    if HAS_EDGE:
        if WIDE:
            where = (
                edge + tl.program_id(2).to(tl.int64) * edge_b + rows.to(tl.int64)[:, None] * width + columns[None, :]
            )
        else:
            where = edge + tl.program_id(2).to(tl.int64) * edge_b + rows[:, None] * width + columns[None, :]
        tl.store(where, (steep > LEAST).to(tl.uint8), mask=inside)

    if (SLOT_EDGES >= 0) or (SLOT_EDGES_INVERTED >= 0) or (SLOT_LOWPASS >= 0):
        seen_y = tl.maximum(tl.minimum(top - HALO + tl.arange(0, SEEN), height - 1), 0)
        seen_x = tl.maximum(tl.minimum(left - HALO + tl.arange(0, SEEN), width - 1), 0)
        if WIDE:
            seen_y, seen_x = seen_y.to(tl.int64), seen_x.to(tl.int64)
        all_in = (seen_y[:, None] >= 0) & (seen_x[None, :] >= 0)
        around = _luma(image, seen_y[:, None], seen_x[None, :], all_in, in_c, in_y, in_x, RED, GREEN, BLUE)
        narrow = tl.arange(0, TILE)
        broad = tl.arange(0, SEEN)
        if (SLOT_EDGES >= 0) or (SLOT_EDGES_INVERTED >= 0):
            band = tl.load(bands + narrow[:, None] * SEEN + broad[None, :])
            band_t = tl.load(bands + narrow[None, :] * SEEN + broad[:, None])
            ground = tl.dot(band, tl.dot(around, band_t, input_precision=PRECISION), input_precision=PRECISION)
            dark = luma < ground
            if SLOT_EDGES >= 0:
                tl.store(place + SLOT_EDGES * plane, tl.where(dark, steep, 0.0).to(kind), mask=inside)
            if SLOT_EDGES_INVERTED >= 0:
                tl.store(place + SLOT_EDGES_INVERTED * plane, tl.where(dark, 0.0, steep).to(kind), mask=inside)
        if SLOT_LOWPASS >= 0:
            coarse = tl.load(bands + TILE * SEEN + narrow[:, None] * SEEN + broad[None, :])
            coarse_t = tl.load(bands + TILE * SEEN + narrow[None, :] * SEEN + broad[:, None])
            blurred = tl.dot(coarse, tl.dot(around, coarse_t, input_precision=PRECISION), input_precision=PRECISION)
            tl.store(place + SLOT_LOWPASS * plane, blurred.to(kind), mask=inside)
