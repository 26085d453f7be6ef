"""The pictures that ship: a receipt and a street scene, drawn here, the same on every machine.

They are drawn when asked for, so that the package carries no image and everybody can see how they were made.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

_ITEMS = (
    ("2 x Flat white", "7.60"),
    ("1 x Oat croissant", "3.45"),
    ("3 x Sourdough roll", "4.20"),
    ("1 x Blackcurrant jam", "5.95"),
    ("1 x Filter coffee 250 g", "11.80"),
    ("2 x Sparkling water", "4.40"),
)
_TOTAL = "37.40"


def receipt() -> Image.Image:
    """A till receipt of 560 x 1212 pixels, slightly turned and unevenly lit, as from a flat-bed scanner."""
    width, height = 560, 1212
    paper = Image.new("L", (width, height), 246)
    draw = ImageDraw.Draw(paper)

    def line(y: int, left: str, right: str = "", size: int = 24, centred: bool = False) -> int:
        font = ImageFont.load_default(size)
        if centred:
            draw.text(((width - draw.textlength(left, font)) / 2, y), left, fill=34, font=font)
        else:
            draw.text((44, y), left, fill=34, font=font)
            draw.text((width - 44 - draw.textlength(right, font), y), right, fill=34, font=font)
        return y + round(size * 1.62)

    def rule(y: int) -> int:
        for x in range(44, width - 44, 14):
            draw.line([(x, y + 8), (x + 7, y + 8)], fill=60, width=2)
        return y + 30

    y = line(58, "HARBOUR MILL BAKERY", size=36, centred=True)
    for text in ("14 Lantern Quay, Unit 3", "Port Ellery PE4 7QD", "Tel 0555 014 2277"):
        y = line(y, text, size=22, centred=True)
    y = rule(y + 14)
    y = line(y, "Receipt 004817", "Till 2")
    y = line(y, "Date 12/03/2026", "09:41")
    y = rule(y + 6)
    for name, price in _ITEMS:
        y = line(y, name, price)
    y = rule(y + 6)
    y = line(y, "Subtotal", _TOTAL)
    y = line(y, "VAT included 10%", "3.40", size=20)
    y = line(y + 8, "TOTAL", _TOTAL, size=36)
    y = line(y, "Card **** 3108", _TOTAL)
    y = rule(y + 6)
    y = line(y + 4, "Bread is baked at four in the morning.", size=20, centred=True)
    y = line(y, "Thank you, and come back hungry.", size=20, centred=True)
    rng = np.random.default_rng(4)
    x = 96
    while x < width - 96:
        bar = int(rng.integers(2, 7))
        draw.rectangle([x, y + 26, x + bar, y + 106], fill=30)
        x += bar + int(rng.integers(3, 9))
    turned = paper.rotate(0.7, Image.Resampling.BICUBIC, fillcolor=238).filter(ImageFilter.GaussianBlur(0.5))
    light = np.linspace(1.0, 0.9, height)[:, None] * np.linspace(0.96, 1.0, width)[None]
    noisy = np.asarray(turned, np.float32) * light + rng.normal(0, 2.5, (height, width))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).convert("RGB")


def scene() -> Image.Image:
    """A street corner of 960 x 640 pixels: sky, houses, a red van with a sign, a tree, a lamp, small figures."""
    width, height, over = 960, 640, 2  # drawn at twice the size, so that its edges are smooth
    image = Image.new("RGB", (width * over, height * over))
    draw = ImageDraw.Draw(image)
    for y in range(height * over):
        t = y / (height * over)
        draw.line([(0, y), (width * over, y)], fill=(int(150 + 80 * t), int(190 + 40 * t), int(232 - 12 * t)))

    def box(x0: float, y0: float, x1: float, y1: float, colour: tuple[int, int, int]) -> None:
        draw.rectangle([x0 * over, y0 * over, x1 * over - 1, y1 * over - 1], fill=colour)

    def disc(x: float, y: float, r: float, colour: tuple[int, int, int]) -> None:
        draw.ellipse([(x - r) * over, (y - r) * over, (x + r) * over, (y + r) * over], fill=colour)

    def word(x: float, y: float, text: str, size: int, colour: tuple[int, int, int]) -> None:
        draw.text((x * over, y * over), text, font=ImageFont.load_default(size * over), fill=colour, anchor="mm")

    disc(820, 96, 44, (255, 236, 170))
    for x, y, r in ((180, 100, 34), (222, 88, 44), (268, 104, 32), (560, 70, 26), (592, 62, 34), (630, 74, 24)):
        disc(x, y, r, (246, 248, 250))
    box(0, 470, width, height, (96, 98, 104))
    box(0, 440, width, 474, (172, 168, 160))
    for x in range(30, width, 120):
        box(x, 560, x + 64, 568, (232, 228, 210))
    for x0, x1, top, wall in (
        (0, 210, 190, (186, 122, 96)),
        (210, 430, 140, (214, 196, 160)),
        (430, 600, 220, (140, 152, 160)),
    ):
        box(x0, top, x1, 442, wall)
        draw.polygon(
            [(x0 * over, top * over), ((x0 + x1) / 2 * over, (top - 60) * over), (x1 * over, top * over)],
            fill=(92, 62, 58),
        )
        for wx in range(x0 + 26, x1 - 40, 56):
            for wy in range(top + 28, 360, 70):
                box(wx, wy, wx + 30, wy + 42, (58, 74, 96))
                box(wx + 3, wy + 3, wx + 13, wy + 39, (104, 128, 152))
    box(236, 372, 404, 400, (40, 66, 58))
    word(320, 386, "HARBOUR MILL BAKERY", 15, (236, 226, 190))
    box(716, 300, 734, 446, (94, 70, 48))
    for x, y, r in ((725, 250, 70), (672, 286, 48), (778, 284, 50), (700, 214, 44), (754, 212, 44)):
        disc(x, y, r, (58, 112, 62))
    rng = np.random.default_rng(11)
    for _ in range(260):
        a, d = rng.uniform(0, 6.283), 88 * rng.uniform(0, 1) ** 0.5
        disc(
            725 + d * np.cos(a),
            254 + 0.9 * d * np.sin(a),
            rng.uniform(2, 5),
            (int(rng.integers(40, 96)), int(rng.integers(110, 160)), 60),
        )
    box(868, 210, 874, 446, (52, 54, 58))
    disc(871, 204, 13, (250, 236, 180))
    box(470, 392, 676, 492, (198, 40, 44))
    box(676, 428, 730, 492, (198, 40, 44))
    box(680, 434, 716, 460, (150, 186, 204))
    box(486, 412, 656, 452, (246, 240, 228))
    word(571, 432, "FRESH BREAD", 24, (40, 36, 36))
    for x in (516, 690):
        disc(x, 494, 24, (34, 34, 38))
        disc(x, 494, 11, (150, 152, 156))
    for x, coat in ((92, (52, 88, 150)), (128, (220, 176, 60)), (820, (92, 60, 120)), (918, (40, 120, 120))):
        disc(x, 418, 8, (222, 184, 156))
        box(x - 9, 427, x + 9, 462, coat)
        box(x - 7, 462, x - 1, 484, (48, 46, 52))
        box(x + 1, 462, x + 7, 484, (48, 46, 52))
    small = np.asarray(image.resize((width, height), Image.Resampling.LANCZOS), np.float32)
    return Image.fromarray(np.clip(small + rng.normal(0, 3, small.shape), 0, 255).astype(np.uint8))
