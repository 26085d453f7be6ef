"""Kernels for mip levels of many planes, each by its own rule: five levels per launch where the sizes halve evenly.

A program reads a strip of 32 rows of one channel once and halves it five times in registers; only the results are written.
Ids are read from level 0, at the pixel under each cell's centre. A level with an odd side is pooled by `pooling.write_cells`,
which weights the pixels that a cell cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels.pooling import (
    STRIP,
    _plane,
    needs_int64,
    plane_table,
    rows_aligned,
    rule_codes,
    triton_dtype,
    write_cells,
)
from arr_coc.texture.pooling import level_count, level_size, nested_source

LEVELS_PER_LAUNCH = 5


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
