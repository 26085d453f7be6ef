"""Planes onto a grid of equal cells, every channel by its own rule: the VLM's token grid, and pyramid levels of odd sizes.

The rules are those of `texture/pooling.py`. A pixel that lies partly inside a cell counts by its share, which is worked out
in whole numbers: pixel p of H and cell r of h overlap by min((r + 1) H, (p + 1) h) - max(r H, p h) parts out of H.
Small cells are a lane's each. Large ones are added up down their columns first, whole rows at a time, then along the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels import tables

FEW = 8  # px of a cell's longer side up to which a lane takes a whole cell
STRIP = 512  # columns that a program adds up, at the most


def pool_cells(planes: Sequence[torch.Tensor], size: tuple[int, int], rules: Sequence[str]) -> torch.Tensor:
    """Planes `[H, W]` onto a grid of `size` = (h, w) cells, each by its rule: `[C, h, w]` of their dtype."""
    first = planes[0]
    out = torch.empty(len(planes), *size, dtype=first.dtype, device=first.device)
    height, width = int(first.shape[0]), int(first.shape[1])
    wide, packed = any(tables.wide(p) for p in planes), tables.packed(planes)
    write_cells(tables.table(planes), tables.rules(rules, first.device), (height, width), out, wide=wide, packed=packed)
    return out


def write_cells(
    table: torch.Tensor,
    rules: torch.Tensor,
    size: tuple[int, int],
    out: torch.Tensor,
    *,
    wide: bool = False,
    packed: bool = False,
    between: torch.Tensor | None = None,
) -> None:
    """The same from a table of planes of `size` (H, W) into `out` `[C, h, w]`, contiguous; rules: int32 `[C]`.

    wide, packed: as `tables` says of the planes. between: float32 `[C, h, W]`, for large cells; made where there is none.
    """
    (height, width), (count, rows, columns) = size, out.shape
    reach_y, reach_x = _reach(height, rows), _reach(width, columns)
    meta: dict[str, Any] = {"KIND": tables.element(out.dtype), "enable_fp_fusion": True}
    if max(reach_y, reach_x) <= FEW:
        _small_cells[(triton.cdiv(rows * columns, 256), count)](
            table, rules, out, height, width, rows, columns, REACH_Y=reach_y, REACH_X=reach_x, BLOCK=256, WIDE=wide, **meta
        )  # fmt: skip
        return
    if between is None:
        between = torch.empty(count, rows, width, dtype=torch.float32, device=out.device)
    block = min(STRIP, triton.next_power_of_2(width))
    _columns[(triton.cdiv(width, block), rows, count)](
        table, rules, between, height, width, rows, REACH=reach_y, BLOCK=block, PACKED=packed, num_warps=4 if block >= 256 else 1,
        **meta,
    )  # fmt: skip
    _rows[(triton.cdiv(columns, 32), rows, count)](
        table, rules, between, out, height, width, rows, columns, REACH=reach_x, BLOCK=32, num_warps=1, **meta
    )


@lru_cache(maxsize=1024)
def _reach(pixels: int, cells: int) -> int:
    """The most pixels that a cell touches along one axis."""
    if pixels % cells == 0:
        return pixels // cells
    return max(-(-(cell + 1) * pixels // cells) - cell * pixels // cells for cell in range(cells))


@triton.jit
def _plane(table, channel, KIND: tl.constexpr, PACKED: tl.constexpr = False):
    """Where a plane lies: its address and strides. PACKED: rows start where a lane can load many values at once.

    The compiler must be told so here: what is said of a function's result is lost when that becomes part of its caller.
    """
    address, down = tl.load(table + 3 * channel).to(tl.pointer_type(KIND)), tl.load(table + 3 * channel + 1)
    if PACKED:
        return (
            tl.multiple_of(address, 16),
            tl.multiple_of(down, 16 // (KIND.primitive_bitwidth // 8)),
            tl.cast(1, tl.int64),
        )
    else:
        return address, down, tl.load(table + 3 * channel + 2)


@triton.jit
def _small_cells(
    table, rules, out, height, width, rows, columns,
    REACH_Y: tl.constexpr, REACH_X: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1).to(tl.int64)
    plane, stride_y, stride_x = _plane(table, channel, KIND)
    rule = tl.load(rules + channel)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < rows * columns
    row, column = cell // columns, cell % columns
    if rule == 2:
        y, x = (2 * row + 1) * height // (2 * rows), (2 * column + 1) * width // (2 * columns)
        value = tl.load(plane + y * stride_y + x * stride_x, mask=inside, other=0.0).to(tl.float32)
    else:
        first_y, first_x = row * height // rows, column * width // columns
        total = tl.zeros([BLOCK], tl.float32)
        largest = tl.full([BLOCK], -float("inf"), tl.float32)
        for down in range(REACH_Y):
            for across in tl.static_range(REACH_X):
                y, x = first_y + down, first_x + across
                part_y, part_x = _part(row, y, rows, height), _part(column, x, columns, width)
                touched = inside & (part_y > 0) & (part_x > 0)
                one = tl.load(plane + y * stride_y + x * stride_x, mask=touched, other=0.0).to(tl.float32)
                total += tl.where(touched, one * (part_y.to(tl.float32) * part_x.to(tl.float32)), 0.0)
                largest = tl.maximum(largest, tl.where(touched, one, -float("inf")))
        value = tl.where(rule == 1, largest, total / (tl.cast(height, tl.float32) * width))
    tl.store(out + channel * rows * columns + cell, value.to(KIND), mask=inside)


@triton.jit
def _part(cell, pixel, cells, pixels):
    """How much of a pixel lies in a cell, out of `pixels` parts."""
    return tl.minimum((cell + 1) * pixels, (pixel + 1) * cells) - tl.maximum(cell * pixels, pixel * cells)


@triton.jit
def _columns(
    table, rules, between, height, width, rows,
    REACH: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Every column of a row of cells: added up, or its largest value."""
    channel, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    rule = tl.load(rules + channel)
    if rule != 2:
        plane, stride_y, stride_x = _plane(table, channel, KIND, PACKED)
        columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        at = plane + columns * stride_x
        top = row * height // rows
        total = tl.zeros([BLOCK], tl.float32)
        largest = tl.full([BLOCK], -float("inf"), tl.float32)
        for down in range(REACH):
            part = _part(row, top + down, rows, height)
            one = tl.load(at + (top + down) * stride_y, mask=columns < tl.where(part > 0, width, 0), other=0.0)
            total += one.to(tl.float32) * (tl.maximum(part, 0).to(tl.float32) / height)
            largest = tl.maximum(largest, tl.where(part > 0, one.to(tl.float32), -float("inf")))
        tl.store(between + (channel * rows + row) * width + columns, tl.where(rule == 1, largest, total), mask=inside)


@triton.jit
def _rows(
    table, rules, between, out, height, width, rows, columns,
    REACH: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """A row of cells from its columns; ids from the pixel under each cell's centre."""
    channel, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    rule = tl.load(rules + channel)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < columns
    if rule == 2:
        plane, stride_y, stride_x = _plane(table, channel, KIND)
        y, x = (2 * row + 1) * height // (2 * rows), (2 * cell + 1) * width // (2 * columns)
        value = tl.load(plane + y * stride_y + x * stride_x, mask=inside, other=0.0).to(tl.float32)
    else:
        line = between + (channel * rows + row) * width
        left = cell * width // columns
        total = tl.zeros([BLOCK], tl.float32)
        largest = tl.full([BLOCK], -float("inf"), tl.float32)
        for across in range(REACH):
            part = _part(cell, left + across, columns, width)
            touched = inside & (part > 0)
            one = tl.load(line + left + across, mask=touched, other=0.0)
            total += tl.where(touched, one * (part.to(tl.float32) / width), 0.0)
            largest = tl.maximum(largest, tl.where(touched, one, -float("inf")))
        value = tl.where(rule == 1, largest, total)
    tl.store(out + (channel * rows + row) * columns + cell, value.to(KIND), mask=inside)
