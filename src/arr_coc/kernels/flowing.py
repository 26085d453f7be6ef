"""Optical flow of fixed shape on the GPU, both directions at once, without a wait: the steps of `video/pyramidal.py`.

Every average there, with its borders repeated, is a linear map along each axis. Here each is one small matrix an axis, and a
blur of all planes is two products; what lies between (reading a frame where its pixels have moved to, solving the normal equations) is
one kernel each. So a round takes four launches in place of thirty.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from arr_coc.kernels.warping import warp_planes
from arr_coc.video import flow as flows
from arr_coc.video.pyramidal import COARSEST, ROUNDS, SMOOTH, STEADY, STEP, WINDOW

BLOCK = 256


class Flowing:
    """The flow between two small lumas `[h, w]` of one size: `between` gives vectors and confidence."""

    def __init__(self, size: tuple[int, int], device: torch.device | str = "cuda") -> None:
        self.sizes = [size]
        while min(self.sizes[-1]) >= 2 * COARSEST:
            self.sizes.append((-(-self.sizes[-1][0] // 2), -(-self.sizes[-1][1] // 2)))
        self._wide = [_pair(one, one, device, _twice, WINDOW) for one in self.sizes]
        self._narrow = [_pair(one, one, device, _twice, SMOOTH) for one in self.sizes]
        self._down = [
            _pair(fine, coarse, device, _halving) for fine, coarse in zip(self.sizes, self.sizes[1:], strict=False)
        ]
        self._up = [
            _pair(coarse, fine, device, _growing) for fine, coarse in zip(self.sizes, self.sizes[1:], strict=False)
        ]
        # What a vector is worth in the pixels of the next finer level.
        self._scales = [
            torch.tensor([fine[1] / coarse[1], fine[0] / coarse[0]], device=device).view(1, 2, 1, 1)
            for fine, coarse in zip(self.sizes, self.sizes[1:], strict=False)
        ]

    def between(self, before: torch.Tensor, after: torch.Tensor) -> flows.Flow:
        """The flow from `before` to `after`: vectors point back in time, as everywhere in `video/`."""
        found = self.vectors(torch.stack([after, before]).float())
        back, forth = found[0], found[1]
        missed = flows.length(back + warp_planes(forth, back))
        allowed = flows.STRAY + flows.STRAY_SHARE * flows.length(back)
        return flows.Flow(back, flows.inside(back).to(back) / (1 + (missed / allowed) ** 2))

    def vectors(self, frames: torch.Tensor) -> torch.Tensor:
        """Vectors `[2, 2, h, w]` from each of two frames `[2, h, w]` to the other."""
        pyramid = [frames]
        for matrices in self._down:
            pyramid.append(_mapped(pyramid[-1], matrices))
        found = frames.new_zeros(2, 2, *self.sizes[-1])
        for level in reversed(range(len(self.sizes))):
            if level < len(self.sizes) - 1:
                found = _mapped(found, self._up[level]) * self._scales[level]
            found = self._refined(found.contiguous(), pyramid[level].contiguous(), level)
        return found

    def _refined(self, found: torch.Tensor, here: torch.Tensor, level: int) -> torch.Tensor:
        height, width = self.sizes[level]
        grid = (triton.cdiv(height * width, BLOCK), 2)
        slopes, products = torch.empty_like(found), here.new_empty(2, 3, height, width)
        _prepare[grid](here, slopes, products, height, width, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
        structure = _mapped(products, self._wide[level])
        changes = torch.empty_like(found)
        for _ in range(ROUNDS):
            _change[grid](here, found, slopes, changes, height, width, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
            blurred = _mapped(changes, self._wide[level])
            _solve[grid](
                structure, blurred, found, height, width, STEADY, STEP, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
            )
        weight = (structure[:, :1] + structure[:, 2:]) / 2 + 1e-9
        smooth = _mapped(torch.cat([found * weight, weight], dim=1), self._narrow[level])
        return smooth[:, :2] / smooth[:, 2:]


Pair = tuple[torch.Tensor, torch.Tensor]


def _mapped(planes: torch.Tensor, matrices: Pair) -> torch.Tensor:
    """Planes `[..., h, w]` by a matrix for each axis."""
    down, across = matrices
    return down @ (planes @ across)


def _pair(size, wanted, device, make, *more) -> Pair:
    """A matrix from the left for the rows, one from the right for the columns."""
    down, across = (make(n, m, *more).float().to(device) for n, m in zip(size, wanted, strict=True))
    return down, across.T.contiguous()


def _average(length: int, window: int) -> torch.Tensor:
    """`[n, n]`: the mean over a window, the border repeated."""
    made = torch.zeros(length, length, dtype=torch.float64)
    rows = torch.arange(length)
    for off in range(-(window // 2), window // 2 + 1):
        made.index_put_(
            (rows, (rows + off).clamp(0, length - 1)), torch.full((length,), 1 / window).double(), accumulate=True
        )
    return made


def _twice(length: int, _: int, window: int) -> torch.Tensor:
    return _average(length, window) @ _average(length, window)


def _halving(length: int, wanted: int) -> torch.Tensor:
    """`[wanted, n]`: blurred by 3 twice, then the mean of each two; the last of an odd number alone."""
    halved = F.avg_pool1d(torch.eye(length, dtype=torch.float64)[None], 2, ceil_mode=True)[0].T
    return halved @ _twice(length, length, 3)


def _growing(length: int, wanted: int) -> torch.Tensor:
    """`[wanted, n]`: linear interpolation."""
    return F.interpolate(torch.eye(length, dtype=torch.float64)[None], wanted, mode="linear", align_corners=False)[0].T


@triton.jit
def _prepare(here, slopes, products, height, width, BLOCK: tl.constexpr):
    """Central differences, and their products."""
    pixels = height * width
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    source = here + frame * pixels
    up, low = tl.maximum(row - 1, 0), tl.minimum(row + 1, height - 1)
    left, right = tl.maximum(column - 1, 0), tl.minimum(column + 1, width - 1)
    across = tl.load(source + row * width + right, mask=inside, other=0.0)
    across = (across - tl.load(source + row * width + left, mask=inside, other=0.0)) / 2
    down = tl.load(source + low * width + column, mask=inside, other=0.0)
    down = (down - tl.load(source + up * width + column, mask=inside, other=0.0)) / 2
    tl.store(slopes + frame * 2 * pixels + place, across, mask=inside)
    tl.store(slopes + (frame * 2 + 1) * pixels + place, down, mask=inside)
    tl.store(products + frame * 3 * pixels + place, across * across, mask=inside)
    tl.store(products + (frame * 3 + 1) * pixels + place, across * down, mask=inside)
    tl.store(products + (frame * 3 + 2) * pixels + place, down * down, mask=inside)


@triton.jit
def _change(here, found, slopes, changes, height, width, BLOCK: tl.constexpr):
    """How brightness differs at the place that a pixel has moved to in the other frame, times the slopes."""
    pixels = height * width
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    row, column = place // width, place % width
    there = here + (1 - frame) * pixels
    x = column.to(tl.float32) + tl.load(found + frame * 2 * pixels + place, mask=inside, other=0.0)
    y = row.to(tl.float32) + tl.load(found + (frame * 2 + 1) * pixels + place, mask=inside, other=0.0)
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    west, north = tl.floor(x).to(tl.int32), tl.floor(y).to(tl.int32)
    east, south = tl.minimum(west + 1, width - 1), tl.minimum(north + 1, height - 1)
    fx, fy = x - west.to(tl.float32), y - north.to(tl.float32)
    value = tl.load(there + north * width + west, mask=inside, other=0.0) * ((1 - fy) * (1 - fx))
    value += tl.load(there + north * width + east, mask=inside, other=0.0) * ((1 - fy) * fx)
    value += tl.load(there + south * width + west, mask=inside, other=0.0) * (fy * (1 - fx))
    value += tl.load(there + south * width + east, mask=inside, other=0.0) * (fy * fx)
    value -= tl.load(here + frame * pixels + place, mask=inside, other=0.0)
    at = frame * 2 * pixels + place
    tl.store(changes + at, value * tl.load(slopes + at, mask=inside, other=0.0), mask=inside)
    tl.store(changes + pixels + at, value * tl.load(slopes + pixels + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def _solve(structure, blurred, found, height, width, steady, most, BLOCK: tl.constexpr):
    """The step that explains the change best, taken; no longer than `most` along each axis."""
    pixels = height * width
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    at = structure + frame * 3 * pixels + place
    xx = tl.load(at, mask=inside, other=0.0) + steady
    xy = tl.load(at + pixels, mask=inside, other=0.0)
    yy = tl.load(at + 2 * pixels, mask=inside, other=0.0) + steady
    x = tl.load(blurred + frame * 2 * pixels + place, mask=inside, other=0.0)
    y = tl.load(blurred + (frame * 2 + 1) * pixels + place, mask=inside, other=0.0)
    determinant = tl.where(inside, xx * yy - xy * xy, 1.0)
    along = tl.minimum(tl.maximum((yy * x - xy * y) / determinant, -most), most)
    down = tl.minimum(tl.maximum((xx * y - xy * x) / determinant, -most), most)
    target = found + frame * 2 * pixels + place
    tl.store(target, tl.load(target, mask=inside, other=0.0) - along, mask=inside)
    tl.store(target + pixels, tl.load(target + pixels, mask=inside, other=0.0) - down, mask=inside)
