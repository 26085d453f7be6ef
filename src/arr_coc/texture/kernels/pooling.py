"""Kernels that pool planes onto a grid of equal cells and into mip levels, each channel by its own rule.

The rules are those of `texture/filters.py`. A pixel that lies partly inside a cell is weighted by its share, computed in
integers: pixel p of H and cell r of h overlap by min((r + 1) H, (p + 1) h) - max(r H, p h) parts out of H.
One lane handles a whole small cell. Large cells are reduced down their columns first, then along the rows.

Where both sides halve evenly, one launch writes five mip levels: a program reads a strip of 32 rows of one channel once and
halves it five times in registers. Ids are read from level 0, at the pixel under each cell's centre. A level with an odd side
is pooled like any grid, which weights the pixels that a cell cuts.

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
from arr_coc.texture.filters import level_count, level_size, nested_source

RULE_CODES = {"mean": 0, "max": 1, "nearest": 2}
INT32_OFFSETS = 1 << 31  # elements
VECTOR_BYTES = 16  # the widest load of a lane
SMALL_CELL = 8  # px of a cell's longer side up to which one lane handles the whole cell
STRIP = 512  # columns of a program, at most
LEVELS_PER_LAUNCH = 5


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


def make_levels(planes: Sequence[torch.Tensor], rules: Sequence[str], count: int | None = None) -> list[torch.Tensor]:
    """Levels 1 and above of planes `[H, W]`: a list of `[C, H >> l, W >> l]`; `count` of them, or down to 1 x 1."""
    first = planes[0]
    size = (int(first.shape[0]), int(first.shape[1]))
    wanted = level_count(size) - 1 if count is None else count
    levels = [
        torch.empty(len(planes), *level_size(size, number), dtype=first.dtype, device=first.device)
        for number in range(1, wanted + 1)
    ]
    LevelWriter(size, rules, levels).write(plane_table(planes), needs_int64(*planes), rows_aligned(planes))
    return levels


class LevelWriter:
    """Output buffers of mip levels with their tables: made once, written often."""

    def __init__(self, size: tuple[int, int], rules: Sequence[str], levels: Sequence[torch.Tensor]) -> None:
        self.size = size
        self.levels = list(levels)
        if not self.levels:
            return
        self.rules = rule_codes(rules, self.levels[0].device)
        self.ids = [number for number, rule in enumerate(rules) if rule == "nearest"]
        self.tables = [plane_table(list(level)) for level in self.levels]  # of levels 1 and above
        self.packed = [rows_aligned(list(level)) for level in self.levels]

    def write(self, table: torch.Tensor, wide: bool = False, packed: bool = False) -> None:
        """Write all levels of the planes in `table`, which are of `size`; wide, packed: as in `write_cells`."""
        done = 0  # levels that are written
        while done < len(self.levels):
            here = level_size(self.size, done)
            even = self._even(here, len(self.levels) - done) if self._nested(done) else 0
            if even:
                source, dense = (table, packed) if done == 0 else (self.tables[done - 1], self.packed[done - 1])
                self._halve(table, source, here, done, even, dense)
                done += even
            else:
                self._pool(table, done + 1, wide, packed)
                done += 1

    def _nested(self, number: int) -> bool:
        """Whether each cell of a level is exactly 2^number x 2^number pixels of level 0."""
        sizes = zip(self.size, level_size(self.size, number), strict=True)
        return all(n == m << number for n, m in sizes)

    def _even(self, size: tuple[int, int], most: int) -> int:
        """How many times both sides can be halved without a remainder in one launch."""
        count = 0
        while count < min(most, LEVELS_PER_LAUNCH) and all(side % (2 << count) == 0 for side in size):
            count += 1
        return count

    def _halve(
        self, table: torch.Tensor, source: torch.Tensor, size: tuple[int, int], done: int, count: int, packed: bool
    ) -> None:
        outs = [self.levels[done + min(number, count - 1)] for number in range(LEVELS_PER_LAUNCH)]
        block = max(1 << count, min(STRIP, triton.next_power_of_2(size[1])))
        _halve[(triton.cdiv(size[1], block), size[0] >> count, len(self.rules))](
            table, source, self.rules, *outs, *size,
            KIND=triton_dtype(outs[0].dtype), DONE=done, COUNT=count, PACKED=packed, BLOCK=block,
            num_warps=2 if block >= 256 else 1, enable_fp_fusion=True,
        )  # fmt: skip

    def _pool(self, table: torch.Tensor, number: int, wide: bool, packed: bool) -> None:
        out = self.levels[number - 1]
        source = nested_source(self.size, number)
        first, dense = (table, packed) if source == 0 else (self.tables[source - 1], self.packed[source - 1])
        write_cells(first, self.rules, level_size(self.size, source), out, wide=wide, packed=dense)
        if source > 0:  # ids always come from level 0: the centre of a centre drifts to a corner
            for one in self.ids:
                ids, rule = table[one : one + 1], self.rules[one : one + 1]
                write_cells(ids, rule, self.size, out[one : one + 1], wide=wide, packed=packed)


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


@triton.jit
def _halve(
    table, source, rules, out_1, out_2, out_3, out_4, out_5, height, width,
    KIND: tl.constexpr, DONE: tl.constexpr, COUNT: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(2).to(tl.int64)
    rule = tl.load(rules + channel)
    left, top = tl.program_id(0) * BLOCK, tl.program_id(1) << COUNT
    out_1 += channel * (height >> 1) * (width >> 1)
    out_2 += channel * (height >> 2) * (width >> 2)
    out_3 += channel * (height >> 3) * (width >> 3)
    out_4 += channel * (height >> 4) * (width >> 4)
    out_5 += channel * (height >> 5) * (width >> 5)
    if rule == 2:
        plane, stride_y, stride_x = _plane(table, channel, KIND)
        _ids(plane, stride_y, stride_x, out_1, top, left, width, 1, DONE, COUNT, BLOCK)
        if COUNT > 1:
            _ids(plane, stride_y, stride_x, out_2, top, left, width, 2, DONE, COUNT, BLOCK)
        if COUNT > 2:
            _ids(plane, stride_y, stride_x, out_3, top, left, width, 3, DONE, COUNT, BLOCK)
        if COUNT > 3:
            _ids(plane, stride_y, stride_x, out_4, top, left, width, 4, DONE, COUNT, BLOCK)
        if COUNT > 4:
            _ids(plane, stride_y, stride_x, out_5, top, left, width, 5, DONE, COUNT, BLOCK)
    else:
        plane, stride_y, stride_x = _plane(source, channel, KIND, PACKED)
        columns = left + tl.arange(0, BLOCK)
        at = plane + columns * stride_x
        inside = columns < width
        if rule == 1:
            _levels(at, stride_y, top, inside, out_1, out_2, out_3, out_4, out_5, left, width, KIND, COUNT, BLOCK, True)
        else:
            _levels(
                at, stride_y, top, inside, out_1, out_2, out_3, out_4, out_5, left, width, KIND, COUNT, BLOCK, False
            )


@triton.jit
def _levels(
    at, stride_y, y, inside, out_1, out_2, out_3, out_4, out_5, left, width,
    KIND: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    if COUNT == 1:
        _first(
            _row(at, stride_y, y, inside), _row(at, stride_y, y + 1, inside), y, out_1, left, width, KIND, BLOCK, MOST
        )
    elif COUNT == 2:
        a, b = _row(at, stride_y, y, inside), _row(at, stride_y, y + 1, inside)
        c, d = _row(at, stride_y, y + 2, inside), _row(at, stride_y, y + 3, inside)
        _second(a, b, c, d, y, out_1, out_2, left, width, KIND, BLOCK, MOST)
    elif COUNT == 3:
        _third(at, stride_y, y, inside, out_1, out_2, out_3, left, width, KIND, BLOCK, MOST)
    elif COUNT == 4:
        _fourth(at, stride_y, y, inside, out_1, out_2, out_3, out_4, left, width, KIND, BLOCK, MOST)
    else:
        a = _fourth(at, stride_y, y, inside, out_1, out_2, out_3, out_4, left, width, KIND, BLOCK, MOST)
        b = _fourth(at, stride_y, y + 16, inside, out_1, out_2, out_3, out_4, left, width, KIND, BLOCK, MOST)
        _keep(_once(a, b, BLOCK // 16, MOST), out_5, y, left, width, 5, KIND, BLOCK)


@triton.jit
def _row(at, stride_y, y, inside):
    return tl.load(at + y * stride_y, mask=inside, other=0.0)


# A row of each level takes two rows of the level below. Eight loads are in flight at once, before any store.


@triton.jit
def _first(a, b, y, out_1, left, width, KIND: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr):
    return _keep(_once(a.to(tl.float32), b.to(tl.float32), BLOCK, MOST), out_1, y, left, width, 1, KIND, BLOCK)


@triton.jit
def _second(
    a, b, c, d, y, out_1, out_2, left, width, KIND: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr
):  # fmt: skip
    above = _first(a, b, y, out_1, left, width, KIND, BLOCK, MOST)
    below = _first(c, d, y + 2, out_1, left, width, KIND, BLOCK, MOST)
    return _keep(_once(above, below, BLOCK // 2, MOST), out_2, y, left, width, 2, KIND, BLOCK)


@triton.jit
def _third(
    at, stride_y, y, inside, out_1, out_2, out_3, left, width, KIND: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr
):  # fmt: skip
    a, b = _row(at, stride_y, y, inside), _row(at, stride_y, y + 1, inside)
    c, d = _row(at, stride_y, y + 2, inside), _row(at, stride_y, y + 3, inside)
    e, f = _row(at, stride_y, y + 4, inside), _row(at, stride_y, y + 5, inside)
    g, h = _row(at, stride_y, y + 6, inside), _row(at, stride_y, y + 7, inside)
    above = _second(a, b, c, d, y, out_1, out_2, left, width, KIND, BLOCK, MOST)
    below = _second(e, f, g, h, y + 4, out_1, out_2, left, width, KIND, BLOCK, MOST)
    return _keep(_once(above, below, BLOCK // 4, MOST), out_3, y, left, width, 3, KIND, BLOCK)


@triton.jit
def _fourth(
    at, stride_y, y, inside, out_1, out_2, out_3, out_4, left, width,
    KIND: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    a = _third(at, stride_y, y, inside, out_1, out_2, out_3, left, width, KIND, BLOCK, MOST)
    b = _third(at, stride_y, y + 8, inside, out_1, out_2, out_3, left, width, KIND, BLOCK, MOST)
    return _keep(_once(a, b, BLOCK // 8, MOST), out_4, y, left, width, 4, KIND, BLOCK)


@triton.jit
def _once(a, b, COUNT: tl.constexpr, MOST: tl.constexpr):
    """Halve two rows of COUNT values along both axes: the mean of each 2 x 2; MOST: the maximum."""
    if MOST:
        even, odd = tl.split(tl.reshape(tl.maximum(a, b), [COUNT // 2, 2]))
        made = tl.maximum(even, odd)
    else:
        even, odd = tl.split(tl.reshape(a + b, [COUNT // 2, 2]))
        made = (even + odd) * 0.25
    return made


@triton.jit
def _keep(values, out, y, left, width, LEVEL: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Store a row of a level, at the position of pixel row `y` of the source."""
    columns = (left >> LEVEL) + tl.arange(0, BLOCK >> LEVEL)
    wide = width >> LEVEL
    tl.store(out + (y >> LEVEL).to(tl.int64) * wide + columns, values.to(KIND), mask=columns < wide)
    return values


@triton.jit
def _ids(
    plane, stride_y, stride_x, out, top, left, width,
    LEVEL: tl.constexpr, DONE: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the pixels of level 0 under the cells' centres."""
    rows = (top >> LEVEL) + tl.arange(0, 1 << (COUNT - LEVEL))
    columns = (left >> LEVEL) + tl.arange(0, BLOCK >> LEVEL)
    wide = width >> LEVEL
    y = (rows << (LEVEL + DONE)) + (1 << (LEVEL + DONE - 1))
    x = (columns << (LEVEL + DONE)) + (1 << (LEVEL + DONE - 1))
    inside = (columns < wide)[None, :] & (rows >= 0)[:, None]
    values = tl.load(plane + y[:, None] * stride_y + x[None, :] * stride_x, mask=inside, other=0.0)
    tl.store(out + rows.to(tl.int64)[:, None] * wide + columns[None, :], values, mask=inside)
