"""Kernels that make segments connected: find the parts, merge small ones into neighbours, number the rest row by row.

The same as `connect` in `texture/channels/clusters.py`. Parts are found by union-find: each pixel points to an earlier pixel
of its part, and chains that meet are joined at the smaller index. k-means gives one map per compactness; the first map that
is connected enough is taken, and only its holes are filled.

Filling grows the large parts by one pixel per round, from above, below, left and right in turn. One program fills an image,
because every step depends on the one before. With few holes each lane keeps its own pixels; otherwise they are scanned in
chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture.channels.clusters import COMPACTNESS, SEGMENTS, SMALLEST

BLOCK = 256
MAX_PARTS = 256  # parts that can be large enough to stay, rounded up: each has at least a quarter of the mean segment
NOWHERE = (1 << 31) - 1
LANE_HOLES = 4096  # pixels to fill up to which every lane keeps its own


@dataclass(frozen=True)
class Variants:
    """A range of the COMPACTNESS values: `count` of them from index `first`."""

    first: int
    count: int


class ConnectedComponents:
    """Buffers for label maps `[B * variants, h, w]`. Results: `ids` int32 `[B, h, w]` and `count` int32 `[B]`."""

    def __init__(
        self, batch: int, size: tuple[int, int], device: torch.device, variants: int = len(COMPACTNESS)
    ) -> None:
        pixels = size[0] * size[1]
        self.batch, self.size, self.variants = batch, size, variants
        maps = batch * variants

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        self.parent = empty(maps, pixels)
        self.zeros = empty(maps * (pixels + 2) + 2 * batch)  # all buffers that start at zero, for one fill
        self.counts, rest = self.zeros.split([maps * pixels, 2 * maps + 2 * batch])
        self.large, self.labels, self.gaps, self.count = rest.split([maps, maps, batch, batch])
        self.largest = torch.empty(maps, dtype=torch.int64, device=device)
        self.tall = empty(batch * (pixels + MAX_PARTS))  # all buffers that start beyond the last pixel
        self.first, self.order = self.tall.split([batch * pixels, batch * MAX_PARTS])
        self.grown, self.holes, self.offer = empty(batch, pixels), empty(batch, pixels), empty(batch, pixels)
        self.numbers, self.ids = empty(batch, pixels), empty(batch, *size)

    def write(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels int32 `[B * variants, h, w]` to connected ids int32 `[B, h, w]`, numbered row by row."""
        self.reset()
        self.find_parts(labels, Variants(0, self.variants))
        return self.merge()

    def reset(self) -> None:
        """Forget all maps."""
        self.zeros.zero_()
        self.largest.zero_()
        self.tall.fill_(NOWHERE)

    def find_parts(self, labels: torch.Tensor, variants: Variants) -> None:
        """Find the parts of some maps of each image whose earlier maps are not connected enough."""
        height, width = self.size
        pixels = height * width
        maps = self.batch * variants.count
        settled = (self.large, self.labels)
        which: dict[str, Any] = {"FROM": variants.first, "COUNT": variants.count, "VARIANTS": self.variants}
        _runs[(height, maps)](
            labels, self.parent, *settled, height, width, BLOCK=triton.next_power_of_2(width), **which, num_warps=4, enable_fp_fusion=True
        )  # fmt: skip
        _unite[(triton.cdiv(pixels, BLOCK), maps)](
            labels, self.parent, *settled, height, width, BLOCK=BLOCK, **which, num_warps=4, enable_fp_fusion=True
        )
        _flatten[(triton.cdiv(pixels, 64), maps)](
            labels, self.parent, self.counts, *settled, pixels, BLOCK=64, NOWHERE=NOWHERE, **which, num_warps=1, enable_fp_fusion=True
        )  # fmt: skip
        _weigh[(triton.cdiv(pixels, BLOCK), maps)](
            self.parent, self.counts, *settled, self.largest, pixels, SMALLEST * pixels / SEGMENTS, BLOCK=BLOCK, **which,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip

    def merge(self) -> torch.Tensor:
        """Take one map of each image, merge its small parts and number the others: ids int32 `[B, h, w]`."""
        height, width = self.size
        pixels = height * width
        grid = (triton.cdiv(pixels, BLOCK), self.batch)
        meta: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
        _clear[grid](
            self.parent, self.counts, self.large, self.labels, self.largest, self.grown, self.holes, self.gaps,
            pixels, SMALLEST * pixels / SEGMENTS, VARIANTS=self.variants, BLOCK=BLOCK, **meta,
        )  # fmt: skip
        _grow[(self.batch,)](
            self.grown, self.holes, self.offer, self.gaps, height, width,
            BLOCK=1024, FEW=LANE_HOLES, num_warps=16, enable_fp_fusion=True,
        )  # fmt: skip
        _begin[grid](self.grown, self.first, height, width, BLOCK=BLOCK, **meta)
        _list[grid](self.grown, self.first, self.order, self.count, pixels, MOST=MAX_PARTS, BLOCK=BLOCK, **meta)
        _count[(MAX_PARTS // 16, self.batch)](self.order, self.numbers, pixels, MOST=MAX_PARTS, **meta)
        _number[grid](self.grown, self.first, self.numbers, self.ids, pixels, BLOCK=BLOCK, **meta)
        return self.ids


@triton.jit
def _holds(large, numbers, one):
    """Whether a map is connected enough: at least half as many large parts as labels."""
    return 2 * tl.maximum(tl.load(large + one), 1) >= tl.load(numbers + one) + 1


@triton.jit
def _which(program, large, numbers, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr):
    """The map that a program works on; -1: a map before number FROM of this image is connected enough."""
    image = program // COUNT
    found = image * VARIANTS + FROM + program % COUNT
    for one in tl.static_range(FROM):
        found = tl.where(_holds(large, numbers, image * VARIANTS + one), -1, found)
    return found


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _runs(
    labels, parent, large, numbers, height, width,
    BLOCK: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """Set each pixel's parent to the first pixel of its run of equal labels along the row."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    row = map_.to(tl.int64) * height + tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    mine = tl.load(labels + row * width + column, mask=inside, other=-1)
    left = tl.load(labels + row * width + column - 1, mask=inside & (column > 0), other=-1)
    start = tl.associative_scan(tl.where(mine != left, column, 0), 0, _larger)
    tl.store(parent + row * width + column, tl.program_id(0) * width + start, mask=inside)


@triton.jit
def _root(parent, place, active):
    """The root of each pixel, as far as it is known."""
    up = tl.load(parent + place, mask=active, other=0, volatile=True)
    moving = active & (up != place)
    while tl.max(moving.to(tl.int32), axis=0) > 0:
        place = tl.where(moving, up, place)
        up = tl.load(parent + place, mask=moving, other=0, volatile=True)
        moving = moving & (up != place)
    return place


@triton.jit
def _unite(
    labels, parent, large, numbers, height, width,
    BLOCK: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """Join the parts of vertical neighbours with equal labels."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    pixels = height * width
    start = map_.to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    below = (place < pixels) & (place >= width)
    mine = tl.load(labels + start + place, mask=below, other=-1)
    above = tl.load(labels + start + place - width, mask=below, other=-2)
    has_left = below & (place % width > 0)
    left = tl.load(labels + start + place - 1, mask=has_left, other=-3)
    corner = tl.load(labels + start + place - width - 1, mask=has_left, other=-4)
    # Where both runs continue to the left, the pixel there joins them.
    active = below & (mine == above) & ((left != mine) | (corner != mine))
    a, b = place, place - width
    while tl.max(active.to(tl.int32), axis=0) > 0:
        a = _root(parent + start, a, active)
        b = _root(parent + start, b, active)
        active = active & (a != b)
        low, high = tl.minimum(a, b), tl.maximum(a, b)
        old = tl.atomic_min(parent + start + high, low, mask=active)
        active = active & (old != high)
        a, b = tl.where(active, old, a), tl.where(active, low, b)


@triton.jit
def _flatten(
    labels, parent, counts, large, numbers, pixels,
    BLOCK: tl.constexpr, NOWHERE: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """Point every pixel to the root of its part; count the parts' pixels; find the largest label."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    start = map_.to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    root = _root(parent + start, place, inside)
    tl.store(parent + start + place, root, mask=inside)
    rest = tl.where(inside, root, NOWHERE)
    which = tl.min(rest, axis=0)
    while which < NOWHERE:  # one part after another: few meet in one block
        tl.atomic_add(counts + start + which, tl.sum((rest == which).to(tl.int32), axis=0))
        rest = tl.where(rest == which, NOWHERE, rest)
        which = tl.min(rest, axis=0)
    tl.atomic_max(numbers + map_, tl.max(tl.load(labels + start + place, mask=inside, other=0)))


@triton.jit
def _weigh(
    parent, counts, large, numbers, largest, pixels, least,
    BLOCK: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """Count the parts that are large enough to stay, and find the largest; ties go to the first."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    start = map_.to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    first = inside & (tl.load(parent + start + place, mask=inside, other=-1) == place)
    size = tl.load(counts + start + place, mask=first, other=0)
    stays = first & (size.to(tl.float32) >= least)
    tl.atomic_add(large + map_, tl.sum(stays.to(tl.int32)))
    key = size.to(tl.int64) * (1 << 31) + ((1 << 31) - 1 - place)
    tl.atomic_max(largest + map_, tl.max(tl.where(first, key, 0)))


@triton.jit
def _clear(
    parent, counts, large, labels, largest, grown, holes, gaps, pixels, least,
    VARIANTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the chosen map, with -1 where a part is too small, and list these pixels."""
    image = tl.program_id(1)
    chosen = VARIANTS - 1
    for back in tl.static_range(VARIANTS):
        variant = VARIANTS - 1 - back
        chosen = tl.where(_holds(large, labels, image * VARIANTS + variant), variant, chosen)
    taken = image * VARIANTS + chosen
    biggest = (1 << 31) - 1 - (tl.load(largest + taken) % (1 << 31))
    start = taken.to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    root = tl.load(parent + start + place, mask=inside, other=0)
    size = tl.load(counts + start + root, mask=inside, other=0)
    stays = (size.to(tl.float32) >= least) | (root == biggest)
    tl.store(grown + image.to(tl.int64) * pixels + place, tl.where(stays, root, -1), mask=inside)
    hole = (inside & (stays == 0)).to(tl.int32)
    slot = tl.atomic_add(gaps + image, tl.sum(hole)) + tl.cumsum(hole, 0) - 1
    tl.store(holes + image.to(tl.int64) * pixels + slot, place, mask=hole > 0)


@triton.jit
def _begin(grown, first, height, width, BLOCK: tl.constexpr):
    """Find the first pixel of each part: only one with other parts above and to the left can be it."""
    pixels = height * width
    image = tl.program_id(1).to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    part = tl.load(grown + image + place, mask=inside, other=-1)
    above = tl.load(grown + image + place - width, mask=inside & (place >= width), other=-2)
    left = tl.load(grown + image + place - 1, mask=inside & (place % width > 0), other=-2)
    tl.atomic_min(first + image + part, place, mask=inside & (part != above) & (part != left))


@triton.jit
def _list(grown, first, order, count, pixels, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """List the first pixels of all parts, unordered."""
    image = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    part = tl.load(grown + image * pixels + place, mask=inside, other=0)
    begins = (inside & (tl.load(first + image * pixels + part, mask=inside, other=-1) == place)).to(tl.int32)
    slot = tl.atomic_add(count + image, tl.sum(begins)) + tl.cumsum(begins, 0) - 1
    tl.store(order + image * MOST + slot, place, mask=(begins > 0) & (slot < MOST))


@triton.jit
def _count(order, numbers, pixels, MOST: tl.constexpr):
    """Number each part by how many parts begin before it; stored at its first pixel."""
    image = tl.program_id(1).to(tl.int64)
    mine = tl.load(order + image * MOST + tl.program_id(0) * 16 + tl.arange(0, 16))
    others = tl.load(order + image * MOST + tl.arange(0, MOST))
    number = tl.sum((others[None, :] < mine[:, None]).to(tl.int32), axis=1)
    tl.store(numbers + image * pixels + mine, number, mask=mine < pixels)


@triton.jit
def _number(grown, first, numbers, ids, pixels, BLOCK: tl.constexpr):
    image = tl.program_id(1).to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    part = tl.load(grown + image + place, mask=inside, other=0)
    begin = tl.load(first + image + part, mask=inside, other=0)
    tl.store(ids + image + place, tl.load(numbers + image + begin, mask=inside, other=0), mask=inside)


@triton.jit
def _offer(grown, holes, offers, count, pixels, width, step, SIDEWAYS: tl.constexpr, BLOCK: tl.constexpr):
    """One growth step: read every hole's neighbour `step` before it, then store all results."""
    for start in range(0, count, BLOCK):
        number = start + tl.arange(0, BLOCK)
        there = number < count
        place = tl.load(holes + number, mask=there, other=0)
        mine = tl.load(grown + place, mask=there, other=0)
        offered = tl.load(grown + place - step, mask=there & _before(place, step, pixels, width, SIDEWAYS), other=-1)
        tl.store(offers + number, tl.where(mine < 0, offered, mine), mask=there)
    tl.debug_barrier()
    for start in range(0, count, BLOCK):
        number = start + tl.arange(0, BLOCK)
        there = number < count
        place = tl.load(holes + number, mask=there, other=0)
        tl.store(grown + place, tl.load(offers + number, mask=there, other=0), mask=there)
    tl.debug_barrier()


@triton.jit
def _before(place, step, pixels, width, SIDEWAYS: tl.constexpr):
    """Whether there is a pixel `step` before each; SIDEWAYS: in the same row."""
    source = place - step
    there = (source >= 0) & (source < pixels)
    if SIDEWAYS:
        there = there & (source // width == place // width)
    return there


@triton.jit
def _taken(grown, place, mine, there, open_, step):
    """The same step where every lane keeps its own hole."""
    offered = tl.load(grown + place - step, mask=there & open_ & (mine < 0), other=-1, volatile=True)
    tl.debug_barrier()
    mine = tl.where(mine < 0, offered, mine)
    tl.store(grown + place, mine, mask=there)
    tl.debug_barrier()
    return mine


@triton.jit
def _grow(grown, holes, offers, gaps, height, width, BLOCK: tl.constexpr, FEW: tl.constexpr):
    """Parts grow into the holes by one pixel per round, so each stays connected."""
    image = tl.program_id(0).to(tl.int64)
    pixels = height * width
    count = tl.load(gaps + image)
    grown += image * pixels
    holes += image * pixels
    offers += image * pixels
    left = count
    if count <= FEW:
        number = tl.arange(0, FEW)
        there = number < count
        place = tl.load(holes + number, mask=there, other=0)
        up, low = _before(place, width, pixels, width, False), _before(place, -width, pixels, width, False)
        before, after = _before(place, 1, pixels, width, True), _before(place, -1, pixels, width, True)
        # All are -1. With a constant here, Triton 3.6 would assume that a lane's pixels stay equal in later rounds.
        mine = tl.load(grown + place, mask=there, other=-1)
        while left > 0:
            mine = _taken(grown, place, mine, there, up, width)
            mine = _taken(grown, place, mine, there, low, -width)
            mine = _taken(grown, place, mine, there, before, 1)
            mine = _taken(grown, place, mine, there, after, -1)
            left = tl.sum((there & (mine < 0)).to(tl.int32), axis=0)
    while left > 0:
        _offer(grown, holes, offers, count, pixels, width, width, False, BLOCK)
        _offer(grown, holes, offers, count, pixels, width, -width, False, BLOCK)
        _offer(grown, holes, offers, count, pixels, width, 1, True, BLOCK)
        _offer(grown, holes, offers, count, pixels, width, -1, True, BLOCK)
        left = 0
        for start in range(0, count, BLOCK):
            number = start + tl.arange(0, BLOCK)
            mine = tl.load(offers + number, mask=number < count, other=0)
            left += tl.sum((mine < 0).to(tl.int32))
