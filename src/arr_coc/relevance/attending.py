"""Attending: from relevance to the cells that are kept.

- how many: a count is given, or as few as hold a share of the relevance (`mass`), or it follows from how that is spread
  (`auto`);
- which: the most relevant ones, but near-copies of what is chosen already wait until nothing else is left; where a learned
  layer judged, a line of writing is kept whole before anything beside it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from arr_coc.selectors.similarity import cosines, units
from arr_coc.types.budget import holding
from arr_coc.types.grid import Cells

FEWEST, MOST = 64, 400  # cells under `auto`
PER_EFFECTIVE = 1.25  # cells kept for each that the relevance is effectively spread over
COPY = 0.98  # tokens with a larger cosine show the same
LINE = 0.9  # what writing counts for in the row of a cell that is surely relevant; beside a chance of a half, a quarter of it
POOL = 2  # times the budget: how far down the ranking near-copies are looked for


def how_many(relevance: torch.Tensor, k: int | None, mass: float | None = None) -> int:
    """How many of the cells `[M]` a budget keeps: `k` of them, or as many as hold `mass` of the relevance, or `auto`."""
    if k is not None:
        return min(k, len(relevance))
    return automatic(relevance) if mass is None else holding(relevance, mass)


def automatic(relevance: torch.Tensor) -> int:
    """How many of the cells `[M]` to keep where the caller leaves it open: more the wider the relevance is spread.

    The part above the median, taken as chances, has an entropy H; exp(H) is the number of equally relevant cells with the
    same entropy. One hot region gives few, a flat map the most that is allowed.

    >>> automatic(torch.cat([torch.zeros(880), torch.ones(20)])), automatic(torch.ones(900))
    (64, 400)
    """
    above = (relevance.double() - relevance.double().median()).clamp(min=0)
    if not bool(above.sum() > 0):
        return min(MOST, len(relevance))
    chances = above / above.sum()
    entropy = -(chances * chances.clamp(min=1e-300).log()).sum()
    return min(len(relevance), MOST, max(FEWEST, math.ceil(PER_EFFECTIVE * float(entropy.exp()))))


def lines_first(chances: torch.Tensor, text: torch.Tensor, grid: Cells, candidates: torch.Tensor) -> torch.Tensor:
    """What a layer's chances `[M]` of the candidates are worth `[M]` when cells are kept: more in a line that it is sure of.

    A layer is surest of amounts, say, and the word that tells which of them is the total stands at the other end of the line. So
    the `text` `[M]` in a row counts as far as the row's best cell is sure. Where nothing is written nothing changes.

    >>> from arr_coc.grid import Grid
    >>> lines_first(torch.tensor([0.9, 0.1, 0.2, 0.1]), torch.tensor([0.5, 0.5, 0.5, 0.0]), Grid(1, 2, 2), torch.arange(4))
    tensor([1.6290, 0.8290, 0.2360, 0.1000])
    """
    top = text.max() if len(text) else text.new_zeros(())
    if not bool(top > 0):
        return chances
    whole = chances.new_zeros(grid.n)
    whole[candidates] = chances
    parts = zip(torch.split(whole, [view.n for view in grid.views]), grid.views, strict=True)
    rows = [part.view(-1, view.w) for part, view in parts]  # of every frame and every tile
    surest = torch.cat([row.amax(1, keepdim=True).expand_as(row).flatten() for row in rows])[candidates]
    return chances + LINE * surest.square() * text / top


def most_relevant(relevance: torch.Tensor, count: int, tokens: torch.Tensor | None = None) -> torch.Tensor:
    """The places `[count]` of the most relevant cells, sorted; of equals the first.

    With `tokens` `[M, D]`, a cell that shows the same as a more relevant one is passed over while there are others.
    """
    order = relevance.argsort(descending=True, stable=True)
    if tokens is None or count <= 1 or count >= len(order):
        return order[:count].sort().values
    pool = order[: min(len(order), POOL * count)]
    alike = cosines(units(tokens.detach()[pool.to(tokens.device)])).cpu().numpy() >= COPY  # [P, P]
    chosen = _without_copies(alike, count)
    return pool[torch.from_numpy(chosen)].sort().values


def _without_copies(alike: np.ndarray, count: int) -> np.ndarray:
    """`count` places of a ranking, each unlike all before it as long as there are such; then the best of the rest."""
    covered = np.zeros(len(alike), bool)
    chosen: list[int] = []
    for place in range(len(alike)):
        if not covered[place]:
            chosen.append(place)
            covered |= alike[place]
            if len(chosen) == count:
                break
    taken = np.zeros(len(alike), bool)
    taken[chosen] = True
    rest = np.flatnonzero(~taken)[: count - len(chosen)]
    return np.concatenate([np.array(chosen, dtype=np.int64), rest])
