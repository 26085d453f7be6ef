"""Attending: from relevance to the kept cells.

- how many: a given count, the fewest that hold a share of the relevance (`mass`), or by its entropy (`auto`);
- which: the most relevant ones. Near-duplicates are picked last. With a trained layer, whole lines of text come first.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from arr_coc.selectors.scoring import cosine_matrix, unit_vectors
from arr_coc.types.budget import count_for_mass
from arr_coc.types.grid import Cells

AUTO_MIN, AUTO_MAX = 64, 400  # cells under `auto`
PER_EFFECTIVE_CELL = 1.25  # cells kept for each effective cell, exp(entropy) of the relevance
DUPLICATE = 0.98  # cosine from which two tokens show the same
# Bonus of text in a row whose best cell has probability 1, and the power of that probability by which it falls. The universal
# layer learned less about labels: for it, the lines of its surest cells are completed first (benchmarks/transfer.py).
LINES, UNIVERSAL_LINES = (0.9, 2), (1.5, 8)
RING = 8  # cells kept in each ring around the fixations
POOL = 2  # how far down the ranking duplicates are searched, in multiples of the budget


def how_many(relevance: torch.Tensor, k: int | None, mass: float | None = None) -> int:
    """How many of the cells `[M]` to keep: `k`, the fewest that hold `mass` of the relevance, or `auto`."""
    if k is not None:
        return min(k, len(relevance))
    return auto_count(relevance) if mass is None else count_for_mass(relevance, mass)


def auto_count(relevance: torch.Tensor) -> int:
    """How many of the cells `[M]` to keep under `auto`: more, the wider the relevance is spread.

    With H the entropy of the relevance above its median, exp(H) is the effective number of relevant cells. One hot region
    gives the minimum, a flat map the maximum.

    >>> auto_count(torch.cat([torch.zeros(880), torch.ones(20)])), auto_count(torch.ones(900))
    (64, 400)
    """
    above = (relevance.double() - relevance.double().median()).clamp(min=0)
    if not bool(above.sum() > 0):
        return min(AUTO_MAX, len(relevance))
    chances = above / above.sum()
    entropy = -(chances * chances.clamp(min=1e-300).log()).sum()
    return min(len(relevance), AUTO_MAX, max(AUTO_MIN, math.ceil(PER_EFFECTIVE_CELL * float(entropy.exp()))))


def favour_lines(
    chances: torch.Tensor,
    text: torch.Tensor,
    grid: Cells,
    candidates: torch.Tensor,
    bonus: tuple[float, float] = LINES,
) -> torch.Tensor:
    """A layer's probabilities `[M]` with a bonus for text in rows where the layer is sure of a cell: `[M]`.

    A layer is surest of an amount; the word that says which amount it is lies at the other end of the line. Text likelihoods
    `text` `[M]` of a row therefore count as far as its best cell is sure. Without text nothing changes.

    >>> from arr_coc.types.grid import Grid
    >>> favour_lines(torch.tensor([0.9, 0.1, 0.2, 0.1]), torch.tensor([0.5, 0.5, 0.5, 0.0]), Grid(1, 2, 2), torch.arange(4))
    tensor([1.6290, 0.8290, 0.2360, 0.1000])
    """
    top = text.max() if len(text) else text.new_zeros(())
    if not bool(top > 0):
        return chances
    whole = chances.new_zeros(grid.n)
    whole[candidates] = chances
    parts = zip(torch.split(whole, [view.n for view in grid.views]), grid.views, strict=True)
    rows = [part.view(-1, view.w) for part, view in parts]  # rows of every frame and tile
    surest = torch.cat([row.amax(1, keepdim=True).expand_as(row).flatten() for row in rows])[candidates]
    weight, power = bonus
    return chances + weight * surest**power * text / top


def foveate(relevance: torch.Tensor, gaze: torch.Tensor, count: int) -> torch.Tensor:
    """Indices `[count]`, sorted, of cells whose density follows the foveal falloff `gaze` `[M]` in (0, 1].

    Magnification is by length, so the share of the cells kept at an eccentricity goes with its square. Cells are ordered by
    the falloff. Where that share reaches 1, around the fixations, all are kept; the others are divided into rings of equal
    budget, each of which keeps its most relevant cells. The cell that is looked at is always kept.

    >>> foveate(torch.tensor([0.0, 0, 0, 1, 0, 0]), torch.tensor([1.0, 0.5, 0.2, 0.1, 0.1, 0.1]), 2).tolist()
    [0, 3]
    """
    if count <= 0 or len(gaze) == 0:
        return torch.zeros(0, dtype=torch.long)
    order = gaze.argsort(descending=True, stable=True)
    share = _capped(gaze[order].double().square(), min(count, len(gaze)))
    whole = max(1, int((share > 1 - 1e-9).sum()))
    order, near = order[whole:], order[:whole]
    ring = (share[whole:].cumsum(0) / RING - 1e-6).floor().long()  # of each cell
    ranked = torch.full_like(gaze, -1, dtype=torch.double)
    for number in range(int(ring[-1]) + 1 if len(ring) else 0):
        members = order[ring == number]
        best = members[relevance[members].argsort(descending=True, stable=True)]
        ranked[best] = number * RING + torch.arange(len(best), dtype=torch.double)
        ranked[best[RING:]] += len(gaze) + count  # above the ring's budget: only if others are short of cells
    ranked[near] = -1
    return ranked.argsort(stable=True)[:count].sort().values


def _capped(weights: torch.Tensor, total: int) -> torch.Tensor:
    """Falling weights `[M]` scaled to sum up to `total`, none above 1."""
    left = weights.flip(0).cumsum(0).flip(0)  # the sum from each on
    full = torch.arange(len(weights))
    fits = weights * (total - full) <= left * (1 + 1e-12)
    first = int(fits.nonzero()[0, 0]) if bool(fits.any()) else len(weights)  # how many of the first are 1
    scaled = (
        weights[first:] * ((total - first) / left[first:].max().clamp(min=1e-300)) if first < len(weights) else left[:0]
    )
    return torch.cat([torch.ones(first, dtype=weights.dtype), scaled])


def most_relevant(relevance: torch.Tensor, count: int, tokens: torch.Tensor | None = None) -> torch.Tensor:
    """Indices `[count]` of the most relevant cells, sorted; ties go to the earlier cell.

    With `tokens` `[M, D]`, near-duplicates of a more relevant cell are picked last.
    """
    order = relevance.argsort(descending=True, stable=True)
    if tokens is None or count <= 1 or count >= len(order):
        return order[:count].sort().values
    pool = order[: min(len(order), POOL * count)]
    similar = cosine_matrix(unit_vectors(tokens.detach()[pool.to(tokens.device)])).cpu().numpy() >= DUPLICATE  # [P, P]
    chosen = _without_duplicates(similar, count)
    return pool[torch.from_numpy(chosen)].sort().values


def _without_duplicates(similar: np.ndarray, count: int) -> np.ndarray:
    """`count` places of a ranking without duplicates as long as there are such, then the best of the rest."""
    covered = np.zeros(len(similar), bool)
    chosen: list[int] = []
    for place in range(len(similar)):
        if not covered[place]:
            chosen.append(place)
            covered |= similar[place]
            if len(chosen) == count:
                break
    taken = np.zeros(len(similar), bool)
    taken[chosen] = True
    rest = np.flatnonzero(~taken)[: count - len(chosen)]
    return np.concatenate([np.array(chosen, dtype=np.int64), rest])
