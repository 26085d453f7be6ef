"""A large page with a block of small print, and photographs without any."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

LINES = 24


def printed(width: int = 1500, height: int = 2000, angle: float = 0.0, seed: int = 0) -> tuple[Image.Image, np.ndarray]:
    """A dark table with a sheet of print on it, turned clockwise; and the sheet's corners in the image `[4, 2]`."""
    rng = np.random.default_rng(seed)
    sheet = Image.new("RGB", (width // 2, height // 2), (240, 240, 236))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(height // 2 // (2 * LINES))
    step = sheet.height / (LINES + 2)
    for row in range(LINES):
        words = "".join(rng.choice(list("ABCDEFGHIKLMNOPRSTUVWX 0123456789"), 52))
        draw.text((sheet.width * 0.06, step * (row + 1)), words, fill=(20, 20, 20), font=font)
    table = Image.new("RGB", (width, height), (70, 60, 50))
    place = (width // 3, height // 4)
    table.paste(sheet.convert("RGB"), place)
    turned = table.rotate(-angle, Image.Resampling.BICUBIC, fillcolor=(70, 60, 50))
    corners = np.array([[0, 0], [sheet.width, 0], [sheet.width, sheet.height], [0, sheet.height]], float) + place
    turn = np.deg2rad(angle)
    centre = np.array([width / 2, height / 2])
    return turned, (corners - centre) @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) + centre


def scenery(width: int = 1500, height: int = 2000, seed: int = 0) -> Image.Image:
    """Soft colours without any print."""
    small = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(9))
