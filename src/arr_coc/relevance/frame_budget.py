"""Sharing: one budget for all moments of a video. What was shown once need not be read twice.

A cell that shows what another moment shows, too, hardly counts. Which of the two counts in full? That of the moment that
goes first; then comes the one that has most to add, and so on. A frame that brings nothing new gets few tokens; a budget is
spent all the same. Who goes first depends on what is asked:
- a question that names something has its answer somewhere. The moment goes first that is surest of it, by the best cells
  that it shows whole: a word that the picture's border cuts in two says little, and one near it lacks what stands around it.
  A moment that does not show the answer takes the next best thing for it; so a cell counts for the least that any moment
  finds that shows it. A moment is read out before the next one is opened, and none is opened that cannot be read out,
  because print is read beside print of the same picture, and not in halves from two;
- where nothing is asked for in particular, the moment that has most to tell goes first, and the best new cells of all
  moments share the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from arr_coc.frames import flow as flows
from arr_coc.frames import gate as gating
from arr_coc.frames import scene
from arr_coc.frames import shift as shifting
from arr_coc.frames.flow import Flow
from arr_coc.frames.shift import Shift
from arr_coc.relevance.strategy import FOLLOWS, SPREADS
from arr_coc.selectors.base import Choice, Sight
from arr_coc.selectors.pixels import textures
from arr_coc.selectors.ranking import best

REPEATED = 0.03  # what a cell counts for that shows what is shown already; less than this is nothing
CUT = 0.25  # cells that a picture moves at least, where its border cuts things in two
BEST = 3  # cells that tell how sure a moment is
ROOM, BARE = 5, 0.1  # cells around a thing that belong to it, and what it counts for less at a border without them
TOLD = "what several moments show, one is kept of"
SIDE = 320  # px that moments are compared at


@dataclass(frozen=True, eq=False)
class Link:
    """What two neighbouring moments have in common, on their cells."""

    back: Flow  # from the later to the earlier
    forth: Flow  # and the other way round
    later: torch.Tensor  # [h, w] how far each cell of the later moment is to be seen at the earlier one, 0 to 1
    earlier: torch.Tensor  # and the other way round


def linked(frames: Sequence[torch.Tensor], size: tuple[int, int]) -> list[Link]:
    """Each pair of neighbours among frames `[3, H, W]` in [0, 1], on a grid of `size` cells."""
    small = [gating.calmed(flows.small(frame.cpu(), SIDE)) for frame in frames]
    made = []
    for before, after in pairwise(small):
        moved = shifting.shift(before, after) if before.shape == after.shape else None
        if moved is None or (moved.still and scene.likeness(*map(scene.prepared, (before, after))) < scene.ALIKE):
            nothing = flows.still(size)
            made.append(Link(nothing, nothing, torch.zeros(size), torch.zeros(size)))
            continue
        (back, later), (forth, earlier) = _seen(before, after, moved, size), _seen(after, before, moved.back, size)
        made.append(Link(back, forth, later, earlier))
    return made


def _seen(there: torch.Tensor, here: torch.Tensor, moved: Shift, size: tuple[int, int]) -> tuple[Flow, torch.Tensor]:
    """The flow from `here` to `there` on cells, and how far each cell of `here` is to be seen `there`."""
    far = moved.flow((int(here.shape[0]), int(here.shape[1])))
    both = flows.inside(far.vectors)  # what else they show may be darker, and is no lamp
    lit = gating.relit(there, here, (flows.warp(there, far)[both], here[both]))
    near = flows.warp(lit, far)
    step, worse = gating.steadied(flows.between(near, here), near, here)
    step = flows.then(far, step)
    gate = gating.gate(lit, here, step, worse)
    same = flows.inside(step.vectors).float() * (~gating.spread(gate.anew, step.size)).float()
    seen = torch.nn.functional.adaptive_avg_pool2d(same[None, None], size)[0, 0]
    return step.at(size), seen


def worth(relevance: torch.Tensor, links: Sequence[Link], *, surest: bool = False) -> tuple[torch.Tensor, list[int]]:
    """Relevance `[t, h, w]` from 0 to 1, less where a moment that goes first shows the same; and the moments' order.

    surest: the moment with the best new cells goes first, not that with the most.
    """
    size = relevance.shape[1:]
    told = torch.zeros_like(relevance)
    found = torch.zeros_like(relevance)
    sure = _sureness(relevance, links) if surest else relevance
    order: list[int] = []
    left = set(range(len(relevance)))
    while left:
        new = {moment: sure[moment] * (1 - told[moment]) for moment in sorted(left)}
        gains = {moment: float(_best(values) if surest else values.sum()) for moment, values in new.items()}
        moment = max(gains, key=lambda one: gains[one])
        left.discard(moment)
        order.append(moment)
        found[moment] = relevance[moment] * (REPEATED + (1 - REPEATED) * (1 - told[moment]))
        for other, shown in _shown(moment, links, size):
            told[other] = torch.maximum(told[other], shown)
    return found, order


def _best(values: torch.Tensor) -> torch.Tensor:
    """The mean of the few best cells: one alone may be chance."""
    return values.flatten().topk(min(BEST, values.numel())).values.mean()


def _sureness(relevance: torch.Tensor, links: Sequence[Link]) -> torch.Tensor:
    """By how much each cell speaks for its moment `[t, h, w]`: agreed on by the others, whole, and not at a border."""
    size = relevance.shape[1:]
    deep = torch.stack([_depth(moment, links, size) for moment in range(len(relevance))])
    whole = (deep >= 1).float()
    return agreed(relevance, links, whole) * whole * (1 - BARE * (1 - deep / ROOM).clamp(min=0))


def agreed(relevance: torch.Tensor, links: Sequence[Link], whole: torch.Tensor) -> torch.Tensor:
    """Of each cell's relevance `[t, h, w]` the least that is found by any moment that shows it, as far as it shows it `whole`."""
    near = torch.nn.functional.max_pool2d(relevance[:, None], 3, 1, 1)[
        :, 0
    ]  # cells of two moments lie across each other
    least = relevance.clone()
    for moment, mine in enumerate(relevance):
        for other, way, seen in _elsewhere(moment, links):
            there = torch.lerp(mine, flows.warp(near[other], way, nearest=True), seen * flows.warp(whole[other], way))
            least[moment] = torch.minimum(least[moment], there)
    return least


def _elsewhere(moment: int, links: Sequence[Link]) -> Iterator[tuple[int, Flow, torch.Tensor]]:
    """Each other moment, with the way from this one's cells to its own and how far `[h, w]` they are to be seen there."""
    earlier = [(number, links[number].back, links[number].later) for number in range(moment - 1, -1, -1)]
    later = [(number + 1, links[number].forth, links[number].earlier) for number in range(moment, len(links))]
    for side in (earlier, later):
        way: Flow | None = None
        seen = torch.ones(())
        for other, step, shown in side:
            seen = seen * (shown if way is None else flows.warp(shown, way))
            way = step if way is None else flows.then(step, way)
            yield other, way, seen


def _depth(moment: int, links: Sequence[Link], size: torch.Size) -> torch.Tensor:
    """How many cells `[h, w]` lie between each and the next border that cuts things off: beyond it a neighbour shows more."""
    deep = torch.full(size, float(ROOM))
    ways = [links[moment].back] if moment < len(links) else []
    ways += [links[moment - 1].forth] if moment > 0 else []
    for moved in ways:
        across, down = (
            float(one) for one in moved.vectors.flatten(1).median(1).values
        )  # cells, of most of the picture
        for length, cells in ((across, torch.arange(size[1])[None]), (down, torch.arange(size[0])[:, None])):
            if abs(length) >= CUT:
                deep = torch.minimum(deep, (cells.max() - cells if length > 0 else cells).float())
    return deep


def _shown(moment: int, links: Sequence[Link], size: torch.Size) -> list[tuple[int, torch.Tensor]]:
    """What other moments show of what this one shows whole: each with `[h, w]` from 0 to 1."""
    found = []
    whole = (_depth(moment, links, size) >= 1).float()
    shown = whole
    for number in range(moment, len(links)):
        shown = flows.warp(shown, links[number].back) * links[number].later
        found.append((number + 1, shown))
    shown = whole
    for number in range(moment - 1, -1, -1):
        shown = flows.warp(shown, links[number].forth) * links[number].earlier
        found.append((number, shown))
    return found


def shared(sight: Sight, choice: Choice, how: str = "auto") -> Choice:
    """A choice among a video's cells with as many kept, but none twice while there are others.

    how: the "surest" moments one after another, the best cells of all "together", or "auto": as the question is.
    """
    [view] = sight.grid.views
    pictures = textures(sight)
    nothing = choice.relevance is None or choice.strategy.startswith(SPREADS)
    if view.t < 2 or nothing or len(choice.keep) in (0, len(sight.candidates)):
        return choice
    assert choice.relevance is not None
    shown = [pictures[moment * len(pictures) // view.t].pixels for moment in range(view.t)]
    links = pictures[0].once(f"links {view!r} of {len(pictures)}", lambda: linked(shown, (view.h, view.w)))
    surest = how == "surest" or (how == "auto" and choice.strategy.startswith(FOLLOWS))
    values, order = worth(choice.relevance.view(view.t, view.h, view.w), links, surest=surest)
    ranked = one_by_one(values, order, len(choice.keep)) if surest else values
    keep = sight.candidates[best(ranked.flatten()[sight.candidates], len(choice.keep))].sort().values
    said = f"the surest moment first, and {TOLD}" if surest else TOLD
    return replace(choice, keep=keep, relevance=values.flatten(), strategy=f"{choice.strategy}; {said}")


def one_by_one(values: torch.Tensor, order: Sequence[int], count: int) -> torch.Tensor:
    """Values `[t, h, w]` from 0 to 1, raised so that the best `count` cells are those of moments that are read out.

    A moment's cells, those that hold anything, all come before the next one's. Where what is left is too little for all of
    the next one's, the rest of the moments that are open comes first.
    """
    ranked = values.clone()
    opened, tier = True, 2.0 * len(order)  # more than all steps between moments
    for rank, moment in enumerate(order):
        holds = values[moment] > REPEATED
        needed = int(holds.sum())
        opened = rank == 0 or (opened and needed <= count)
        count -= needed if opened else 0
        ranked[moment] += 2.0 * (len(order) - rank) + opened * (tier + tier * holds)
    return ranked
