"""Planes onto a grid of equal cells, every channel by its own rule: the VLM's token grid, and pyramid levels of odd sizes.

The rules are those of `texture/pooling.py`. A pixel that lies partly inside a cell counts by its share, which is worked out
in whole numbers: pixel p of H and cell r of h overlap by min((r + 1) H, (p + 1) h) - max(r H, p h) parts out of H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.kernels import tables

FEW = 8  # px of a cell's longer side up to which a lane takes a whole cell


def pool_cells(planes: Sequence[torch.Tensor], size: tuple[int, int], rules: Sequence[str]) -> torch.Tensor:
    """Planes `[H, W]` onto a grid of `size` = (h, w) cells, each by its rule: `[C, h, w]` of their dtype."""
    first = planes[0]
    out = torch.empty(len(planes), *size, dtype=first.dtype, device=first.device)
    height, width = int(first.shape[0]), int(first.shape[1])
    write_cells(
        tables.table(planes),
        tables.rules(rules, first.device),
        (height, width),
        out,
        any(tables.wide(p) for p in planes),
    )
    return out


def write_cells(
    table: torch.Tensor, rules: torch.Tensor, size: tuple[int, int], out: torch.Tensor, wide: bool = False
) -> None:
    """The same from a table of planes of `size` (H, W) into `out` `[C, h, w]`, contiguous; rules: int32 `[C]`."""
    (height, width), (count, rows, columns) = size, out.shape
    reach_y, reach_x = _reach(height, rows), _reach(width, columns)
    meta: dict[str, Any] = {"KIND": tables.element(out.dtype), "WIDE": wide}
    if max(reach_y, reach_x) <= FEW:
        block = 256
        grid = (triton.cdiv(rows * columns, block), count)
        _small_cells[grid](
            table,
            rules,
            out,
            height,
            width,
            rows,
            columns,
            REACH_Y=reach_y,
            REACH_X=reach_x,
            BLOCK=block,
            **meta,
            enable_fp_fusion=True,
        )
        return
    across = min(128, triton.next_power_of_2(reach_x))
    down = max(1, min(triton.next_power_of_2(reach_y), 2048 // across))
    _large_cells[(rows * columns, count)](
        table, rules, out, height, width, rows, columns, REACH_Y=reach_y, REACH_X=reach_x, DOWN=down, ACROSS=across,
        **meta, num_warps=4 if down * across >= 512 else 1, enable_fp_fusion=True,
    )  # fmt: skip


def _reach(pixels: int, cells: int) -> int:
    """The most pixels that a cell touches along one axis."""
    if pixels % cells == 0:
        return pixels // cells
    return max(-(-(cell + 1) * pixels // cells) - cell * pixels // cells for cell in range(cells))


@triton.jit
def _plane(table, channel, KIND: tl.constexpr):
    """Where a plane lies: its address and strides."""
    address = tl.load(table + 3 * channel).to(tl.pointer_type(KIND))
    return address, tl.load(table + 3 * channel + 1), tl.load(table + 3 * channel + 2)


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
                part_y = tl.minimum((row + 1) * height, (y + 1) * rows) - tl.maximum(row * height, y * rows)
                part_x = tl.minimum((column + 1) * width, (x + 1) * columns) - tl.maximum(column * width, x * columns)
                touched = inside & (part_y > 0) & (part_x > 0)
                one = tl.load(plane + y * stride_y + x * stride_x, mask=touched, other=0.0).to(tl.float32)
                total += tl.where(touched, one * (part_y.to(tl.float32) * part_x.to(tl.float32)), 0.0)
                largest = tl.maximum(largest, tl.where(touched, one, -float("inf")))
        value = tl.where(rule == 1, largest, total / (tl.cast(height, tl.float32) * width))
    tl.store(out + channel * rows * columns + cell, value.to(KIND), mask=inside)


@triton.jit
def _large_cells(
    table, rules, out, height, width, rows, columns,
    REACH_Y: tl.constexpr, REACH_X: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    KIND: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1).to(tl.int64)
    plane, stride_y, stride_x = _plane(table, channel, KIND)
    rule = tl.load(rules + channel)
    cell = tl.program_id(0)
    row, column = cell // columns, cell % columns
    place = out + channel * rows * columns + cell
    if rule == 2:
        y, x = (2 * row + 1) * height // (2 * rows), (2 * column + 1) * width // (2 * columns)
        tl.store(place, tl.load(plane + y * stride_y + x * stride_x))
    else:
        top, left = row * height // rows, column * width // columns
        total = 0.0
        largest = -float("inf")
        for start_y in range(0, REACH_Y, DOWN):
            y = top + start_y + tl.arange(0, DOWN)
            part_y = tl.minimum((row + 1) * height, (y + 1) * rows) - tl.maximum(row * height, y * rows)
            for start_x in range(0, REACH_X, ACROSS):
                x = left + start_x + tl.arange(0, ACROSS)
                part_x = tl.minimum((column + 1) * width, (x + 1) * columns) - tl.maximum(column * width, x * columns)
                touched = (part_y > 0)[:, None] & (part_x > 0)[None, :]
                at = plane + y[:, None] * stride_y + x[None, :] * stride_x
                one = tl.load(at, mask=touched, other=0.0).to(tl.float32)
                part = (part_y.to(tl.float32) / height)[:, None] * (part_x.to(tl.float32) / width)[None, :]
                total += tl.sum(tl.where(touched, one * part, 0.0))
                largest = tl.maximum(largest, tl.max(tl.where(touched, one, -float("inf"))))
        tl.store(place, tl.where(rule == 1, largest, total).to(KIND))
