"""Trilinear sampling: bilinear on the two nearest pyramid levels, linear between them.

All channels are read at all points in one call. Points are (x, y) in [0, 1] over the whole image, the same position on
every level; a point outside reads the border. Ids are never mixed: nearest pixel on the nearest level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from arr_coc.devices import to_device
from arr_coc.errors import ArrCocError
from arr_coc.texture.layout import Channel
from arr_coc.types.image import Numbers, as_tensor

POINTS_AT_ONCE = 1 << 16
LevelOf: TypeAlias = Callable[[int], Sequence[torch.Tensor]]


def check_points(
    xy: Numbers, level: Numbers, device: torch.device, *, finite: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Points as float `[N, 2]` and levels as float `[N]`, on `device`; finite: check for NaN and infinity, which waits for the device."""
    points = to_device(as_tensor(xy, "points"), device)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ArrCocError(f"expected points as [N, 2] (x and y in [0, 1]), got {list(points.shape)}")
    points = points if points.dtype == torch.float64 else points.float()
    levels = to_device(as_tensor(level, "level"), device).to(points.dtype)
    if levels.ndim not in (0, 1) or (levels.ndim == 1 and len(levels) != len(points)):
        raise ArrCocError(f"expected level as one number or [{len(points)}], got {list(levels.shape)}")
    if finite and not bool(torch.isfinite(points).all() and torch.isfinite(levels).all()):
        raise ArrCocError("points and levels must be finite numbers, got NaN or infinity")
    return points, levels.expand(len(points))


def sample(
    plane_of: Callable[[str, int], torch.Tensor],
    channels: Sequence[Channel],
    xy: torch.Tensor,
    level: torch.Tensor,
    top: int,
) -> torch.Tensor:
    """All channels at all points, ids separately: `plane_of(name, l)` is `[H_l, W_l]`; returns `[N, C]`."""
    smooth = [c.name for c in channels if c.pool != "nearest"]
    ids = [c.name for c in channels if c.pool == "nearest"]
    groups = [(rule, names) for rule, names in ((trilinear, smooth), (nearest, ids)) if names]
    parts = []
    # In chunks, because four neighbours of every point and channel are in memory at once.
    for part, at in zip(torch.split(xy, POINTS_AT_ONCE), torch.split(level, POINTS_AT_ONCE), strict=True):
        read = [rule(lambda n, g=g: [plane_of(name, n) for name in g], part, at, top) for rule, g in groups]  # type: ignore[misc]
        parts.append(torch.cat(read, dim=1))
    order = [[*smooth, *ids].index(c.name) for c in channels]
    return torch.cat(parts)[:, order]


def trilinear(level_of: LevelOf, xy: torch.Tensor, level: torch.Tensor, top: int) -> torch.Tensor:
    """Read planes smoothly: `level_of(l)` gives C planes `[H_l, W_l]`; `level` is clamped to 0..`top`; returns `[N, C]`."""
    level = level.clamp(0, top)
    # A point at level 2.3 takes .7 of level 2 and .3 of level 3: the weight is a tent around each whole level.
    return _gather_levels(level_of, xy, top, lambda number: (1 - (level - number).abs()).clamp(min=0), _bilinear)


def nearest(level_of: LevelOf, xy: torch.Tensor, level: torch.Tensor, top: int) -> torch.Tensor:
    """Read planes without mixing: nearest pixel on the nearest level (halves go up); returns `[N, C]`."""
    chosen = (level.clamp(0, top) + 0.5).floor().clamp(max=top)
    return _gather_levels(level_of, xy, top, lambda number: (chosen == number).to(xy.dtype), _nearest)


def _gather_levels(
    level_of: LevelOf,
    xy: torch.Tensor,
    top: int,
    weight_at: Callable[[int], torch.Tensor],
    read: Callable[[Sequence[torch.Tensor], torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    total: torch.Tensor | None = None
    for number in range(top + 1):
        weight = weight_at(number)  # [N]
        rows = weight.nonzero()[:, 0]
        if len(rows) == 0:  # a level that no point needs is never built
            continue
        part = read(level_of(number), xy[rows]) * weight[rows, None]  # [n, C]
        if total is None:
            total = part.new_zeros(len(xy), part.shape[1])
        total = total.index_add(0, rows, part)
    return xy.new_zeros(0, len(level_of(top))) if total is None else total


def _bilinear(planes: Sequence[torch.Tensor], xy: torch.Tensor) -> torch.Tensor:
    height, width = planes[0].shape
    x = (xy[:, 0] * width - 0.5).clamp(0, width - 1)
    y = (xy[:, 1] * height - 0.5).clamp(0, height - 1)
    left, above = x.floor().long(), y.floor().long()
    right, below = (left + 1).clamp(max=width - 1), (above + 1).clamp(max=height - 1)
    fx, fy = x - left, y - above
    rows = torch.stack([above, above, below, below])  # [4, n]
    columns = torch.stack([left, right, left, right])
    weights = torch.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx])
    return (_read(planes, rows, columns) * weights).sum(1).T


def _nearest(planes: Sequence[torch.Tensor], xy: torch.Tensor) -> torch.Tensor:
    height, width = planes[0].shape
    columns = (xy[:, 0] * width).floor().clamp(0, width - 1).long()
    rows = (xy[:, 1] * height).floor().clamp(0, height - 1).long()
    return _read(planes, rows, columns).to(xy.dtype).T


def _read(planes: Sequence[torch.Tensor], rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Every plane at the same pixels: `[C, *rows.shape]`; a constant plane, which has no memory of its own, is not read."""
    return torch.stack(
        [plane[0, 0].expand(rows.shape) if plane.stride() == (0, 0) else plane[rows, columns] for plane in planes]
    )
