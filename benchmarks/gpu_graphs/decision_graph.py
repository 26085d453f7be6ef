"""From a texture's cells and a question to kept cells, on the device, without a wait for the host.

The same as `arr_coc.realize(texture, question, grid, budget=COUNT, using=embeddings)` with default settings, for a fixed grid
and count: decisions that `relevance/` makes on the host are tensor operations here, so that a CUDA graph can hold them. One
differs: where a question couples with nothing in particular, `realize` gives every separate thing its share, and here the
cells with most information are kept, as without a question. The question comes as its vector.

Kernels: the relevance of all cells in one launch, ranks in a second, kept cells in a third. A cell's rank is the number of
cells before it, and a kept cell's slot the number of kept cells before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from arr_coc.errors import ArrCocError
from arr_coc.relevance.knowing import NEAR_CELLS, TEXT_THRESHOLD
from arr_coc.relevance.realizing import SHARPNESS
from arr_coc.relevance.strategy import EVEN_EDGES, FAINT_EDGES, PALE
from arr_coc.selectors.controls import even_cells
from arr_coc.texture.kernels.dispatch import device_guard, use_kernel
from arr_coc.types.grid import Grid

MAX_CELLS = 1 << 14  # that the kernels can rank
BLOCK = 64  # cells that a program ranks
CHANNELS = ("edges", "edges_inverted", "highpass", "distance", "saliency", "motion", "eccentricity", "text")


@dataclass(frozen=True, eq=False)
class PictureScores:
    """Scores of the cells that do not depend on the question."""

    stacked: torch.Tensor  # `[4, M]`, contiguous: information, salience, text, energy


class DecisionGraph:
    """Keeps `count` cells of a `grid` (rows, columns) over a texture of `size`."""

    def __init__(
        self, size: tuple[int, int], grid: tuple[int, int], count: int, device: torch.device | str = "cuda"
    ) -> None:
        rows, columns = grid
        if not 1 <= count <= rows * columns:
            raise ArrCocError(f"expected to keep 1 to {rows * columns} cells, got {count}")
        self.count = count
        height, width = size
        side = math.sqrt(width / columns * height / rows)
        self._per_distance = math.hypot(height, width) / 2 / (NEAR_CELLS * side)
        self._even = even_cells(Grid(1, rows, columns), count).to(device)

    def score(self, cells: torch.Tensor) -> PictureScores:
        """Cells `[8, h, w]` of `CHANNELS`, each pooled by its rule, to scores."""
        dark, light, detail, distance, stands_out, moves, outside, text = cells.float().flatten(1)
        information = (
            0.4 * _to_unit(torch.maximum(dark, light))
            + 0.3 * _to_unit(detail)
            + 0.3 * (1 - (distance * self._per_distance).clamp(max=1))
        )
        salience = (0.6 * _to_unit(stands_out) + 0.4 * _to_unit(moves)) * (1 - 0.5 * outside)
        return PictureScores(torch.stack([information, salience, text, dark + light]))

    def decide(
        self, scores: PictureScores, features: torch.Tensor | None = None, question: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Kept cells `[count]`, sorted, and the relevance `[M]`.

        features: the picture's compressed features by cell `[k, M]`. question: its vector `[k]`, optional.
        """
        if scores.stacked.shape[1] <= MAX_CELLS and use_kernel("decision", scores.stacked):
            with device_guard(scores.stacked.device):
                return keep(scores.stacked, self._even, features, question)
        information, salience, text, energy = scores.stacked
        written = (text > TEXT_THRESHOLD).float()
        any_written = written.amax() > 0
        spread_out = torch.where(energy.mean() > 0, energy.std() / energy.mean().clamp(min=1e-30), 0.0)
        void = (energy.amax() < FAINT_EDGES) | ((spread_out < EVEN_EDGES) & ~any_written)
        on_writing = (salience * written).sum() / written.sum().clamp(min=1)
        pale = any_written & (on_writing < PALE * salience.mean())
        writing = written.mean()
        if features is None or question is None:
            coupling = torch.zeros_like(information)
        else:
            found = question.float() @ features.float()
            low, high = torch.aminmax(found)
            coupling = torch.where(high > low, (found - low) / (high - low), 0.0)
        exploit = (coupling.amax() > coupling.amin()).float()  # 0: the question couples with nothing in particular
        explore = 1 - exploit
        total = exploit * coupling + (0.1 + 0.9 * explore) * information
        total = total + 0.1 * (~pale).float() * (1 - writing) * salience
        total = total + (0.2 + 0.8 * explore) * (4 * writing).clamp(max=1) * text
        relevance = _to_unit(total) ** SHARPNESS
        order = relevance.argsort(descending=True, stable=True)[: self.count].sort().values
        return torch.where(void, self._even, order), relevance


def _to_unit(values: torch.Tensor) -> torch.Tensor:
    """Values from 0 on, divided by their maximum; all 0 where that is 0."""
    top = values.amax()
    return torch.where(top > 0, values / top, 0.0)


def keep(
    scores: torch.Tensor, even: torch.Tensor, features: torch.Tensor | None, question: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept cells int64 `[count]`, sorted, and the relevance `[M]`.

    scores: `[4, M]` float32, contiguous: information, salience, text, energy. even: int64 `[count]`, for a blank picture. features `[k, M]` and question `[k]`: both or neither.
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
        words.stride(0), TEXT_THRESHOLD, FAINT_EDGES, EVEN_EDGES, PALE,
        ASKED=asked, POWER=SHARPNESS, EVERY=every, num_warps=16 if every > 2048 else 8, enable_fp_fusion=False,
    )  # fmt: skip
    ranks = torch.empty(count, dtype=torch.int32, device=scores.device)
    _rank[(triton.cdiv(count, BLOCK),)](relevance, ranks, count, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
    kept = torch.empty_like(even)
    _list[(1,)](ranks, even, void, kept, count, len(even), EVERY=every, num_warps=8, enable_fp_fusion=True)
    return kept, relevance


@triton.jit
def _unit(values):
    """Values from 0 on, divided by their maximum; all 0 where that is 0."""
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
    """The number of cells before each: those with a higher value, and earlier ones with the same."""
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
