"""The contact sheet: every channel of a texture on one page, labelled with its name, its family and its range.

Channels without a supplied map are zero everywhere; they are listed in a strip below instead of taking a black tile each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw

from arr_coc.draw.overlay import colourise, colourise_ids, font
from arr_coc.errors import ArrCocError, whole_number
from arr_coc.texture.layout import Channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

FAMILY_COLOURS = {  # colour map of the tiles, colour of the label's bar
    "colour": ("gray", "#8d99a6"),
    "edges": ("ember", "#e07a3f"),
    "motion": ("ember", "#c65a78"),
    "saliency": ("ember", "#d9a441"),
    "position": ("lagoon", "#3f9d97"),
    "clusters": ("lagoon", "#7c78d1"),
    "distance": ("ice", "#4f8fc0"),
    "memory": ("ember", "#b06fb5"),
    "attention": ("ember", "#d1626c"),
    "embedding": ("diverging", "#6f86c9"),
    "text": ("moss", "#5da55c"),
}
OTHER_COLOURS = ("lagoon", "#8d99a6")
CHANNEL_RAMPS = {"red": "red", "green": "green", "blue": "blue", "lowpass": "gray"}
PAPER, INK, FAINT = "#ffffff", "#1c2126", "#6b747d"


def contact_sheet(
    texture: TextureArray, *, tile: int = 208, columns: int | None = None, title: str = ""
) -> Image.Image:
    """Draw the sheet; a tile has the image's shape and an area of about `tile` x `tile` px."""
    if whole_number(tile, least=32) is None:
        raise ArrCocError(f"a tile must be at least 32 pixels, got {tile!r}")
    if columns is not None and whole_number(columns) is None:
        raise ArrCocError(f"a sheet needs at least one column, got {columns!r}")
    shown = [c for c in texture.channels if c.name not in texture.absent]
    height, width = _tile_size(texture.size, tile)
    columns = columns or _best_columns(len(shown), width + 14, height + 52)
    gap, margin, label, head = 14, 24, 40, 64
    rows = math.ceil(len(shown) / columns)
    strip = _strip_lines(texture.absent, columns)
    total = (
        max(420, 2 * margin + columns * width + (columns - 1) * gap),
        margin + head + rows * (height + label + gap) + (26 + 20 * len(strip) if strip else 0) + margin // 2,
    )
    page = Image.new("RGB", total, PAPER)
    draw = ImageDraw.Draw(page)
    original = f"{texture.original_size[1]} x {texture.original_size[0]}"
    title = str(title) or f"{len(texture.names)} channels"
    _fit_text(draw, (margin, margin - 4), title, total[0] - 2 * margin, 25, INK)
    draw.text(
        (margin, margin + 28),
        f"image {original} px, texture {texture.size[1]} x {texture.size[0]} px",
        fill=FAINT,
        font=font(14),
    )
    small = texture.grid(height, width, [c.name for c in shown]).detach().float().cpu() if shown else None
    for i, channel in enumerate(shown):
        x = margin + (i % columns) * (width + gap)
        y = margin + head + (i // columns) * (height + label + gap)
        assert small is not None
        page.paste(Image.fromarray(paint(channel, small[i])), (x, y + label - 4))
        draw.rectangle([x, y + 4, x + 4, y + label - 10], fill=FAMILY_COLOURS.get(channel.family, OTHER_COLOURS)[1])
        _fit_text(draw, (x + 10, y), channel.name, width - 10, 15, INK)
        full = texture[channel.name]
        _fit_text(draw, (x + 10, y + 17), f"{channel.family}   {_span(full)}", width - 10, 12, FAINT)
    y = margin + head + rows * (height + label + gap)
    if strip:
        draw.text((margin, y), "Not supplied by the caller, zero everywhere", fill=INK, font=font(14))
        for i, line in enumerate(strip):
            draw.text((margin, y + 22 + 20 * i), line, fill=FAINT, font=font(14))
    return page


def paint(channel: Channel, plane: torch.Tensor) -> np.ndarray:
    """One channel's plane `[h, w]` in its family's colours: uint8 `[h, w, 3]`."""
    if channel.pool == "nearest":
        return colourise_ids(plane)
    ramp = CHANNEL_RAMPS.get(channel.name) or FAMILY_COLOURS.get(channel.family, OTHER_COLOURS)[0]
    low, high = channel.range
    if low < 0:  # signed channels are centred, so that zero is always the neutral colour
        high = max(float(plane.abs().max()), 1e-6)
        return colourise(plane, "diverging", -high, high)
    if channel.family in ("colour", "position") or channel.name == "lowpass":
        return colourise(plane, ramp, low, high)
    return colourise(plane, ramp, 0.0, max(float(plane.max()), 1e-6))


def _tile_size(size: tuple[int, int], tile: int) -> tuple[int, int]:
    aspect = min(3.0, max(1 / 3, size[0] / size[1]))  # a very narrow image still gets a visible tile
    return round(tile * aspect**0.5), round(tile / aspect**0.5)


def _best_columns(tiles: int, width: int, height: int) -> int:
    """As many columns as bring the page closest to 3:2."""
    if tiles <= 3:
        return max(1, tiles)
    return min(range(3, tiles + 1), key=lambda n: abs(math.log(n * width / (math.ceil(tiles / n) * height) / 1.5)))


def _strip_lines(absent: tuple[str, ...], columns: int) -> list[str]:
    embeddings = [name for name in absent if name.startswith("embedding_")]
    names = [name for name in absent if name not in embeddings]
    if embeddings:
        names.append(f"{embeddings[0]} .. {embeddings[-1][-2:]}" if len(embeddings) > 1 else embeddings[0])
    per_line = max(2, columns)
    return [",  ".join(names[i : i + per_line]) for i in range(0, len(names), per_line)]


def _span(plane: torch.Tensor) -> str:
    low, high = (float(v) for v in torch.aminmax(plane.detach()))
    return f"{_short(low)} .. {_short(high)}"


def _short(value: float) -> str:
    """Three digits; less than a thousandth is shown as 0."""
    return "0" if abs(value) < 1e-3 else f"{value:.3g}"


def _fit_text(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, size: int, ink: str) -> None:
    """Draw text, shrunk down to 8 px until it fits."""
    while size > 8 and draw.textlength(text, font=font(size)) > width:
        size -= 1
    draw.text(at, text, fill=ink, font=font(size))
