"""Partial updates: warp a texture's channels and an encoder's features to the next frame, and recompute only some parts.

- Local channels are recomputed in one rectangle around all marked windows, with a margin that is discarded. Saliency
  depends on the whole frame, and is recomputed when more than a little changed.
- Features: an encoder in native mode works in windows. Those over the marked cells are encoded in one call and blended with the
  known features by their weights. In one-pass mode every cell depends on all others, so the whole frame is encoded or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import l2_normalize
from arr_coc.embedding.windows import WindowedEncoder, WindowLayout, resize
from arr_coc.frames.flow import Flow, luma, upsample, warp
from arr_coc.texture import TextureArray

LOCAL = ("edges", "edges_inverted", "highpass", "lowpass", "text", "distance")  # depend on a pixel's neighbourhood
GLOBAL = ("saliency",)  # depend on the whole frame
WARPED = (*LOCAL, *GLOBAL)
NEAREST = ("edges", "edges_inverted", "text")  # pooled by their maximum, which interpolation would lower
CLUSTERS = ("cluster_id", "cluster_size", "boundaries", "cluster_distance")  # computed at keyframes only
MARGIN = 64  # px around a rectangle that its channels need
MAX_LOCAL = 0.1  # share of a frame up to which a change does not affect global channels
MAX_PARTIAL = 0.25  # share of a frame above which computing all of it is faster
MAX_WINDOWS = 0.6  # share of the frame's cells: if windows need more, the whole frame is encoded faster and better


def update_channels(old: TextureArray, new: TextureArray, moved: Flow, recompute: torch.Tensor) -> float:
    """Give `new` the channels of `old`, warped along `moved`; the windows marked in `recompute` are computed.

    Returns the share of the frame that was computed. If it is above `MAX_PARTIAL`, nothing is warped and the result is 1.
    """
    box = bounding_box(recompute, new.size)
    share = 0.0 if box is None else (box[2] - box[0]) * (box[3] - box[1]) / (new.size[0] * new.size[1])
    if share > MAX_PARTIAL:
        return 1.0
    wide = moved if moved.is_zero else upsample(moved, luma(new.pixels))
    wanted = WARPED if share <= MAX_LOCAL else LOCAL
    planes: dict[str, torch.Tensor] = {}
    for nearest in (True, False):
        names = [name for name in wanted if (name in NEAREST) == nearest]
        known = torch.stack([old[name].float() for name in names])
        planes |= zip(names, warp(known, wide, nearest=nearest), strict=True)
    if box is not None:
        _recompute(planes, new, box)
    for name, plane in planes.items():
        new.keep(name, plane.to(new.dtype))
    return share


def reuse_clusters(old: TextureArray, new: TextureArray, moved: Flow) -> None:
    """Let `new` warp the clusters of the last keyframe `old` when they are asked for; ids are never interpolated."""

    def warped(name: str) -> torch.Tensor:
        return warp(old[name], moved, nearest=name != "cluster_distance")

    for name in CLUSTERS:
        new.keep(name, partial(warped, name))


def bounding_box(marked: torch.Tensor, size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """The rectangle (top, left, bottom, right) in pixels around all marked windows `[rows, columns]`; None if none is."""
    if not bool(marked.any()):
        return None
    rows, columns = marked.any(1).nonzero()[:, 0], marked.any(0).nonzero()[:, 0]
    (height, width), (tall, wide) = size, marked.shape
    top, left = int(rows[0]) * height // tall, int(columns[0]) * width // wide
    bottom, right = -(-(int(rows[-1]) + 1) * height // tall), -(-(int(columns[-1]) + 1) * width // wide)
    return top, left, min(bottom, height), min(right, width)


def _recompute(planes: dict[str, torch.Tensor], texture: TextureArray, box: tuple[int, int, int, int]) -> None:
    """Overwrite a rectangle of the local channels with values computed from its pixels and a margin around it."""
    top, left, bottom, right = box
    height, width = texture.size
    up, before = max(0, top - MARGIN), max(0, left - MARGIN)
    part = texture.pixels[:, up : min(height, bottom + MARGIN), before : min(width, right + MARGIN)].contiguous()
    crop = TextureArray.from_image(part, layout=LOCAL, max_side=None, dtype=texture.dtype, text=texture.text)
    for name in LOCAL:
        patch = crop[name].float()
        if name == "distance":  # a share of the diagonal
            patch = patch * (math.hypot(*crop.size) / math.hypot(height, width))
        planes[name][top:bottom, left:right] = patch[top - up : bottom - up, left - before : right - before]


def encode_frame(embeddings: Embeddings, pixels: torch.Tensor) -> torch.Tensor:
    """A frame's compressed features `[k, h, w]`, without the cache: no frame comes twice."""
    features = embeddings.encoder.dense(pixels, embeddings.mode).features
    return embeddings.projection.compress(features).to(pixels.device)


def encode_windows(
    embeddings: Embeddings, pixels: torch.Tensor, grid: tuple[int, int], marked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Compressed features `[k, h, w]` of the native-mode windows over `marked` `[h, w]`, and each cell's weight `[h, w]`.

    None if the whole frame has to be encoded: in one-pass mode, or if too many windows are needed.
    """
    encoder = embeddings.encoder
    if embeddings.mode != "native" or not isinstance(encoder, WindowedEncoder):
        return None
    layout = encoder.plan(pixels)
    if layout is None or layout.grid != grid:
        return None
    chosen = covering_windows(layout, marked)
    if len(chosen) * layout.window[0] * layout.window[1] > MAX_WINDOWS * grid[0] * grid[1]:
        return None
    picture = resize(pixels.to(encoder.device), (grid[0] * encoder.cell, grid[1] * encoder.cell))
    weights = layout.weights()[chosen]
    total, covered = torch.zeros(encoder.width, *grid), torch.zeros(grid)
    places = list(_places(layout))
    with torch.no_grad():
        encoded = encoder.encode_windows(picture, layout, chosen)
        for number, weight, features in zip(chosen, weights, encoded, strict=True):
            rows, columns = places[number]
            total[:, rows, columns] += features.cpu().float() * weight
            covered[rows, columns] += weight
    compressed = embeddings.projection.compress(l2_normalize(total, dim=0))
    return compressed.to(pixels.device), covered.to(pixels.device)


def covering_windows(layout: WindowLayout, marked: torch.Tensor) -> list[int]:
    """The windows that hold the marked cells `[h, w]`: for each cell the one with the highest weight there."""
    best = torch.full(layout.grid, -1, dtype=torch.long)
    highest = torch.zeros(layout.grid)
    for number, (place, weight) in enumerate(zip(_places(layout), layout.weights(), strict=True)):
        better = weight > highest[place]
        highest[place] = torch.where(better, weight, highest[place])
        best[place] = torch.where(better, number, best[place])
    return sorted(set(best[marked.cpu()].tolist()))


def _places(layout: WindowLayout) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of every window."""
    rows, columns = layout.window
    return ((slice(top, top + rows), slice(left, left + columns)) for top, left in layout)
