"""Partial updates: warp a texture's channels and an encoder's features to the next frame, and recompute only some parts.

- Local channels are recomputed in one rectangle around all marked windows, with a margin that is discarded. Saliency
  depends on the whole frame, and is recomputed when more than a little changed.
- Features: an encoder in native mode works in windows. Those over the marked cells are encoded in one call and blended with the
  known features by their weights. In one-pass mode every cell depends on all others, so the whole frame is encoded or nothing.
"""

from __future__ import annotations

import math
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
MAX_WINDOWS = (
    0.6  # windows with more cells than this share of the frame's: encoding the whole frame is faster and better
)


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
        top, left, bottom, right = box
        inner, patch = _compute_patch(new, box)
        for name in LOCAL:
            planes[name][top:bottom, left:right] = patch[name][inner]
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


def _compute_patch(
    texture: TextureArray, box: tuple[int, int, int, int]
) -> tuple[tuple[slice, slice], dict[str, torch.Tensor]]:
    """The local channels of a rectangle with its margin, and the slices of the rectangle inside them."""
    top, left, bottom, right = box
    height, width = texture.size
    up, before = max(0, top - MARGIN), max(0, left - MARGIN)
    part = texture.pixels[:, up : min(height, bottom + MARGIN), before : min(width, right + MARGIN)].contiguous()
    crop = TextureArray.from_image(part, layout=LOCAL, max_side=None, dtype=texture.dtype, text=texture.text)
    inner = (slice(top - up, bottom - up), slice(left - before, right - before))
    planes = {name: crop[name].float() for name in LOCAL}
    scale = math.hypot(*crop.size) / math.hypot(height, width)  # distances are shares of the diagonal
    planes["distance"] = planes["distance"] * scale
    return inner, planes


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
    total = torch.zeros(encoder.width, *grid)
    covered = torch.zeros(grid)
    corners = list(layout)
    with torch.no_grad():
        for number, weight, features in zip(
            chosen, weights, encoder.encode_windows(picture, layout, chosen), strict=True
        ):
            rows, columns = _window(corners[number], layout)
            total[:, rows, columns] += features.cpu().float() * weight
            covered[rows, columns] += weight
    compressed = embeddings.projection.compress(l2_normalize(total, dim=0))
    return compressed.to(pixels.device), covered.to(pixels.device)


def covering_windows(layout: WindowLayout, marked: torch.Tensor) -> list[int]:
    """The windows that hold the marked cells `[h, w]`: for each cell the one with the highest weight there."""
    best = torch.full(layout.grid, -1, dtype=torch.long)
    highest = torch.zeros(layout.grid)
    for number, (corner, weight) in enumerate(zip(layout, layout.weights(), strict=True)):
        place = _window(corner, layout)
        better = weight > highest[place]
        highest[place] = torch.where(better, weight, highest[place])
        best[place] = torch.where(better, number, best[place])
    return sorted(set(best[marked.cpu()].tolist()))


def _window(corner: tuple[int, int], layout: WindowLayout) -> tuple[slice, slice]:
    """The rows and columns of the window at `corner`."""
    top, left = corner
    return slice(top, top + layout.window[0]), slice(left, left + layout.window[1])
