"""Segments made connected on the GPU: parts found, the small ones given to neighbours, the rest numbered row by row.

The same as `connect` in `texture/slic.py`. Parts are found by union and find: each pixel knows an earlier pixel of its part,
and chains that meet are joined by the smaller number. Of the maps that `superpixels.py` makes of an image, one for each weight
of place, the first that holds together is taken; only that one's gaps are filled (`filling.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels.filling import fill
from arr_coc.texture.slic import COMPACTNESS, SEGMENTS, SMALLEST

BLOCK = 256
MOST = 256  # parts that can be large enough to stay, rounded up: each is a quarter of the mean segment at least
NOWHERE = (1 << 31) - 1


@dataclass(frozen=True)
class Weights:
    """Some of the weights of place, one after another: from number `first` on, `count` of them."""

    first: int
    count: int


class Connecting:
    """Buffers for maps `[B * variants, h, w]`, and the steps. `ids` int32 `[B, h, w]` and `count` int32 `[B]` come out."""

    def __init__(
        self, batch: int, size: tuple[int, int], device: torch.device, variants: int = len(COMPACTNESS)
    ) -> None:
        pixels = size[0] * size[1]
        self.batch, self.size, self.variants = batch, size, variants
        maps = batch * variants

        def room(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        self.parent = room(maps, pixels)
        self.zeros = room(maps * (pixels + 2) + 2 * batch)  # all that starts at zero, so that one fill does
        self.counts, rest = self.zeros.split([maps * pixels, 2 * maps + 2 * batch])
        self.large, self.labels, self.gaps, self.count = rest.split([maps, maps, batch, batch])
        self.largest = torch.empty(maps, dtype=torch.int64, device=device)
        self.tall = room(batch * (pixels + MOST))  # all that starts beyond the last pixel
        self.first, self.order = self.tall.split([batch * pixels, batch * MOST])
        self.grown, self.holes, self.offer = room(batch, pixels), room(batch, pixels), room(batch, pixels)
        self.numbers, self.ids = room(batch, pixels), room(batch, *size)

    def write(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels int32 `[B * variants, h, w]` to connected ids int32 `[B, h, w]`, numbered row by row."""
        self.begin()
        self.join(labels, Weights(0, self.variants))
        return self.finish()

    def begin(self) -> None:
        """Nothing is known of any map."""
        self.zeros.zero_()
        self.largest.zero_()
        self.tall.fill_(NOWHERE)

    def join(self, labels: torch.Tensor, weights: Weights) -> None:
        """Find the parts of some maps of each image, where those before them do not hold together."""
        height, width = self.size
        pixels = height * width
        maps = self.batch * weights.count
        settled = (self.large, self.labels)
        which: dict[str, Any] = {"FROM": weights.first, "COUNT": weights.count, "VARIANTS": self.variants}
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

    def finish(self) -> torch.Tensor:
        """Take one map of each image, fill its gaps and number its parts: ids int32 `[B, h, w]`."""
        height, width = self.size
        pixels = height * width
        grid = (triton.cdiv(pixels, BLOCK), self.batch)
        _clear[grid](
            self.parent, self.counts, self.large, self.labels, self.largest, self.grown, self.holes, self.gaps,
            pixels, SMALLEST * pixels / SEGMENTS, VARIANTS=self.variants, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
        fill(self.grown, self.holes, self.offer, self.gaps, self.size)
        _begin[grid](self.grown, self.first, height, width, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
        _list[grid](
            self.grown, self.first, self.order, self.count, pixels, MOST=MOST, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )  # fmt: skip
        _count[(MOST // 16, self.batch)](
            self.order, self.numbers, pixels, MOST=MOST, num_warps=4, enable_fp_fusion=True
        )
        _number[grid](
            self.grown, self.first, self.numbers, self.ids, pixels, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
        return self.ids


@triton.jit
def _holds(large, numbers, one):
    """Whether a map holds together: at least half as many parts are large enough to stay as there are labels."""
    return 2 * tl.maximum(tl.load(large + one), 1) >= tl.load(numbers + one) + 1


@triton.jit
def _which(program, large, numbers, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr):
    """The map that a program works on; -1: its image holds together by one before number FROM."""
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
    """Each pixel's parent is the first of its run of equal labels along the row."""
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
    """The first pixel of the part, as far as it is known."""
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
    """Join the parts of pixels above each other that have one label."""
    map_ = _which(tl.program_id(1), large, numbers, FROM, COUNT, VARIANTS)
    if map_ < 0:
        return
    pixels = height * width
    start = map_.to(tl.int64) * pixels
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    below = (place < pixels) & (place >= width)
    mine = tl.load(labels + start + place, mask=below, other=-1)
    above = tl.load(labels + start + place - width, mask=below, other=-2)
    beside = below & (place % width > 0)
    left = tl.load(labels + start + place - 1, mask=beside, other=-3)
    corner = tl.load(labels + start + place - width - 1, mask=beside, other=-4)
    # Where both runs go on to the left, the pixel there has joined them.
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
    """Every pixel's parent becomes the first pixel of its part; parts are counted, and the largest label is found."""
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
    while which < NOWHERE:  # one part after another: few meet in a stretch of a row
        tl.atomic_add(counts + start + which, tl.sum((rest == which).to(tl.int32), axis=0))
        rest = tl.where(rest == which, NOWHERE, rest)
        which = tl.min(rest, axis=0)
    tl.atomic_max(numbers + map_, tl.max(tl.load(labels + start + place, mask=inside, other=0)))


@triton.jit
def _weigh(
    parent, counts, large, numbers, largest, pixels, least,
    BLOCK: tl.constexpr, FROM: tl.constexpr, COUNT: tl.constexpr, VARIANTS: tl.constexpr,
):  # fmt: skip
    """How many parts are large enough to stay, and which is the largest: of equals the first."""
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
    """The map that is taken, with -1 where a part is too small to stay; and a list of these pixels."""
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
    """The first pixel of each part: only one without the same above and to the left can be it."""
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
    """The first pixels of all parts, in no order."""
    image = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    part = tl.load(grown + image * pixels + place, mask=inside, other=0)
    begins = (inside & (tl.load(first + image * pixels + part, mask=inside, other=-1) == place)).to(tl.int32)
    slot = tl.atomic_add(count + image, tl.sum(begins)) + tl.cumsum(begins, 0) - 1
    tl.store(order + image * MOST + slot, place, mask=(begins > 0) & (slot < MOST))


@triton.jit
def _count(order, numbers, pixels, MOST: tl.constexpr):
    """A part's number is how many parts begin before it; kept at its first pixel."""
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
