"""A question's answer by kernels: relevance of all cells in one launch, ranks in a second, kept cells in a third.

The sums are those of `deciding.py`. A cell's rank is how many cells come before it, which every cell can count by itself; and
a kept cell's slot is how many kept ones come before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.relevance.balancing import PEAKED
from arr_coc.relevance.knowing import WRITING
from arr_coc.relevance.strategy import EVEN_EDGES, FAINT_EDGES, PALE

BLOCK = 64  # cells that are ranked by a program


def keep(
    scores: torch.Tensor, even: torch.Tensor, features: torch.Tensor | None, question: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept cells int64 `[count]`, sorted, and the relevance `[M]`.

    scores: `[4, M]` float32, contiguous: information, salience, text, energy. even: int64 `[count]`, for a picture with
    nothing in it. features `[k, M]` and question `[k]`: both or neither.
    """
    count = int(scores.shape[1])
    relevance = torch.empty(count, dtype=torch.float32, device=scores.device)
    void = torch.empty(1, dtype=torch.int32, device=scores.device)
    asked = features is not None and question is not None
    found = scores if features is None else features
    words = scores if question is None else question
    every = triton.next_power_of_2(count)
    _weigh[(1,)](
        scores, found, words, relevance, void, count, int(found.shape[0]), found.stride(0), found.stride(1),
        words.stride(0), WRITING, FAINT_EDGES, EVEN_EDGES, PALE,
        ASKED=asked, POWER=PEAKED, EVERY=every, num_warps=16 if every > 2048 else 8, enable_fp_fusion=False,
    )  # fmt: skip
    ranks = torch.empty(count, dtype=torch.int32, device=scores.device)
    _rank[(triton.cdiv(count, BLOCK),)](relevance, ranks, count, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
    kept = torch.empty_like(even)
    _list[(1,)](ranks, even, void, kept, count, len(even), EVERY=every, num_warps=8, enable_fp_fusion=True)
    return kept, relevance


@triton.jit
def _unit(values):
    """Values from 0 on, with the largest at 1; all 0 where there is nothing."""
    top = tl.max(values, axis=0)
    return values / tl.where(top > 0, top, float("inf"))


@triton.jit
def _weigh(
    scores, features, question, relevance, void, count, depth, by_depth, by_cell, by_word, writing, faint, even, pale,
    ASKED: tl.constexpr, POWER: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    cell = tl.arange(0, EVERY)
    there = cell < count
    information = tl.load(scores + cell, mask=there, other=0.0)
    salience = tl.load(scores + count + cell, mask=there, other=0.0)
    text = tl.load(scores + 2 * count + cell, mask=there, other=0.0)
    energy = tl.load(scores + 3 * count + cell, mask=there, other=0.0)
    written = tl.where(there & (text > writing), 1.0, 0.0)
    letters = tl.sum(written, axis=0)
    mean = tl.sum(energy, axis=0) / count
    off = tl.where(there, energy - mean, 0.0)
    spread = tl.sqrt(tl.sum(off * off, axis=0) / tl.maximum(count - 1, 1))
    spread = tl.where(mean > 0, spread / tl.maximum(mean, 1e-30), 0.0)
    nothing = (tl.max(energy, axis=0) < faint) | ((spread < even) & (letters == 0))
    tl.store(void, nothing.to(tl.int32))
    on_writing = tl.sum(salience * written, axis=0) / tl.maximum(letters, 1.0)
    dull = (letters > 0) & (on_writing < pale * tl.sum(salience, axis=0) / count)
    coupling = tl.zeros([EVERY], tl.float32)
    exploit = 0.0
    if ASKED:
        for number in range(depth):
            weight = tl.load(question + number * by_word).to(tl.float32)
            at = features + number * by_depth + cell * by_cell
            coupling += weight * tl.load(at, mask=there, other=0.0).to(tl.float32)
        low = tl.min(tl.where(there, coupling, float("inf")), axis=0)
        high = tl.max(tl.where(there, coupling, -float("inf")), axis=0)
        coupling = (coupling - low) / tl.where(high > low, high - low, float("inf"))
        exploit = tl.where(high > low, 1.0, 0.0)
    explore = 1 - exploit
    share = letters / count
    total = exploit * coupling + (0.1 + 0.9 * explore) * information
    total += 0.1 * tl.where(dull, 0.0, 1.0) * (1 - share) * salience
    total += (0.2 + 0.8 * explore) * tl.minimum(4 * share, 1.0) * text
    value = _unit(tl.where(there, total, 0.0))
    peaked = value
    for _ in tl.static_range(POWER - 1):
        peaked *= value
    tl.store(relevance + cell, peaked, mask=there)


@triton.jit
def _rank(relevance, ranks, count, BLOCK: tl.constexpr):
    """How many cells come before each: those with more, and of equals the earlier ones."""
    mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(relevance + mine, mask=mine < count, other=0.0)
    before = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, 128):
        other = start + tl.arange(0, 128)
        against = tl.load(relevance + other, mask=other < count, other=-1.0)[None, :]
        first = (against > value[:, None]) | ((against == value[:, None]) & (other[None, :] < mine[:, None]))
        before += tl.sum(first.to(tl.int32), axis=1)
    tl.store(ranks + mine, before, mask=mine < count)


@triton.jit
def _list(ranks, even, void, kept, count, wanted, EVERY: tl.constexpr):
    cell = tl.arange(0, EVERY)
    stays = (tl.load(ranks + cell, mask=cell < count, other=1 << 30) < wanted).to(tl.int32)
    slot = tl.cumsum(stays, 0) - 1
    nothing = tl.load(void) > 0
    regular = tl.load(even + cell, mask=cell < tl.where(nothing, wanted, 0), other=0)
    tl.store(kept + cell, regular, mask=cell < tl.where(nothing, wanted, 0))
    tl.store(kept + slot, cell.to(tl.int64), mask=(stays > 0) & (slot < tl.where(nothing, 0, wanted)))
