"""One budget for all frames of a video: content repeated across frames is kept once.

A cell whose content another frame shows as well counts for almost nothing in all frames but one. That one belongs to the frame
that is ranked first; the next rank goes to the frame that adds most, and so on. The order depends on the question:
- A question that names something has its answer in one place ("surest"). First comes the frame with the best few cells that it
  shows whole: at a border that cuts text off, cells count less. A frame without the answer scores the next best thing high, so a
  cell's score is the lowest that any frame gives to the same content. A frame's relevant cells are all kept before the
  next frame's, and a frame that does not fit into the rest of the budget is skipped: text is read in its context.
- Otherwise ("together") the frame with the largest sum comes first, and the best new cells of all frames share the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F

from arr_coc.frames import gate as gates
from arr_coc.frames.flow import Flow, compose, inside_frame, luma_flow, small_luma, warp, zero_flow
from arr_coc.frames.scene import SAME_SCENE, Shift, global_shift, scene_luma, similarity
from arr_coc.relevance.strategy import FOLLOW_QUESTION, SPREAD_OUT
from arr_coc.selectors.base import Choice, SelectionInput
from arr_coc.selectors.scoring import top_k

REPEATED = 0.03  # weight of a cell whose content is kept already; relevance up to this counts as none
MIN_SHIFT = 0.25  # cells that a picture moves at least for its border to cut content off
TOP_CELLS = 3  # cells whose mean decides how sure a frame is
CONTEXT, BARE = 5, 0.1  # cells of context around content, and the discount at a border without any
SIDE = 320  # px that frames are compared at
STRATEGY = "content repeated across frames is kept once"


@dataclass(frozen=True, eq=False)
class Link:
    """What two neighbouring frames have in common, on their cells."""

    back: Flow  # from the later to the earlier frame
    forth: Flow  # from the earlier to the later
    later: torch.Tensor  # [h, w] share of each cell of the later frame that the earlier one shows, 0 to 1
    earlier: torch.Tensor  # [h, w] the same the other way round


def link_frames(frames: Sequence[torch.Tensor], size: tuple[int, int]) -> list[Link]:
    """The links of all neighbours among frames `[3, H, W]` in [0, 1], on a grid of `size` cells."""
    small = [gates.denoise(small_luma(frame.cpu(), SIDE)) for frame in frames]
    links = []
    for before, after in pairwise(small):
        moved = global_shift(before, after) if before.shape == after.shape else None
        if moved is None or (moved.is_zero and similarity(scene_luma(before), scene_luma(after)) < SAME_SCENE):
            still, nothing = zero_flow(size), torch.zeros(size)
            links.append(Link(still, still, nothing, nothing))
            continue
        back, later = _match(before, after, moved, size)
        forth, earlier = _match(after, before, moved.inverse, size)
        links.append(Link(back, forth, later, earlier))
    return links


def _match(there: torch.Tensor, here: torch.Tensor, moved: Shift, size: tuple[int, int]) -> tuple[Flow, torch.Tensor]:
    """The flow from `here` to `there` on cells, and the share of each cell of `here` that `there` shows."""
    far = moved.flow((int(here.shape[0]), int(here.shape[1])))
    common = inside_frame(far.vectors)  # brightness is compared on the overlap only
    lit = gates.match_brightness(there, here, (warp(there, far)[common], here[common]))
    near = warp(lit, far)
    step, _ = gates.reject_flow(luma_flow(near, here), near, here)
    step = compose(far, step)
    changed = gates.expand_windows(gates.stale_windows(lit, here, step), step.size)
    same = inside_frame(step.vectors).float() * (~changed).float()
    return step.resize(size), F.adaptive_avg_pool2d(same[None, None], size)[0, 0]


def discount_repeats(
    relevance: torch.Tensor, links: Sequence[Link], *, surest: bool = False
) -> tuple[torch.Tensor, list[int]]:
    """Relevance `[t, h, w]` from 0 to 1, lowered where a frame of higher rank shows the same; and the frames' order.

    surest: the frame with the best new cells comes first, not the one with the largest sum.
    """
    shown = torch.zeros_like(relevance)  # how much of each cell a frame of higher rank shows
    discounted = torch.zeros_like(relevance)
    scores = _sureness(relevance, links) if surest else relevance
    order: list[int] = []
    left = set(range(len(relevance)))
    while left:
        new = {frame: scores[frame] * (1 - shown[frame]) for frame in sorted(left)}
        gains = {frame: float(_top_mean(values) if surest else values.sum()) for frame, values in new.items()}
        frame = max(gains, key=lambda one: gains[one])
        left.discard(frame)
        order.append(frame)
        discounted[frame] = relevance[frame] * (REPEATED + (1 - REPEATED) * (1 - shown[frame]))
        for other, share in _visibility(frame, links, relevance.shape[1:]):
            shown[other] = torch.maximum(shown[other], share)
    return discounted, order


def _top_mean(values: torch.Tensor) -> torch.Tensor:
    """The mean of the few best cells: a single one may be chance."""
    return values.flatten().topk(min(TOP_CELLS, values.numel())).values.mean()


def _sureness(relevance: torch.Tensor, links: Sequence[Link]) -> torch.Tensor:
    """The relevance `[t, h, w]` that all frames agree on, 0 in cells cut off by a border and lower near such a border."""
    distance = torch.stack([_border_distance(frame, links, relevance.shape[1:]) for frame in range(len(relevance))])
    whole = (distance >= 1).float()
    return agree(relevance, links, whole) * whole * (1 - BARE * (1 - distance / CONTEXT).clamp(min=0))


def agree(relevance: torch.Tensor, links: Sequence[Link], whole: torch.Tensor) -> torch.Tensor:
    """Each cell's lowest relevance `[t, h, w]` among all frames that show its content `whole` `[t, h, w]`."""
    near = F.max_pool2d(relevance[:, None], 3, 1, 1)[:, 0]  # the cells of two frames do not align
    lowest = relevance.clone()
    for frame, own in enumerate(relevance):
        for other, path, visible in _paths(frame, links):
            there = torch.lerp(own, warp(near[other], path, nearest=True), visible * warp(whole[other], path))
            lowest[frame] = torch.minimum(lowest[frame], there)
    return lowest


def _paths(frame: int, links: Sequence[Link]) -> Iterator[tuple[int, Flow, torch.Tensor]]:
    """Each other frame, with the flow from this one's cells to it and the share `[h, w]` of them that it shows."""
    earlier = [(number, links[number].back, links[number].later) for number in range(frame - 1, -1, -1)]
    later = [(number + 1, links[number].forth, links[number].earlier) for number in range(frame, len(links))]
    for side in (earlier, later):
        path: Flow | None = None
        visible = torch.ones(())
        for other, step, share in side:
            visible = visible * (share if path is None else warp(share, path))
            path = step if path is None else compose(step, path)
            yield other, path, visible


def _border_distance(frame: int, links: Sequence[Link], size: torch.Size) -> torch.Tensor:
    """How many cells `[h, w]` lie between each cell and the next border beyond which a neighbouring frame shows more."""
    distance = torch.full(size, float(CONTEXT))
    flows = [links[frame].back] if frame < len(links) else []
    flows += [links[frame - 1].forth] if frame > 0 else []
    for moved in flows:
        x, y = (float(one) for one in moved.vectors.flatten(1).median(1).values)  # cells, of most of the picture
        for shift, cells in ((x, torch.arange(size[1])[None]), (y, torch.arange(size[0])[:, None])):
            if abs(shift) >= MIN_SHIFT:
                distance = torch.minimum(distance, (cells.max() - cells if shift > 0 else cells).float())
    return distance


def _visibility(frame: int, links: Sequence[Link], size: torch.Size) -> list[tuple[int, torch.Tensor]]:
    """For each other frame the share `[h, w]`, 0 to 1, of its cells whose content this frame shows whole."""
    found = []
    later = [(number + 1, links[number].back, links[number].later) for number in range(frame, len(links))]
    earlier = [(number, links[number].forth, links[number].earlier) for number in range(frame - 1, -1, -1)]
    for side in (later, earlier):
        share = (_border_distance(frame, links, size) >= 1).float()
        for other, step, common in side:
            share = warp(share, step) * common
            found.append((other, share))
    return found


def share_budget(selection: SelectionInput, choice: Choice, how: str = "auto") -> Choice:
    """A choice with as many cells of a video, where repeated content is picked last.

    how: "surest" frames one after another, the best cells of all frames "together", or "auto": by the question.
    """
    [view] = selection.grid.views
    pictures = selection.textures
    if view.t < 2 or choice.relevance is None or choice.rule in SPREAD_OUT:
        return choice
    if len(choice.keep) in (0, len(selection.candidates)):
        return choice
    frames = [pictures[frame * len(pictures) // view.t].pixels for frame in range(view.t)]
    links = pictures[0].once(f"links {view!r} of {len(pictures)}", lambda: link_frames(frames, (view.h, view.w)))
    surest = how == "surest" or (how == "auto" and choice.rule in FOLLOW_QUESTION)
    values, order = discount_repeats(choice.relevance.view(view.t, view.h, view.w), links, surest=surest)
    ranked = rank_by_frame(values, order, len(choice.keep)) if surest else values
    keep = selection.candidates[top_k(ranked.flatten()[selection.candidates], len(choice.keep))].sort().values
    strategy = f"{choice.strategy}; {'the surest frame first, and ' if surest else ''}{STRATEGY}"
    return replace(choice, keep=keep, relevance=values.flatten(), strategy=strategy)


def rank_by_frame(values: torch.Tensor, order: Sequence[int], count: int) -> torch.Tensor:
    """Values `[t, h, w]` from 0 to 1, raised so that the top `count` cells come from as few frames as possible.

    All relevant cells of a frame rank before the next frame's. If a frame's do not fit into the rest of `count`, the remaining
    cells of the frames before it rank first.
    """
    ranked = values.clone()
    opened, tier = True, 2.0 * len(order)  # larger than all steps between frames
    for rank, frame in enumerate(order):
        relevant = values[frame] > REPEATED
        needed = int(relevant.sum())
        opened = rank == 0 or (opened and needed <= count)
        count -= needed if opened else 0
        ranked[frame] += 2.0 * (len(order) - rank) + opened * (tier + tier * relevant)
    return ranked
