"""The tab Channels: all channels small, one of them large on any pyramid level, and the values of all at one point."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import torch
from PIL import Image

from arr_coc.demo import markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.errors import ArrCocError
from arr_coc.texture import TextureArray
from arr_coc.texture.layout import Channel, find_channel
from arr_coc.texture.sheet import paint

TILE_SIDE, LARGE_SIDE = 120, 760  # pixels of the longer side


def run(request: PageRequest, gallery: bool = True) -> Iterator[Output]:
    """`gallery`: also send the small channels, which do not depend on level and point."""
    state = request.state
    channel = find_channel(state.channel)
    texture = request.image.texture()
    if not 0 <= state.level < texture.levels:
        raise ArrCocError(f"expected a level from 0 to {texture.levels - 1} for this image, got {state.level}")
    point = state.parse_numbers("point", 2)
    if any(not 0 <= coordinate <= 1 for coordinate in point):
        raise ArrCocError(f"expected a point with x and y from 0 to 1, got {state.point!r}")
    if gallery:
        yield {"channels_gallery": _gallery(texture, channel.name), "channels_levels": texture.levels - 1}
    plane = texture.level(channel.name, state.level).detach().float()
    values: dict[str, float] = {}
    if point:
        sampled = texture.sample([point], level=float(state.level))[0].detach().float()  # [C]
        values = dict(zip(texture.names, sampled.tolist(), strict=True))
    found = {
        "image": request.image.name,
        "channel": channel.describe(),
        "level": state.level,
        "size": list(plane.shape),
        "found": [float(plane.min()), float(plane.max())],
        "absent": list(texture.absent),
        "point": list(point),
        "values": values,
    }
    yield {
        "channels_large": _large(texture, channel, plane, state.level, point),
        "channels_about": _about(texture, channel, plane, state.level),
        "channels_values": _values(values, point),
        "channels_python": snippets.channels(request, point),
        "channels_json": json.dumps(found, indent=1),
        "channels_link": state.to_query(),
    }


def _scaled_size(texture: TextureArray, side: int) -> tuple[int, int]:
    """Width and height of the texture, scaled so that the longer one is `side`."""
    height, width = texture.size
    scale = side / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _gallery(texture: TextureArray, chosen: str) -> str:
    """Every channel as a button with its image and name."""
    width, height = _scaled_size(texture, TILE_SIDE)
    planes = texture.grid(height, width).detach().float().cpu()  # [C, H, W]
    tiles = []
    for channel, plane in zip(texture.channels, planes, strict=True):
        absent = " absent" if channel.name in texture.absent else ""
        pressed = "true" if channel.name == chosen else "false"
        shown = markup.data_url(Image.fromarray(paint(channel, plane)))
        tiles.append(
            f"<button type='button' class='tile{absent}' data-channel='{channel.name}' aria-pressed='{pressed}' "
            f"title='{markup.escape(channel.meaning)}'><img src='{shown}' alt=''><span>{channel.name}</span></button>"
        )
    return f"<div class='gallery' role='group' aria-label='channels'>{''.join(tiles)}</div>"


def _large(texture: TextureArray, channel: Channel, plane: torch.Tensor, level: int, point: Sequence[float]) -> str:
    """One level `[H, W]` of a channel in its colours, to click on."""
    size = _scaled_size(texture, LARGE_SIDE)
    painted = Image.fromarray(paint(channel, plane)).resize(size, Image.Resampling.NEAREST)
    mark = f"<i class='mark' style='left:{100 * point[0]:.2f}%;top:{100 * point[1]:.2f}%'></i>" if point else ""
    alt = markup.escape(f"channel {channel.name} on level {level}")
    shown = f"<img src='{markup.data_url(painted)}' alt='{alt}' draggable='false'>"
    return f"<div class='board point' data-width='1' data-height='1'>{shown}{mark}</div>"


def _about(texture: TextureArray, channel: Channel, plane: torch.Tensor, level: int) -> str:
    low, high = (float(bound) for bound in torch.aminmax(plane))
    top = "and up" if math.isinf(channel.range[1]) else f"to {channel.range[1]:.3g}"
    size = f"{plane.shape[-1]} x {plane.shape[-2]} pixels"
    rows = [
        ["channel", f"{channel.name} ({channel.family})"],
        ["meaning", channel.meaning],
        ["range", f"{channel.range[0]:.3g} {top}; here {low:.3g} to {high:.3g}"],
        ["level", f"{level} of {texture.levels - 1}: {size}, pooled by {channel.pool}"],
        ["cost", channel.cost],
    ]
    if channel.name in texture.absent:
        rows.append(["not supplied", f"zero everywhere: it needs {' or '.join(channel.supplied_by)} from the caller"])
    return markup.table(rows)


def _values(values: dict[str, float], point: Sequence[float]) -> str:
    if not values:
        return markup.message("Click the large image, or enter a point, to read all channels there.")
    lines = "".join(f"<div><span>{name}</span><b>{value:.4g}</b></div>" for name, value in values.items())
    return f"<h4>At {point[0]:.3f}, {point[1]:.3f}</h4><div class='values'>{lines}</div>"
