"""Gaps in a map of segments, filled by what stands around them: one pixel a round from above, below, left and right in turn.

One program an image, because every step waits for the one before it. Where the gaps are few, every lane keeps its own pixels from
round to round; where they are many, they are gone through in portions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FEW = 4096  # pixels to fill up to which every lane keeps its own


def fill(
    grown: torch.Tensor, holes: torch.Tensor, offers: torch.Tensor, gaps: torch.Tensor, size: tuple[int, int]
) -> None:
    """Fill in maps int32 `[B, h * w]` what is -1. holes: where that is, `gaps` `[B]` places each; offers: room for as many."""
    height, width = size
    _grow[(len(grown),)](
        grown, holes, offers, gaps, height, width, BLOCK=1024, FEW=FEW, num_warps=16, enable_fp_fusion=True
    )


@triton.jit
def _offer(grown, holes, offers, count, pixels, width, step, SIDEWAYS: tl.constexpr, BLOCK: tl.constexpr):
    """One step of growing: every hole is offered what its neighbour `step` before it has; then all take it."""
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
    """Whether there is a pixel `step` before each, SIDEWAYS: in the same row."""
    source = place - step
    there = (source >= 0) & (source < pixels)
    if SIDEWAYS:
        there = there & (source // width == place // width)
    return there


@triton.jit
def _taken(grown, place, mine, there, open_, step):
    """The same step where every lane holds its own hole."""
    offered = tl.load(grown + place - step, mask=there & open_ & (mine < 0), other=-1, volatile=True)
    tl.debug_barrier()
    mine = tl.where(mine < 0, offered, mine)
    tl.store(grown + place, mine, mask=there)
    tl.debug_barrier()
    return mine


@triton.jit
def _grow(grown, holes, offers, gaps, height, width, BLOCK: tl.constexpr, FEW: tl.constexpr):
    """Parts grow by one pixel a round into the gaps, so each stays connected."""
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
        # All of them are -1. Said outright, Triton 3.6 takes a lane's pixels for equal in every later round, too.
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
