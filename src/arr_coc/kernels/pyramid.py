"""Mip levels of many planes at once, each by its own rule: five levels a launch where the sizes halve evenly.

A program takes a rectangle of 32 x 64 pixels of one channel and halves it five times without writing anything but the
results: every pixel is read once. Ids are read from level 0, at the pixel under each cell's centre. Where a side is odd, the
level is pooled by `cells.py`, which weighs the pixels that a cell cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from arr_coc.kernels import tables
from arr_coc.kernels.cells import _plane, write_cells
from arr_coc.texture.pyramid import level_count, level_size

AT_ONCE = 5  # levels a launch


def make_levels(planes: Sequence[torch.Tensor], rules: Sequence[str], count: int | None = None) -> list[torch.Tensor]:
    """Levels 1 and above of planes `[H, W]`: a list of `[C, H >> l, W >> l]`; `count` of them, or down to 1 x 1."""
    first = planes[0]
    size = (int(first.shape[0]), int(first.shape[1]))
    wanted = level_count(size) - 1 if count is None else count
    levels = [
        torch.empty(len(planes), *level_size(size, number), dtype=first.dtype, device=first.device)
        for number in range(1, wanted + 1)
    ]
    made = Levels(size, rules, levels)
    made.write(tables.table(planes), any(tables.wide(plane) for plane in planes))
    return levels


class Levels:
    """Where levels are to be written, with the tables that takes: made once, written to often."""

    def __init__(self, size: tuple[int, int], rules: Sequence[str], levels: Sequence[torch.Tensor]) -> None:
        self.size = size
        self.levels = list(levels)
        if not self.levels:
            return
        device = self.levels[0].device
        self.rules = tables.rules(rules, device)
        self.ids = [number for number, rule in enumerate(rules) if rule == "nearest"]
        self.tables = [tables.table(list(level)) for level in self.levels]  # of levels 1 and above

    def write(self, table: torch.Tensor, wide: bool = False) -> None:
        """All levels of the planes in `table`, which are of `size`."""
        done = 0  # levels there are
        while done < len(self.levels):
            here = level_size(self.size, done)
            even = self._even(here, len(self.levels) - done) if done == 0 or self._nested(done) else 0
            source = table if done == 0 else self.tables[done - 1]
            if even:
                self._halve(table, source, here, done, even, wide)
                done += even
            else:
                self._pool(table, done + 1, wide)
                done += 1

    def _nested(self, number: int) -> bool:
        """Whether cells of level 0 nest in those of a level."""
        return all(
            n % m == 0 and n // m == 1 << number for n, m in zip(self.size, level_size(self.size, number), strict=True)
        )

    def _even(self, size: tuple[int, int], most: int) -> int:
        """How many times both sides can be halved without a rest, as far as one launch goes."""
        count = 0
        while count < min(most, AT_ONCE) and all(side % (2 << count) == 0 for side in size):
            count += 1
        return count

    def _halve(
        self, table: torch.Tensor, source: torch.Tensor, size: tuple[int, int], done: int, count: int, wide: bool
    ) -> None:
        outs = [self.levels[done + min(number, count - 1)] for number in range(AT_ONCE)]
        grid = (triton.cdiv(size[1], 64), triton.cdiv(size[0], 32), len(self.rules))
        _halve[grid](
            table, source, self.rules, *outs, *size,
            KIND=tables.element(outs[0].dtype), DONE=done, COUNT=count, WIDE=wide, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip

    def _pool(self, table: torch.Tensor, number: int, wide: bool) -> None:
        out = self.levels[number - 1]
        size = tuple(int(side) for side in out.shape[1:])
        sizes = [level_size(self.size, i) for i in range(number)]
        nests = [all(n % m == 0 for n, m in zip(one, size, strict=True)) for one in sizes]
        source = max((i for i, nested in enumerate(nests) if nested), default=0)
        write_cells(table if source == 0 else self.tables[source - 1], self.rules, sizes[source], out, wide)
        if source > 0 and self.ids:  # the centre of a centre's centre drifts to a corner
            for one in self.ids:
                write_cells(table[one : one + 1], self.rules[one : one + 1], self.size, out[one : one + 1], wide)


@triton.jit
def _halve(
    table, source, rules, out_1, out_2, out_3, out_4, out_5, height, width,
    KIND: tl.constexpr, DONE: tl.constexpr, COUNT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(2).to(tl.int64)
    rule = tl.load(rules + channel)
    top, left = tl.program_id(1), tl.program_id(0)
    if rule == 2:
        plane, stride_y, stride_x = _plane(table, channel, KIND)
        _ids(plane, stride_y, stride_x, out_1, channel, top, left, height, width, 1, DONE, KIND)
        if COUNT > 1:
            _ids(plane, stride_y, stride_x, out_2, channel, top, left, height, width, 2, DONE, KIND)
        if COUNT > 2:
            _ids(plane, stride_y, stride_x, out_3, channel, top, left, height, width, 3, DONE, KIND)
        if COUNT > 3:
            _ids(plane, stride_y, stride_x, out_4, channel, top, left, height, width, 4, DONE, KIND)
        if COUNT > 4:
            _ids(plane, stride_y, stride_x, out_5, channel, top, left, height, width, 5, DONE, KIND)
    else:
        plane, stride_y, stride_x = _plane(source, channel, KIND)
        rows = top * 32 + tl.arange(0, 32)
        columns = left * 64 + tl.arange(0, 64)
        inside = (rows < height)[:, None] & (columns < width)[None, :]
        at = plane + rows[:, None] * stride_y + columns[None, :] * stride_x
        values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        values = _once(values, rule, 32, 64)
        _keep(values, out_1, channel, top, left, height, width, 1, 16, 32, KIND)
        if COUNT > 1:
            values = _once(values, rule, 16, 32)
            _keep(values, out_2, channel, top, left, height, width, 2, 8, 16, KIND)
        if COUNT > 2:
            values = _once(values, rule, 8, 16)
            _keep(values, out_3, channel, top, left, height, width, 3, 4, 8, KIND)
        if COUNT > 3:
            values = _once(values, rule, 4, 8)
            _keep(values, out_4, channel, top, left, height, width, 4, 2, 4, KIND)
        if COUNT > 4:
            values = _once(values, rule, 2, 4)
            _keep(values, out_5, channel, top, left, height, width, 5, 1, 2, KIND)


@triton.jit
def _once(values, rule, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Half the size along both axes: the mean or the largest of each two by two."""
    parts = tl.reshape(values, [ROWS // 2, 2, COLUMNS // 2, 2])
    made = tl.sum(tl.sum(parts, axis=3), axis=1) * 0.25
    if rule == 1:
        made = tl.max(tl.max(parts, axis=3), axis=1)
    return made


@triton.jit
def _keep(
    values, out, channel, top, left, height, width,
    LEVEL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    high, wide = height >> LEVEL, width >> LEVEL
    rows = top * ROWS + tl.arange(0, ROWS)
    columns = left * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < high)[:, None] & (columns < wide)[None, :]
    place = out + channel * high * wide + rows[:, None] * wide + columns[None, :]
    tl.store(place, values.to(KIND), mask=inside)


@triton.jit
def _ids(
    plane, stride_y, stride_x, out, channel, top, left, height, width,
    LEVEL: tl.constexpr, DONE: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The pixels of level 0 under the cells' centres."""
    ROWS: tl.constexpr = 32 >> LEVEL
    COLUMNS: tl.constexpr = 64 >> LEVEL
    high, wide = height >> LEVEL, width >> LEVEL
    rows = top * ROWS + tl.arange(0, ROWS)
    columns = left * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < high)[:, None] & (columns < wide)[None, :]
    y = (rows << (LEVEL + DONE)) + (1 << (LEVEL + DONE - 1))
    x = (columns << (LEVEL + DONE)) + (1 << (LEVEL + DONE - 1))
    values = tl.load(plane + y[:, None] * stride_y + x[None, :] * stride_x, mask=inside, other=0.0)
    tl.store(out + channel * high * wide + rows[:, None] * wide + columns[None, :], values, mask=inside)
