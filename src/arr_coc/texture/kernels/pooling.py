"""Kernels that pool planes onto a grid of equal cells, each channel by its own rule: the token grid, and odd pyramid levels.

The rules are those of `texture/pooling.py`. A pixel that lies partly inside a cell is weighted by its share, computed in
integers: pixel p of H and cell r of h overlap by min((r + 1) H, (p + 1) h) - max(r H, p h) parts out of H.
One lane handles a whole small cell. Large cells are reduced down their columns first, then along the rows.

Planes may lie anywhere in memory: some are views of the image, some take no memory at all (strides 0). Kernels find them
by a table of addresses and strides (`plane_table`), which saves copying them into one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.devices import to_device
from arr_coc.errors import ArrCocError

RULE_CODES = {"mean": 0, "max": 1, "nearest": 2}
INT32_OFFSETS = 1 << 31  # elements
VECTOR_BYTES = 16  # the widest load of a lane
SMALL_CELL = 8  # px of a cell's longer side up to which one lane handles the whole cell
STRIP = 512  # columns of a program, at most


def plane_table(planes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Address, row stride and column stride of planes `[H, W]`: int64 `[C, 3]` on their device."""
    first = planes[0]
    for plane in planes:
        if plane.ndim != 2 or plane.shape != first.shape or plane.dtype != first.dtype or plane.device != first.device:
            raise ArrCocError(
                f"expected planes [H, W] of one size, dtype and device, got {list(first.shape)} {first.dtype} on "
                f"{first.device} and {list(plane.shape)} {plane.dtype} on {plane.device}"
            )
    rows = [[plane.data_ptr(), plane.stride(0), plane.stride(1)] for plane in planes]
    return to_device(torch.tensor(rows, dtype=torch.int64), first.device)


def rule_codes(names: Sequence[str], device: torch.device) -> torch.Tensor:
    """Pooling rules as `RULE_CODES`: int32 `[C]`."""
    return _rule_codes(tuple(names), device)


@lru_cache(maxsize=64)
def _rule_codes(names: tuple[str, ...], device: torch.device) -> torch.Tensor:
    """Copied once, with a synchronous copy, so that any stream may read it."""
    with torch.inference_mode(False):
        return torch.tensor([RULE_CODES[name] for name in names], dtype=torch.int32).to(device)


def needs_int64(*planes: torch.Tensor) -> bool:
    """Whether an offset inside one of these planes `[..., H, W]` can exceed 32 bits."""

    def last_offset(plane: torch.Tensor) -> int:
        height, width = plane.shape[-2:]
        return int((height - 1) * abs(plane.stride(-2)) + (width - 1) * abs(plane.stride(-1)))

    return any(last_offset(plane) >= INT32_OFFSETS for plane in planes)


def rows_aligned(planes: Sequence[torch.Tensor]) -> bool:
    """Whether every row of these planes `[H, W]` is contiguous and aligned for vector loads."""
    return all(
        plane.stride(1) == 1
        and plane.data_ptr() % VECTOR_BYTES == 0
        and plane.stride(0) * plane.itemsize % VECTOR_BYTES == 0
        for plane in planes
    )


def triton_dtype(dtype: torch.dtype) -> object:
    """Triton's name for a plane's dtype."""
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]


def pool_cells(planes: Sequence[torch.Tensor], size: tuple[int, int], rules: Sequence[str]) -> torch.Tensor:
    """Planes `[H, W]` onto a grid of `size` = (h, w) cells, each by its rule: `[C, h, w]` of their dtype."""
    first = planes[0]
    out = torch.empty(len(planes), *size, dtype=first.dtype, device=first.device)
    source = (int(first.shape[0]), int(first.shape[1]))
    codes = rule_codes(rules, first.device)
    write_cells(plane_table(planes), codes, source, out, wide=needs_int64(*planes), packed=rows_aligned(planes))
    return out


def write_cells(
    table: torch.Tensor,
    rules: torch.Tensor,
    size: tuple[int, int],
    out: torch.Tensor,
    *,
    wide: bool = False,
    packed: bool = False,
) -> None:
    """Pool the planes of a table, of `size` (H, W), into `out` `[C, h, w]`, contiguous; rules: int32 `[C]`.

    wide: `needs_int64` of the planes. packed: `rows_aligned` of the planes.
    """
    (height, width), (count, rows, columns) = size, out.shape
    reach_y, reach_x = touched_pixels(height, rows), touched_pixels(width, columns)
    meta: dict[str, Any] = {"KIND": triton_dtype(out.dtype), "enable_fp_fusion": True}
    if max(reach_y, reach_x) <= SMALL_CELL:
        _small_cells[(triton.cdiv(rows * columns, 256), count)](
            table, rules, out, height, width, rows, columns, REACH_Y=reach_y, REACH_X=reach_x, BLOCK=256, WIDE=wide, **meta
        )  # fmt: skip
        return
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
def touched_pixels(pixels: int, cells: int) -> int:
    """The most pixels that a cell touches along one axis."""
    if pixels % cells == 0:
        return pixels // cells
    return max(-(-(cell + 1) * pixels // cells) - cell * pixels // cells for cell in range(cells))


@triton.jit
def _plane(table, channel, KIND: tl.constexpr, PACKED: tl.constexpr = False):
    """A plane's address and strides. PACKED: rows are contiguous and aligned for vector loads.

    The alignment hints must be here: hints on a function's result are lost when it is inlined.
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
    """The overlap of a pixel and a cell, out of `pixels` parts."""
    return tl.minimum((cell + 1) * pixels, (pixel + 1) * cells) - tl.maximum(cell * pixels, pixel * cells)


@triton.jit
def _columns(
    table, rules, between, height, width, rows,
    REACH: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Reduce every column of a row of cells: its sum or its maximum."""
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
    """Reduce a row of cells from its columns; ids come from the pixel under each cell's centre."""
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
