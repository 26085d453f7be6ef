"""All channels at all points in one launch: bilinear on two levels, linear between them; ids at the nearest pixel and level.

The rules are those of `texture/sampler.py`. Planes and levels lie anywhere: a table says where. A point that is not a finite
number reads as not a number, so that nobody has to wait for the check.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from arr_coc.devices import placed
from arr_coc.texture.kernels import tables
from arr_coc.texture.kernels.recording import captured


class Places:
    """Where the levels of some channels lie, with their sizes and rules; made once for many samples."""

    def __init__(self, levels: Sequence[Sequence[torch.Tensor]], rules: Sequence[str]) -> None:
        """levels: for each level, C planes `[H_l, W_l]`; rules: the channels' pooling rules."""
        first = levels[0][0]
        self.held = [list(level) for level in levels]  # so that the memory stays where the table says it is
        self.table = torch.stack([tables.table(level) for level in self.held])  # [L, C, 3]
        sizes = [[int(level[0].shape[0]), int(level[0].shape[1])] for level in self.held]
        self.sizes = placed(torch.tensor(sizes, dtype=torch.int32), first.device)
        self.rules = tables.rules(rules, first.device)
        self.dtype = first.dtype


def sample(places: Places, xy: torch.Tensor, level: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """All channels at points `[N, 2]` (x, y in [0, 1]) and levels `[N]`: `[N, C]` of the planes' dtype."""
    levels, channels, _ = places.table.shape
    made = torch.empty(len(xy), channels, dtype=places.dtype, device=xy.device) if out is None else out
    if len(xy) == 0:
        return made
    across = min(64, triton.next_power_of_2(channels))
    points = 8 if len(xy) < 1 << 12 else 16
    grid = (triton.cdiv(len(xy), points), triton.cdiv(channels, across))
    _sample[grid](
        places.table, places.sizes, places.rules, xy, level, made, len(xy), channels, levels - 1,
        xy.stride(0), xy.stride(1), level.stride(0),
        POINTS=points, ACROSS=across, KIND=tables.element(places.dtype), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return made


class Sampling:
    """Samples at `count` points again and again: buffers that stay, and one launch once it is recorded."""

    def __init__(self, places: Places, count: int) -> None:
        channels, device = int(places.table.shape[1]), places.table.device
        self.places = places
        self.xy = torch.zeros(count, 2, device=device)
        self.level = torch.zeros(count, device=device)
        self.values = torch.empty(count, channels, dtype=places.dtype, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self) -> Sampling:
        """Record it, so that `read` is one launch. CUDA only."""
        self._graph = captured(lambda: sample(self.places, self.xy, self.level, self.values), self.xy.device)
        return self

    def read(self) -> torch.Tensor:
        """All channels at the points in `xy` and `level`: `values` `[N, C]`."""
        if self._graph is None:
            return sample(self.places, self.xy, self.level, self.values)
        self._graph.replay()
        return self.values


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
