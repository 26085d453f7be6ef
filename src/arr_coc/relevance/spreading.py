"""Spreading: where nobody knows what the question is about, every separate thing gets its share.

By information alone a loud thing takes the whole budget, and a pale line of writing beside it gets nothing. So cells are taken
in turn: the best of every thing, the second best of every thing, and so on; a small thing is kept whole, a large one gets the rest.
A thing is a group of neighbouring cells with edges that the ground does not have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from arr_coc.relevance.knowing import kept
from arr_coc.relevance.strategy import FAINT_EDGES, edge_energy
from arr_coc.selectors.base import Sight

GROUND = 0.25  # of the cells are ground at least; what has more than twice their edges is something
NOTHING = -1  # number of the ground, among those of things


def things(sight: Sight) -> torch.Tensor:
    """Which thing each candidate belongs to: numbers `[M]`, `NOTHING` for ground."""
    energy = torch.zeros(sight.grid.n)
    energy[sight.candidates] = kept(sight, "edge energy", edge_energy)
    found, start, first = [], 0, 0
    for view in sight.grid.views:
        mine = energy[start : start + view.n].view(view.t, view.h, view.w)
        for frame in mine:
            numbers = neighbours(frame > 2 * frame.flatten().quantile(GROUND) + FAINT_EDGES)
            found.append(torch.where(numbers == NOTHING, NOTHING, numbers + first).flatten())
            first += view.h * view.w
        start += view.n
    return torch.cat(found)[sight.candidates]


def neighbours(there: torch.Tensor) -> torch.Tensor:
    """A number for each cell `[h, w]`: the same for cells that are `there` and touch, `NOTHING` for all others."""
    own = torch.arange(there.numel(), dtype=torch.float64).view(there.shape) + 1
    numbers = torch.where(there, own, 0.0)
    while True:
        spread = F.max_pool2d(numbers[None, None], 3, 1, 1)[0, 0]
        spread = torch.where(there, spread, 0.0)
        if torch.equal(spread, numbers):
            return numbers.long() - 1
        numbers = spread


def in_turn(relevance: torch.Tensor, count: int, things: torch.Tensor) -> torch.Tensor:
    """The places `[count]` of the cells that are kept, sorted: of every thing as many, or all of it; ground comes last.

    >>> in_turn(torch.tensor([0.9, 0.8, 0.7, 0.2, 0.1]), 3, torch.tensor([0, 0, 0, 1, -1])).tolist()
    [0, 1, 3]
    """
    order = relevance.argsort(descending=True, stable=True)
    grouped = order[things[order].argsort(stable=True)]  # by thing, the most relevant first
    _, sizes = torch.unique_consecutive(things[grouped], return_counts=True)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    turn = torch.empty_like(grouped)
    turn[grouped] = torch.arange(len(grouped)) - starts
    turn[things == NOTHING] += len(things)
    return order[turn[order].argsort(stable=True)][:count].sort().values
