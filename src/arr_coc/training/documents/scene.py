"""Drawn scenes: simple objects in named colours on textured backgrounds, to be found, counted, compared and described.

Everything is drawn by code from a seed, so that a scene can be made again anywhere. Each object is a cut-out with an outline in
a unit square; its box is where its ink is after it was scaled, turned and placed.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from arr_coc.training.documents import text
from arr_coc.training.documents.page import Box, Document, FontSet, Page, load_font
from arr_coc.training.documents.phrasings import Asker

Colour = tuple[int, int, int]

COLOURS: dict[str, Colour] = {
    "red": (210, 35, 35), "blue": (35, 75, 205), "green": (30, 140, 60), "yellow": (245, 210, 40), "orange": (240, 130, 25),
    "purple": (125, 50, 160), "pink": (240, 120, 175), "brown": (115, 70, 35), "black": (25, 25, 28), "white": (245, 245, 242),
    "gray": (128, 128, 130),
}  # fmt: skip
_WOOD, _GLASS, _DARK, _PALE = (120, 82, 45), (170, 205, 225), (40, 40, 45), (250, 248, 240)
_FINE = 3  # objects are drawn this much larger, then reduced: smooth edges
_SOLID = 100  # alpha from which a pixel is part of an object


class Pencil:
    """Draws in a unit square on a transparent picture of `side` pixels."""

    def __init__(self, side: int, colour: Colour) -> None:
        self.side, self.colour = side, colour
        self.image = Image.new("RGBA", (side, side), (*colour, 0))
        self.draw = ImageDraw.Draw(self.image)

    def shade(self, factor: float) -> Colour:
        """The object's colour, darker or lighter."""
        red, green, blue = (min(255, round(part * factor + (30 if factor > 1 else 0))) for part in self.colour)
        return red, green, blue

    def _scaled(self, points: Sequence[float]) -> list[float]:
        return [value * self.side for value in points]

    def oval(self, left: float, top: float, right: float, bottom: float, fill: Colour | None = None) -> None:
        self.draw.ellipse(self._scaled((left, top, right, bottom)), fill=fill or self.colour)

    def box(
        self, left: float, top: float, right: float, bottom: float, fill: Colour | None = None, round_: float = 0
    ) -> None:
        self.draw.rounded_rectangle(
            self._scaled((left, top, right, bottom)), round_ * self.side, fill=fill or self.colour
        )

    def shape(self, *points: float, fill: Colour | None = None) -> None:
        """A polygon: x, y, x, y, ..."""
        self.draw.polygon(self._scaled(points), fill=fill or self.colour)

    def line(self, *points: float, fill: Colour | None = None, width: float = 0.04) -> None:
        self.draw.line(self._scaled(points), fill=fill or self.colour, width=round(width * self.side), joint="curve")

    def arc(self, box: Box, start: float, end: float, fill: Colour | None = None, width: float = 0.05) -> None:
        self.draw.arc(self._scaled(box), start, end, fill=fill or self.colour, width=round(width * self.side))

    def slice(self, box: Box, start: float, end: float, fill: Colour | None = None) -> None:
        self.draw.pieslice(self._scaled(box), start, end, fill=fill or self.colour)


def _ball(p: Pencil) -> None:
    p.oval(0.05, 0.05, 0.95, 0.95)
    p.arc((-0.55, 0.02, 0.35, 0.98), -48, 48, p.shade(0.6))
    p.arc((0.65, 0.02, 1.55, 0.98), 132, 228, p.shade(0.6))
    p.oval(0.25, 0.15, 0.42, 0.3, p.shade(1.4))


def _cup(p: Pencil) -> None:
    p.arc((0.6, 0.3, 0.98, 0.72), -90, 90, p.shade(0.8), 0.08)
    p.shape(0.1, 0.15, 0.78, 0.15, 0.7, 0.9, 0.18, 0.9)
    p.oval(0.1, 0.08, 0.78, 0.24, p.shade(0.6))


def _house(p: Pencil) -> None:
    p.box(0.12, 0.45, 0.88, 0.98)
    p.shape(0.02, 0.47, 0.5, 0.05, 0.98, 0.47, fill=p.shade(0.55))
    p.box(0.42, 0.65, 0.6, 0.98, _WOOD)
    p.box(0.2, 0.55, 0.36, 0.72, _GLASS)
    p.box(0.67, 0.55, 0.82, 0.72, _GLASS)


def _tree(p: Pencil) -> None:
    p.box(0.43, 0.6, 0.57, 0.99, _WOOD)
    for left, top in ((0.08, 0.25), (0.42, 0.25), (0.25, 0.05), (0.25, 0.32)):
        p.oval(left, top, left + 0.5, top + 0.42)


def _car(p: Pencil) -> None:
    p.shape(0.2, 0.5, 0.32, 0.28, 0.68, 0.28, 0.82, 0.5)
    p.box(0.02, 0.46, 0.98, 0.72, round_=0.06)
    p.shape(0.28, 0.48, 0.36, 0.33, 0.49, 0.33, 0.49, 0.48, fill=_GLASS)
    p.shape(0.53, 0.48, 0.53, 0.33, 0.65, 0.33, 0.74, 0.48, fill=_GLASS)
    for left in (0.14, 0.66):
        p.oval(left, 0.6, left + 0.22, 0.82, _DARK)
        p.oval(left + 0.06, 0.66, left + 0.16, 0.76, (190, 190, 195))


def _book(p: Pencil) -> None:
    p.shape(0.08, 0.2, 0.8, 0.08, 0.95, 0.8, 0.22, 0.93, fill=_PALE)
    p.shape(0.05, 0.15, 0.75, 0.04, 0.88, 0.74, 0.18, 0.88)
    p.line(0.2, 0.32, 0.6, 0.25, fill=p.shade(0.5))
    p.line(0.22, 0.45, 0.55, 0.39, fill=p.shade(0.5))


def _bottle(p: Pencil) -> None:
    p.box(0.4, 0.02, 0.6, 0.14, _DARK)
    p.box(0.42, 0.1, 0.58, 0.35)
    p.box(0.28, 0.32, 0.72, 0.98, round_=0.08)
    p.box(0.28, 0.5, 0.72, 0.75, _PALE)


def _apple(p: Pencil) -> None:
    p.line(0.5, 0.3, 0.56, 0.05, fill=_WOOD, width=0.05)
    p.oval(0.56, 0.06, 0.8, 0.2, (60, 140, 60))
    p.oval(0.08, 0.2, 0.6, 0.9)
    p.oval(0.4, 0.2, 0.92, 0.9)
    p.oval(0.2, 0.32, 0.32, 0.46, p.shade(1.4))


def _chair(p: Pencil) -> None:
    p.box(0.2, 0.02, 0.3, 0.98, p.shade(0.75))
    p.box(0.2, 0.05, 0.34, 0.5)
    p.box(0.2, 0.5, 0.85, 0.62)
    p.box(0.75, 0.6, 0.83, 0.98, p.shade(0.75))


def _umbrella(p: Pencil) -> None:
    p.line(0.5, 0.3, 0.5, 0.88, fill=_DARK)
    p.arc((0.32, 0.76, 0.52, 0.97), 0, 180, _DARK, 0.04)
    p.slice((0.03, 0.05, 0.97, 0.99), 180, 360)
    for left in (0.03, 0.345, 0.66):
        p.slice((left, 0.42, left + 0.31, 0.62), 180, 360, p.shade(0.7))


def _lamp(p: Pencil) -> None:
    p.shape(0.3, 0.05, 0.7, 0.05, 0.9, 0.45, 0.1, 0.45)
    p.box(0.46, 0.45, 0.54, 0.9, _DARK)
    p.oval(0.25, 0.85, 0.75, 0.98, _DARK)


def _fish(p: Pencil) -> None:
    p.shape(0.65, 0.5, 0.98, 0.22, 0.98, 0.78, fill=p.shade(0.75))
    p.oval(0.03, 0.22, 0.78, 0.78)
    p.oval(0.16, 0.38, 0.26, 0.48, _PALE)
    p.oval(0.19, 0.4, 0.25, 0.46, _DARK)
    p.arc((0.2, 0.3, 0.5, 0.7), -60, 60, p.shade(0.6))


def _flower(p: Pencil) -> None:
    p.line(0.5, 0.45, 0.5, 0.98, fill=(50, 130, 60), width=0.06)
    p.oval(0.52, 0.65, 0.8, 0.8, (50, 130, 60))
    for angle in range(0, 360, 60):
        x, y = 0.5 + 0.2 * np.cos(np.deg2rad(angle)), 0.3 + 0.2 * np.sin(np.deg2rad(angle))
        p.oval(x - 0.13, y - 0.13, x + 0.13, y + 0.13)
    p.oval(0.38, 0.18, 0.62, 0.42, (240, 190, 40) if p.colour != COLOURS["yellow"] else _WOOD)


def _boat(p: Pencil) -> None:
    p.box(0.46, 0.05, 0.51, 0.68, _WOOD)
    p.shape(0.53, 0.08, 0.9, 0.6, 0.53, 0.6, fill=_PALE)
    p.shape(0.44, 0.15, 0.44, 0.6, 0.15, 0.6, fill=_PALE)
    p.shape(0.02, 0.66, 0.98, 0.66, 0.8, 0.92, 0.2, 0.92)


def _balloon(p: Pencil) -> None:
    p.line(0.5, 0.72, 0.47, 0.85, 0.53, 0.98, fill=_DARK, width=0.02)
    p.shape(0.44, 0.76, 0.56, 0.76, 0.5, 0.66, fill=p.shade(0.7))
    p.oval(0.15, 0.02, 0.85, 0.72)
    p.oval(0.28, 0.12, 0.42, 0.3, p.shade(1.4))


def _envelope(p: Pencil) -> None:
    p.box(0.03, 0.2, 0.97, 0.82)
    p.line(0.03, 0.2, 0.5, 0.55, 0.97, 0.2, fill=p.shade(0.5), width=0.03)


def _key(p: Pencil) -> None:
    p.arc((0.03, 0.3, 0.43, 0.7), 0, 360, width=0.1)
    p.box(0.4, 0.46, 0.97, 0.55)
    p.box(0.75, 0.5, 0.81, 0.68)
    p.box(0.88, 0.5, 0.94, 0.72)


def _mushroom(p: Pencil) -> None:
    p.box(0.38, 0.45, 0.62, 0.97, _PALE, round_=0.08)
    p.slice((0.04, 0.08, 0.96, 0.98), 180, 360)
    for x, y in ((0.25, 0.32), (0.5, 0.2), (0.72, 0.36)):
        p.oval(x - 0.06, y - 0.06, x + 0.06, y + 0.06, _PALE)


def _hat(p: Pencil) -> None:
    p.box(0.25, 0.2, 0.75, 0.72, round_=0.05)
    p.box(0.25, 0.56, 0.75, 0.68, p.shade(0.5))
    p.oval(0.02, 0.62, 0.98, 0.84)


def _cat(p: Pencil) -> None:
    p.shape(0.12, 0.45, 0.16, 0.05, 0.45, 0.26)
    p.shape(0.88, 0.45, 0.84, 0.05, 0.55, 0.26)
    p.oval(0.08, 0.18, 0.92, 0.92)
    for x in (0.3, 0.6):
        p.oval(x, 0.42, x + 0.12, 0.54, (190, 220, 90))
        p.oval(x + 0.04, 0.43, x + 0.08, 0.53, _DARK)
    p.shape(0.46, 0.62, 0.54, 0.62, 0.5, 0.68, fill=(230, 130, 140))
    for y in (0.64, 0.72):
        p.line(0.08, y, 0.38, 0.67, fill=_PALE, width=0.015)
        p.line(0.62, 0.67, 0.92, y, fill=_PALE, width=0.015)


def _dog(p: Pencil) -> None:
    p.oval(0.15, 0.12, 0.85, 0.92)
    p.oval(0.02, 0.15, 0.28, 0.68, p.shade(0.6))
    p.oval(0.72, 0.15, 0.98, 0.68, p.shade(0.6))
    for x in (0.33, 0.57):
        p.oval(x, 0.36, x + 0.1, 0.47, _PALE)
        p.oval(x + 0.02, 0.38, x + 0.08, 0.46, _DARK)
    p.oval(0.3, 0.52, 0.7, 0.88, p.shade(1.3))
    p.oval(0.42, 0.55, 0.58, 0.66, _DARK)
    p.line(0.5, 0.66, 0.5, 0.76, 0.42, 0.8, fill=_DARK, width=0.02)


def _bird(p: Pencil) -> None:
    p.shape(0.7, 0.5, 0.98, 0.38, 0.95, 0.62, fill=p.shade(0.7))
    p.oval(0.2, 0.32, 0.8, 0.8)
    p.oval(0.08, 0.14, 0.45, 0.5)
    p.shape(0.1, 0.28, 0.0, 0.36, 0.12, 0.4, fill=(240, 160, 30))
    p.oval(0.2, 0.24, 0.27, 0.31, _PALE)
    p.oval(0.36, 0.42, 0.7, 0.66, p.shade(0.7))
    p.line(0.45, 0.78, 0.45, 0.97, fill=_DARK, width=0.025)
    p.line(0.56, 0.78, 0.56, 0.97, fill=_DARK, width=0.025)


def _bicycle(p: Pencil) -> None:
    for left in (0.02, 0.6):
        p.arc((left, 0.45, left + 0.38, 0.83), 0, 360, _DARK, 0.035)
    p.line(0.21, 0.64, 0.4, 0.36, 0.68, 0.36, 0.79, 0.64, width=0.04)
    p.line(0.21, 0.64, 0.5, 0.66, 0.68, 0.36, width=0.04)
    p.line(0.4, 0.36, 0.5, 0.66, width=0.04)
    p.line(0.34, 0.29, 0.46, 0.29, fill=_DARK, width=0.05)
    p.line(0.68, 0.36, 0.66, 0.24, 0.76, 0.22, fill=_DARK, width=0.035)


def _star(p: Pencil) -> None:
    points = []
    for corner in range(10):
        radius, angle = (0.48, 0.2)[corner % 2], np.pi * (corner / 5 - 0.5)
        points += [0.5 + radius * float(np.cos(angle)), 0.52 + radius * float(np.sin(angle))]
    p.shape(*points)


def _heart(p: Pencil) -> None:
    p.oval(0.05, 0.12, 0.53, 0.58)
    p.oval(0.47, 0.12, 0.95, 0.58)
    p.shape(0.09, 0.45, 0.91, 0.45, 0.5, 0.95)


def _cross(p: Pencil) -> None:
    p.box(0.36, 0.04, 0.64, 0.96)
    p.box(0.04, 0.36, 0.96, 0.64)


_OBJECTS: dict[str, Callable[[Pencil], None]] = {
    "apple": _apple, "ball": _ball, "balloon": _balloon, "bicycle": _bicycle, "bird": _bird, "boat": _boat, "book": _book,
    "bottle": _bottle, "car": _car, "cat": _cat, "chair": _chair, "cup": _cup, "dog": _dog, "envelope": _envelope,
    "fish": _fish, "flower": _flower, "hat": _hat, "heart": _heart, "house": _house, "key": _key, "lamp": _lamp,
    "mushroom": _mushroom, "star": _star, "tree": _tree, "umbrella": _umbrella,
    "triangle": lambda p: p.shape(0.5, 0.05, 0.97, 0.92, 0.03, 0.92),
    "square": lambda p: p.box(0.08, 0.08, 0.92, 0.92),
    "circle": lambda p: p.oval(0.05, 0.05, 0.95, 0.95),
    "cross": _cross,
    "ring": lambda p: p.arc((0.05, 0.05, 0.95, 0.95), 0, 360, width=0.17),
    "arrow": lambda p: p.shape(0.03, 0.38, 0.55, 0.38, 0.55, 0.15, 0.98, 0.5, 0.55, 0.85, 0.55, 0.62, 0.03, 0.62),
}  # fmt: skip
NAMES: tuple[str, ...] = tuple(_OBJECTS)
_ALIKE = (
    frozenset(("circle", "ball", "balloon", "ring")),
    frozenset(("cup", "bottle")),
    frozenset(("tree", "mushroom")),
)
_PLURALS = {"fish": "fish", "bicycle": "bicycles", "cross": "crosses"}
_BACKGROUNDS = ("plain", "gradient", "meadow", "wood", "bricks", "tiles", "cloth", "water", "clouds", "stripes")


def plural(name: str) -> str:
    return _PLURALS.get(name, f"{name}s")


def with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


@dataclass(frozen=True)
class Placed:
    """One object in a scene: what it is, and the line of its box."""

    name: str
    colour: str
    box: Box
    line: int

    @property
    def middle(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def area(self) -> float:
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])


def background(rng: random.Random, width: int, height: int) -> tuple[np.ndarray, str]:
    """A surface or a landscape, uint8 `[H, W, 3]`, and its name."""
    kind = rng.choice(_BACKGROUNDS)
    noise = np.random.default_rng(rng.getrandbits(32))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    first, second = (noise.uniform(70, 235, 3).astype(np.float32) for _ in range(2))
    second = first + (second - first) * 0.5
    mix: np.ndarray = np.zeros((height, width), np.float32)
    if kind == "gradient":
        angle = rng.uniform(0, 6.3)
        mix = (np.cos(angle) * x / width + np.sin(angle) * y / height + 1) / 2
    elif kind == "meadow":
        first, second = np.array([165, 205, 240], np.float32), np.array([105, 165, 85], np.float32)
        mix = (y > height * rng.uniform(0.3, 0.6) + 8 * np.sin(x / width * rng.uniform(5, 20))).astype(np.float32)
    elif kind == "wood":
        first, second = np.array([196, 154, 108], np.float32), np.array([150, 108, 68], np.float32)
        board = height / rng.randint(3, 8)
        mix = 0.5 + 0.4 * np.sin((y + 6 * np.sin(x / 60 + y // board)) * rng.uniform(0.15, 0.5)) + 2.0 * (y % board < 2)
    elif kind == "bricks":
        first, second = np.array([178, 100, 80], np.float32), np.array([205, 195, 185], np.float32)
        tall = rng.randint(18, 40)
        shifted = x + (y // tall % 2) * tall
        mix = ((y % tall < 3) | (shifted % (2 * tall) < 3)).astype(np.float32)
    elif kind == "tiles":
        side = rng.randint(24, 80)
        mix = ((x // side + y // side) % 2).astype(np.float32)
    elif kind == "water":
        first, second = np.array([90, 150, 190], np.float32), np.array([140, 195, 220], np.float32)
        mix = 0.5 + 0.5 * np.sin(y * rng.uniform(0.1, 0.3) + 2 * np.sin(x * rng.uniform(0.02, 0.05)))
    elif kind == "stripes":
        mix = ((x * rng.choice((0, 1)) + y) // rng.randint(14, 60) % 2).astype(np.float32)
    elif kind in ("cloth", "clouds"):
        size = (6, 6) if kind == "clouds" else (height // 3 + 2, width // 3 + 2)
        mix = cv2.resize(noise.random(size, dtype=np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    mix = np.clip(mix, 0, 1)[..., None]
    grain = noise.normal(0, rng.uniform(0, 7), (height, width, 1)).astype(np.float32)
    return np.clip(first * (1 - mix) + second * mix + grain, 0, 255).astype(np.uint8), kind


def cut_out(rng: random.Random, name: str, colour: Colour, side: int) -> Image.Image:
    """An object of at most `side` pixels on a transparent picture, cropped to its ink; at times mirrored or tilted."""
    varied = tuple(min(255, max(0, part + rng.randint(-14, 14))) for part in colour)
    pencil = Pencil(side * _FINE, (varied[0], varied[1], varied[2]))
    _OBJECTS[name](pencil)
    image = pencil.image
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if rng.random() < 0.4:
        image = image.rotate(rng.uniform(-25, 25), Image.Resampling.BICUBIC, expand=True)
    image = image.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    solid = image.getchannel("A").point(lambda alpha: 255 if alpha > _SOLID else 0).getbbox()
    return image.crop(solid) if solid else image


def _spot(
    rng: random.Random, size: tuple[int, int], page: tuple[int, int], taken: Sequence[Box]
) -> tuple[int, int] | None:
    """A place on the page that touches no other object; None if there is none after some tries."""
    for _ in range(30):
        x, y = rng.randint(2, max(2, page[0] - size[0] - 2)), rng.randint(2, max(2, page[1] - size[1] - 2))
        if x + size[0] < page[0] and y + size[1] < page[1] and all(
            x > right + 6 or x + size[0] + 6 < left or y > bottom + 6 or y + size[1] + 6 < top
            for left, top, right, bottom in taken
        ):  # fmt: skip
            return x, y
    return None


def _paste(rng: random.Random, canvas: Image.Image, image: Image.Image, at: tuple[int, int]) -> None:
    """The cut-out with a soft shadow, which is no part of its box."""
    if rng.random() < 0.6:
        shadow = Image.new("L", (image.width + 16, image.height + 16), 0)
        shadow.paste(image.getchannel("A").point(lambda alpha: alpha // 3), (8, 8))
        canvas.paste((0, 0, 0), (at[0] - 5, at[1] - 4), shadow.filter(ImageFilter.GaussianBlur(3)))
    canvas.paste(image, at, image)


def _visible(rng: random.Random, canvas: Image.Image, box: tuple[int, int, int, int]) -> str:
    """A colour that differs from the background at a place."""
    under = np.asarray(canvas.crop(box)).reshape(-1, 3).mean(0)
    apart = [name for name, value in COLOURS.items() if np.abs(np.array(value) - under).sum() > 130]
    return rng.choice(apart or ["black"])


def _place_objects(rng: random.Random, page: Page, canvas: Image.Image) -> list[Placed]:
    """Some objects of one to several kinds, without overlaps."""
    smaller = min(page.width, page.height)
    wanted: list[str] = []
    for name in rng.sample(NAMES, rng.randint(1, 6)):
        if not any(name in group and other in group for group in _ALIKE for other in wanted):
            wanted += [name] * rng.choice((1, 1, 1, 1, 2, 3, rng.randint(4, 7)))
    rng.shuffle(wanted)
    placed: list[Placed] = []
    for name in wanted[:12]:
        side = round(smaller * rng.uniform(0.1, 0.34 if len(wanted) < 6 else 0.2))
        spot = _spot(rng, (side, side), (page.width, page.height), [one.box for one in placed])
        if spot is None:
            continue
        colour = _visible(rng, canvas, (*spot, spot[0] + side, spot[1] + side))
        image = cut_out(rng, name, COLOURS[colour], side)
        box = (float(spot[0]), float(spot[1]), float(spot[0] + image.width), float(spot[1] + image.height))
        _paste(rng, canvas, image, spot)
        placed.append(Placed(name, colour, box, page.mark(box)))
    return placed


def _clock(rng: random.Random, page: Page, canvas: Image.Image, taken: Sequence[Box]) -> tuple[Box, str] | None:
    """A clock with hands; its box and the time."""
    side = round(min(page.width, page.height) * rng.uniform(0.2, 0.35))
    spot = _spot(rng, (side, side), (page.width, page.height), taken)
    if spot is None:
        return None
    hour, minute = rng.randrange(12), rng.randrange(0, 60, 5)
    pencil = Pencil(side * _FINE, rng.choice(list(COLOURS.values())))
    pencil.oval(0.01, 0.01, 0.99, 0.99)
    pencil.oval(0.08, 0.08, 0.92, 0.92, _PALE)
    for mark in range(12):
        x, y = np.sin(mark * np.pi / 6), -np.cos(mark * np.pi / 6)
        pencil.line(0.5 + 0.33 * x, 0.5 + 0.33 * y, 0.5 + 0.39 * x, 0.5 + 0.39 * y, fill=_DARK, width=0.03)
    for turn, long, thick in (((hour + minute / 60) / 12, 0.2, 0.05), (minute / 60, 0.32, 0.03)):
        x, y = np.sin(turn * 2 * np.pi), -np.cos(turn * 2 * np.pi)
        pencil.line(0.5, 0.5, 0.5 + long * x, 0.5 + long * y, fill=_DARK, width=thick)
    image = pencil.image.resize((side, side), Image.Resampling.LANCZOS)
    _paste(rng, canvas, image, spot)
    return (spot[0], spot[1], spot[0] + side, spot[1] + side), f"{hour or 12}:{minute:02d}"


def _sign(
    rng: random.Random, page: Page, canvas: Image.Image, fonts: FontSet, taken: Sequence[Box]
) -> tuple[Box, str, int, int] | None:
    """A plain sign for words that are written later; its box, the words, the font's size and the ink's gray level."""
    words = rng.choice(("EXIT", "STOP", "OPEN", "CLOSED", "TAXI", "CAFE", "SALE", text.invented_word(rng, (2, 3))))
    size = rng.randint(16, 34)
    wide = round(load_font(fonts.paths[0], size).width(words)) + size * 2
    spot = _spot(rng, (wide, size * 2), (page.width, page.height), taken)
    if spot is None:
        return None
    box = (spot[0], spot[1], spot[0] + wide, spot[1] + size * 2)
    ImageDraw.Draw(canvas).rounded_rectangle(box, 5, fill=_PALE, outline=_DARK, width=3)
    return box, words, size, rng.randint(0, 60)


def region(box: Box, width: int, height: int) -> str:
    """Where a box lies, in words: "top left", "left", "centre", ..."""
    x, y = (box[0] + box[2]) / 2 / width, (box[1] + box[3]) / 2 / height
    row = "top" if y < 1 / 3 else "bottom" if y > 2 / 3 else ""
    column = "left" if x < 1 / 3 else "right" if x > 2 / 3 else ""
    return f"{row} {column}".strip() or "centre"


def _relation(rng: random.Random, one: Placed, placed: Sequence[Placed]) -> tuple[str, Placed] | None:
    """A direction from `one` in which exactly one other object lies, and that object."""
    found: dict[str, list[Placed]] = {"to the left of": [], "to the right of": [], "above": [], "below": []}
    for other in placed:
        across, down = other.middle[0] - one.middle[0], other.middle[1] - one.middle[1]
        if other is not one:
            found["to the right of" if across > 0 else "to the left of"] += [other] * (abs(across) > 8)
            found["below" if down > 0 else "above"] += [other] * (abs(down) > 8)
    single = [(words, others[0]) for words, others in found.items() if len(others) == 1]
    return rng.choice(single) if single else None


def _named(one: Placed, names: Counter[str]) -> str:
    """What an object is called: with its colour where there are several of its kind."""
    return one.name if names[one.name] == 1 else f"{one.colour} {one.name}"


def _ask_about(rng: random.Random, asker: Asker, page: Page, placed: Sequence[Placed]) -> None:
    """The questions about the objects of a scene."""
    names = Counter(one.name for one in placed)
    coloured = Counter((one.colour, one.name) for one in placed)
    colours = Counter(one.colour for one in placed)
    unique = [one for one in placed if coloured[one.colour, one.name] == 1]
    for one in rng.sample(unique, min(4, len(unique))):
        alone = names[one.name] == 1
        thing = one.name if alone and rng.random() < 0.7 else f"{one.colour} {one.name}"
        asker.ask("where", region(one.box, page.width, page.height), (one.line,), thing_=thing)
        if alone and rng.random() < 0.6:
            asker.ask("object colour", one.colour, (one.line,), thing_=one.name)
        if (found := _relation(rng, one, placed)) is not None and rng.random() < 0.6:
            words, other = found
            asker.ask("relation", _named(other, names), (one.line, other.line), thing_=thing, relation=words)
    for name in rng.sample(sorted(names), min(2, len(names))):
        lines = tuple(one.line for one in placed if one.name == name)
        asker.ask("count", str(len(lines)), lines, things_=plural(name))
        if len(lines) > 1:
            places = sorted({region(one.box, page.width, page.height) for one in placed if one.name == name})
            asker.ask("where all", " and ".join(places), lines, things_=plural(name))
        if rng.random() < 0.5:
            any_one = tuple((line,) for line in lines)
            asker.ask("is there", "yes", any_one[0], any_one[1:], things_=plural(name), a_thing=with_article(name))
    for colour in rng.sample(sorted(colours), min(2, len(colours))):
        lines = tuple(one.line for one in placed if one.colour == colour)
        if len(lines) == 1 and rng.random() < 0.6:
            asker.ask("coloured", next(one.name for one in placed if one.colour == colour), lines, colour=colour)
    ranked = sorted(placed, key=lambda one: -one.area)
    if len(ranked) > 1 and ranked[0].area > 1.6 * ranked[1].area:
        asker.ask("biggest", _named(ranked[0], names), (ranked[0].line,))


def _ask_absent(rng: random.Random, asker: Asker, placed: Sequence[Placed]) -> None:
    """Questions about objects and colours that the scene does not have."""
    shown = {one.name for one in placed}
    near = {name for group in _ALIKE if group & shown for name in group}
    missing = [name for name in NAMES if name not in shown | near]
    for name in rng.sample(missing, rng.choice((1, 1, 2))):
        kind = rng.choice(("where", "where", "object colour", "is there", "count"))
        answers = {"is there": "no", "count": "0"}
        slots = {"thing_": name, "things_": plural(name), "a_thing": with_article(name)}
        asker.ask_absent(kind, **({"answer": answers[kind]} if kind in answers else {}), **slots)
    if placed and rng.random() < 0.5:  # a thing that is there, in a colour that it does not have
        one = rng.choice(placed)
        others = [
            colour for colour in COLOURS if (colour, one.name) not in {(other.colour, other.name) for other in placed}
        ]
        asker.ask_absent("where", thing_=f"{rng.choice(others)} {one.name}")


def render(
    rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False, invented: bool = False
) -> Document:
    """A scene of `width` x `height` pixels."""
    surface, kind = background(rng, width, height)
    page = Page(width, height, (255, 255, 255))
    canvas = Image.fromarray(surface)
    asker = Asker(rng, held_out)
    placed = _place_objects(rng, page, canvas)
    taken = [one.box for one in placed]
    clock = _clock(rng, page, canvas, taken) if rng.random() < 0.15 else None
    if clock is not None:
        taken.append(clock[0])
    sign = _sign(rng, page, canvas, fonts, taken) if rng.random() < 0.25 else None
    page.image.paste(canvas)
    if clock is not None:
        asker.ask("clock", clock[1], (page.mark(clock[0]),))
    if sign is not None:
        box, words, size, dark = sign
        font = load_font(fonts.paths[0], size)
        line = page.write((box[0] + box[2]) / 2, box[1] + size * 0.65, words, font, (dark, dark, dark), "center")
        asker.ask("sign text", words, (line,), thing_="sign")
    _ask_about(rng, asker, page, placed)
    _ask_absent(rng, asker, placed)
    counted = Counter(f"{one.colour} {one.name}" for one in placed)
    listed = [with_article(what) if count == 1 else f"{count} {plural(what)}" for what, count in counted.items()]
    listed += ["a clock"] * (clock is not None) + ["a sign"] * (sign is not None)
    summary = f"A drawn scene with {', '.join(listed) or 'nothing in it'}; background: {kind}."
    return page.document(asker.questions, summary=summary)
