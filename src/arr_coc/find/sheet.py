"""The images that a query found on one page, with their boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

from arr_coc.draw.overlay import font
from arr_coc.find.index import Found

TILE, GAP, LABEL, MARGIN, HEAD = 260, 16, 24, 20, 44
PAPER, INK, FAINT = "#ffffff", "#1c2126", "#6b747d"
COLOURS = ("#e5484d", "#f0a020", "#f5d76e")  # of the best box and the others


def contact_sheet(query: str, found: Sequence[tuple[Found, Image.Image]]) -> Image.Image:
    """A page of the images, best first; each is given with the picture to draw: itself or its heat map, at any size."""
    columns = max(2, min(4, math.ceil(math.sqrt(len(found)))))
    rows = max(1, math.ceil(len(found) / columns))
    size = (2 * MARGIN + columns * (TILE + GAP) - GAP, MARGIN + HEAD + rows * (TILE + LABEL + GAP))
    page = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((MARGIN, MARGIN), shortened(draw, query, size[0] - 2 * MARGIN, 20), fill=INK, font=font(20))
    for number, (one, image) in enumerate(found):
        x = MARGIN + number % columns * (TILE + GAP)
        y = MARGIN + HEAD + number // columns * (TILE + LABEL + GAP)
        tile = boxed(one, image, TILE)
        page.paste(tile, (x + (TILE - tile.width) // 2, y + LABEL + (TILE - tile.height) // 2))
        name = shortened(draw, f"{one.score:.2f}  {one.path.name}", TILE, 14)
        draw.text((x, y), name, fill=FAINT, font=font(14))
    return page


def boxed(found: Found, image: Image.Image, side: int = 1024) -> Image.Image:
    """The picture, its longer side scaled to `side`, with the boxes of what was found; the best one is red."""
    scale = side / max(image.size)
    shown = image.convert("RGB").resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    draw = ImageDraw.Draw(shown)
    across, down = shown.width / found.size[0], shown.height / found.size[1]
    for colour, (left, top, right, bottom) in reversed(list(zip(COLOURS, found.boxes, strict=False))):
        edges = [left * across, top * down, max(left * across, right * across - 1), max(top * down, bottom * down - 1)]
        draw.rectangle(edges, outline=colour, width=max(2, side // 120))
    return shown


def shortened(draw: ImageDraw.ImageDraw, text: str, width: int, size: int) -> str:
    """The text on one line, cut with an ellipsis where it is wider than `width` px."""
    line = " ".join(text.split())
    if draw.textlength(line, font=font(size)) <= width:
        return line
    while line and draw.textlength(line + "...", font=font(size)) > width:
        line = line[:-1]
    return line + "..."
