"""Renewing: the parts of a frame that have to be looked at anew, put among those that are carried over.

- Channels that depend on a pixel's surroundings are worked out in one rectangle around all windows that need it, with a margin
  that is thrown away. Saliency depends on the whole frame, and is worked out on the whole when more than a little changed.
- Features: an encoder in native mode works in windows, and gets those over the marked cells, all in one call; what they see
  fades into what was known towards their edges. One pass has no parts: there it sees the whole frame, or nothing.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import unit
from arr_coc.embedding.windows import Plan, Windowed, resized
from arr_coc.frames import flow as flows
from arr_coc.frames.flow import Flow
from arr_coc.texture import TextureArray

LOCAL = ("edges", "edges_inverted", "highpass", "lowpass", "text", "distance")  # what a pixel's surroundings decide
GLOBAL = ("saliency",)  # what the whole frame decides
CARRIED = (*LOCAL, *GLOBAL)
PEAKED = ("edges", "edges_inverted", "text")  # shrunk by their maximum: between two pixels it would be lost
SMOOTH = tuple(name for name in CARRIED if name not in PEAKED)
REGIONS = ("cluster_id", "cluster_size", "boundaries", "cluster_distance")  # worked out at keyframes only
MARGIN = 64  # px around a rectangle, for what looks around: farther from an edge than this is far
LITTLE = 0.1  # share of a frame up to which it changes nothing for the whole
MOST = 0.25  # share of a frame from which looking at all of it is quicker
MOST_CELLS = 0.6  # windows with more cells than this share of the frame's: the whole frame is quicker, and better seen


def carry(old: TextureArray, new: TextureArray, moved: Flow, anew: torch.Tensor) -> float:
    """Give `new` the channels of `old`, carried along `moved`; the marked windows `anew` are worked out.

    Returns the share of the frame that was worked out; where that is most of it, nothing is carried at all.
    """
    box = around(anew, new.size)
    share = 0.0 if box is None else (box[2] - box[0]) * (box[3] - box[1]) / (new.size[0] * new.size[1])
    if share > MOST:
        return 1.0
    wide = flows.enlarged(moved, flows.luma(new.pixels)) if not moved.still else moved
    planes: dict[str, torch.Tensor] = {}
    for nearest, some in ((True, PEAKED), (False, SMOOTH)):
        wanted = [name for name in some if share <= LITTLE or name in LOCAL]
        known = torch.stack([old[name].float() for name in wanted])
        planes |= zip(wanted, flows.warp(known, wide, nearest=nearest), strict=True)
    if box is not None:
        top, left, bottom, right = box
        inner, patch = _patch(new, box)
        for name in LOCAL:
            planes[name][top:bottom, left:right] = patch[name][inner]
    for name, plane in planes.items():
        new.keep(name, plane.to(new.dtype))
    return share


def carry_regions(old: TextureArray, new: TextureArray, moved: Flow) -> None:
    """Give `new` the clusters of the last keyframe `old`, when it is asked for them; ids are never averaged."""
    for name in REGIONS:
        new.keep(name, partial(_carried, old, moved, name))


def _carried(old: TextureArray, moved: Flow, name: str) -> torch.Tensor:
    return flows.warp(old[name], moved, nearest=name != "cluster_distance")


def around(marked: torch.Tensor, size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """The rectangle (top, left, bottom, right) in pixels around all marked windows `[rows, columns]`; None: none is."""
    if not bool(marked.any()):
        return None
    rows, columns = marked.any(1).nonzero()[:, 0], marked.any(0).nonzero()[:, 0]
    (height, width), (tall, wide) = size, marked.shape
    top, left = int(rows[0]) * height // tall, int(columns[0]) * width // wide
    bottom, right = -(-(int(rows[-1]) + 1) * height // tall), -(-(int(columns[-1]) + 1) * width // wide)
    return top, left, min(bottom, height), min(right, width)


def _patch(
    texture: TextureArray, box: tuple[int, int, int, int]
) -> tuple[tuple[slice, slice], dict[str, torch.Tensor]]:
    """The local channels of a rectangle, worked out with a margin; and which part of them is inside."""
    top, left, bottom, right = box
    height, width = texture.size
    up, before = max(0, top - MARGIN), max(0, left - MARGIN)
    part = texture.pixels[:, up : min(height, bottom + MARGIN), before : min(width, right + MARGIN)]
    seen = TextureArray.from_image(
        part.contiguous(), layout=LOCAL, max_side=None, dtype=texture.dtype, text=texture.text
    )
    inner = (slice(top - up, bottom - up), slice(left - before, right - before))
    made = {name: seen[name].float() for name in LOCAL}
    made["distance"] = made["distance"] * (
        math.hypot(*seen.size) / math.hypot(height, width)
    )  # shares of other diagonals
    return inner, made


def whole(embeddings: Embeddings, pixels: torch.Tensor) -> torch.Tensor:
    """A frame's compressed features `[k, h, w]`, encoded and not kept by any cache: no frame comes twice."""
    features = embeddings.encoder.dense(pixels, embeddings.mode).features
    return embeddings.projection.compress(features).to(pixels.device)


def some(
    embeddings: Embeddings, pixels: torch.Tensor, grid: tuple[int, int], marked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Compressed features `[k, h, w]` of the windows over `marked` `[h, w]`, and how much each cell was seen `[h, w]`.

    They are the windows of native mode, so that a cell is seen as it always is. None where the whole frame is to be seen:
    in one pass every cell depends on all others; and where too many windows are needed.
    """
    encoder = embeddings.encoder
    if embeddings.mode != "native" or not isinstance(encoder, Windowed):
        return None
    layout = encoder.plan(pixels)
    if layout is None or layout.grid != grid:
        return None
    chosen = over(layout, marked)
    if len(chosen) * layout.window[0] * layout.window[1] > MOST_CELLS * grid[0] * grid[1]:
        return None
    picture = resized(pixels.to(encoder.device), (grid[0] * encoder.cell, grid[1] * encoder.cell))
    weights = layout.weights()[chosen]
    total = torch.zeros(encoder.width, *grid)
    seen = torch.zeros(grid)
    corners = list(layout)
    with torch.no_grad():
        for number, weight, features in zip(chosen, weights, encoder.through(picture, layout, chosen), strict=True):
            top, left = corners[number]
            place = (slice(top, top + layout.window[0]), slice(left, left + layout.window[1]))
            total[:, place[0], place[1]] += features.cpu().float() * weight
            seen[place] += weight
    compressed = embeddings.projection.compress(unit(total, dim=0))
    return compressed.to(pixels.device), seen.to(pixels.device)


def over(layout: Plan, marked: torch.Tensor) -> list[int]:
    """As few windows as have every marked cell `[h, w]` where they see it best."""
    best = torch.full(layout.grid, -1, dtype=torch.long)
    highest = torch.zeros(layout.grid)
    for number, ((top, left), weight) in enumerate(zip(layout, layout.weights(), strict=True)):
        place = (slice(top, top + layout.window[0]), slice(left, left + layout.window[1]))
        better = weight > highest[place]
        highest[place] = torch.where(better, weight, highest[place])
        best[place] = torch.where(better, number, best[place])
    return sorted(set(best[marked.cpu()].tolist()))
