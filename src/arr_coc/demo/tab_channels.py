"""The tab Channels: all channels small, one of them large on any pyramid level, and the values of all at one point."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import torch
from markupsafe import Markup
from PIL import Image

from arr_coc.demo import markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.markup import macros
from arr_coc.errors import ArrCocError
from arr_coc.texture import TextureArray
from arr_coc.texture.layout import Channel, find_channel
from arr_coc.texture.sheet import paint

TILE_SIDE, LARGE_SIDE = 120, 760  # pixels of the longer side
HINT = "Click the large image, or enter a point, to read all channels there."


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
        "channels_values": macros.values(
            {name: value for name, value in values.items() if name not in texture.absent}, point
        )
        if point
        else macros.message(HINT),
        "channels_python": snippets.channels(request, point),
        "channels_json": json.dumps(found, indent=1),
        "channels_link": state.to_query(),
    }


def _scaled_size(texture: TextureArray, side: int) -> tuple[int, int]:
    """Width and height of the texture, scaled so that the longer one is `side`."""
    height, width = texture.size
    scale = side / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _gallery(texture: TextureArray, chosen: str) -> Markup:
    width, height = _scaled_size(texture, TILE_SIDE)
    planes = texture.grid(height, width).detach().float().cpu()  # [C, H, W]
    tiles = [
        (channel, markup.data_url(Image.fromarray(paint(channel, plane))))
        for channel, plane in zip(texture.channels, planes, strict=True)
    ]
    return macros.gallery(tiles, chosen, texture.absent, _why_empty(texture))


def _why_empty(texture: TextureArray) -> str:
    """Why some channels are empty, in one sentence."""
    needs: dict[str, int] = {}
    for channel in texture.channels:
        if channel.name in texture.absent:
            need = (
                "an image-text encoder"
                if channel.name.startswith("embedding")
                else "earlier frames, or the viewer's gaze"
            )
            needs[need] = needs.get(need, 0) + 1
    reasons = " and ".join(f"{count} need {need}" for need, count in needs.items())
    return f"{len(texture.absent)} channels are empty, because one image does not supply them: {reasons}."


def _large(texture: TextureArray, channel: Channel, plane: torch.Tensor, level: int, point: Sequence[float]) -> Markup:
    """One level `[H, W]` of a channel in its colours, to click on."""
    size = _scaled_size(texture, LARGE_SIDE)
    painted = Image.fromarray(paint(channel, plane)).resize(size, Image.Resampling.NEAREST)
    marks = [f"left:{100 * point[0]:.2f}%;top:{100 * point[1]:.2f}%"] if point else []
    alt = f"channel {channel.name} on level {level}"
    return macros.board("point", (1, 1), markup.data_url(painted), alt, "mark", marks, channel.name)


def _about(texture: TextureArray, channel: Channel, plane: torch.Tensor, level: int) -> Markup:
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
    return macros.table(rows, (), True)
