"""The tab Channels: all channels small, one of them large on any pyramid level, and all of them at one point."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image

from arr_coc.demo import drawing, snippets
from arr_coc.demo.visit import Visit
from arr_coc.errors import ArrCocError
from arr_coc.texture import TextureArray
from arr_coc.texture.layout import Channel, find_channel
from arr_coc.texture.sheet import paint

Output = dict[str, Any]
TILE = 120  # pixels of a small channel's longer side
LARGE = 760


def channels(visit: Visit, gallery: bool = True) -> Iterator[Output]:
    """Outputs by name; `gallery`: the small ones, too, which do not change with level and point."""
    view = visit.view
    channel = find_channel(view.channel)
    texture = visit.subject.texture()
    level = check_level(texture, view.level)
    point = view.numbers("point", 2)
    if any(not 0 <= side <= 1 for side in point):
        raise ArrCocError(f"expected the point as shares from 0 to 1 of the picture, got {view.point!r}")
    if gallery:
        yield {"channels_gallery": small(texture, view.channel), "channels_levels": texture.levels - 1}
    read = values_at(texture, point, level) if point else {}
    yield {
        "channels_large": large(texture, channel, level, point),
        "channels_about": about(texture, channel, level),
        "channels_values": _values(read, point),
        "channels_python": snippets.channels(visit, point),
        "channels_json": json.dumps(_found(visit, texture, channel, level, point, read), indent=1),
        "channels_link": view.query(),
    }


def check_level(texture: TextureArray, level: int) -> int:
    if not 0 <= level < texture.levels:
        raise ArrCocError(f"expected a level from 0 to {texture.levels - 1} for this picture, got {level}")
    return level


def small(texture: TextureArray, chosen: str) -> str:
    """Every channel as a button: its name, and what it looks like."""
    height, width = texture.size
    scale = TILE / max(height, width)
    high, wide = max(1, round(height * scale)), max(1, round(width * scale))
    planes = texture.grid(high, wide).detach().float().cpu()
    tiles = []
    for channel, plane in zip(texture.channels, planes, strict=True):
        absent = " absent" if channel.name in texture.absent else ""
        shown = drawing.address(Image.fromarray(paint(channel, plane)))
        pressed = "true" if channel.name == chosen else "false"
        tiles.append(
            f"<button type='button' class='tile{absent}' data-channel='{channel.name}' aria-pressed='{pressed}' "
            f"title='{drawing.text(channel.meaning)}'><img src='{shown}' alt=''><span>{channel.name}</span></button>"
        )
    return f"<div class='gallery' role='group' aria-label='channels'>{''.join(tiles)}</div>"


def large(texture: TextureArray, channel: Channel, level: int, point: tuple[float, ...]) -> str:
    """One channel in its colours on one level; click to read all channels at a point."""
    plane = texture.level(channel.name, level)
    painted = Image.fromarray(paint(channel, plane))
    scale = LARGE / max(texture.size)
    size = (max(1, round(texture.size[1] * scale)), max(1, round(texture.size[0] * scale)))
    painted = painted.resize(size, Image.Resampling.NEAREST)
    mark = f"<i class='mark' style='left:{100 * point[0]:.2f}%;top:{100 * point[1]:.2f}%'></i>" if point else ""
    alt = drawing.text(f"channel {channel.name} on level {level}")
    return f"<div class='board point' data-width='1' data-height='1'><img src='{drawing.address(painted)}' alt='{alt}' draggable='false'>{mark}</div>"


def about(texture: TextureArray, channel: Channel, level: int) -> str:
    """Name, meaning and range, promised and found."""
    plane = texture.level(channel.name, level)
    low, high = (float(one) for one in torch.aminmax(plane.detach().float()))
    top = "and up" if math.isinf(channel.range[1]) else f"to {channel.range[1]:.3g}"
    rows = [
        ["channel", f"{channel.name} ({channel.family})"],
        ["meaning", channel.meaning],
        ["range", f"{channel.range[0]:.3g} {top}; here {low:.3g} to {high:.3g}"],
        [
            "level",
            f"{level} of {texture.levels - 1}: {plane.shape[-1]} x {plane.shape[-2]} pixels, pooled by {channel.pool}",
        ],
        ["cost", channel.cost],
    ]
    if channel.name in texture.absent:
        rows.append(["not supplied", f"zero everywhere: only a caller has {' or '.join(channel.supplied_by)}"])
    return drawing.table(rows)


def values_at(texture: TextureArray, point: tuple[float, ...], level: int) -> dict[str, float]:
    """All channels at a point (x, y as shares of the picture)."""
    read = texture.sample([point], level=float(level))[0].detach().float().tolist()
    return dict(zip(texture.names, read, strict=True))


def _values(read: dict[str, float], point: tuple[float, ...]) -> str:
    if not read:
        return drawing.told("Click the large picture, or write a point, to read all channels there.")
    lines = "".join(f"<div><span>{name}</span><b>{value:.4g}</b></div>" for name, value in read.items())
    return f"<h4>At {point[0]:.3f}, {point[1]:.3f}</h4><div class='values'>{lines}</div>"


def _found(
    visit: Visit, texture: TextureArray, channel: Channel, level: int, point: tuple[float, ...], read: dict[str, float]
) -> Output:
    plane = texture.level(channel.name, level).detach().float()
    return {
        "image": visit.subject.name, "channel": channel.describe(), "level": level, "size": list(plane.shape),
        "found": [float(plane.min()), float(plane.max())], "absent": list(texture.absent), "point": list(point), "values": read,
    }  # fmt: skip
