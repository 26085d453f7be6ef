"""The colours that texts are asked for by: their names, and what they look like on light and on dark paper."""

import random

Colour = tuple[int, int, int]

ON_LIGHT: dict[str, Colour] = {
    "red": (205, 30, 30),
    "blue": (30, 60, 200),
    "green": (20, 135, 50),
    "orange": (240, 130, 15),
    "purple": (125, 40, 155),
    "pink": (240, 90, 170),
    "black": (15, 15, 15),
    "brown": (115, 70, 30),
}
ON_DARK: dict[str, Colour] = {
    "red": (250, 80, 70),
    "blue": (90, 150, 255),
    "green": (80, 215, 100),
    "orange": (255, 160, 40),
    "purple": (190, 115, 240),
    "pink": (255, 140, 200),
    "white": (245, 245, 245),
    "yellow": (250, 230, 60),
}
GRAY = "gray"
NAMES: tuple[str, ...] = tuple(sorted({*ON_LIGHT, *ON_DARK, GRAY}))
UNNAMED = 0


def number(name: str) -> int:
    """The colour's number as a target, from 1; `UNNAMED` is for text whose colour nobody asks for."""
    return NAMES.index(name) + 1


def shade(rng: random.Random, colour: Colour) -> Colour:
    red, green, blue = (min(255, max(0, part + rng.randint(-16, 16))) for part in colour)
    return red, green, blue


def paper(rng: random.Random) -> Colour:
    """Mostly light paper, white or tinted; one in six is dark."""
    style = rng.random()
    if style < 0.16:
        level = rng.randint(8, 45)
        red, green, blue = (level + rng.randint(0, 22) for _ in range(3))
        return red, green, blue
    if style < 0.78:
        level = rng.randint(215, 255)
        red, green, blue = (min(255, level + rng.randint(-10, 6)) for _ in range(3))
        return red, green, blue
    return rng.choice(((250, 240, 200), (225, 240, 250), (245, 225, 225), (255, 240, 150), (225, 245, 225)))


def is_dark(background: Colour) -> bool:
    return sum(background) < 3 * 128


def gray(rng: random.Random, background: Colour) -> Colour:
    """Quiet text: a gray that stands out from the paper only a little, at times more."""
    level = sum(background) // 3
    away = rng.randint(32, 80) if rng.random() < 0.6 else rng.randint(60, 125)
    level = level + max(60, away) if is_dark(background) else level - away
    return level, level, level
