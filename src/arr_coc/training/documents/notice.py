"""Notices and signs in colour: bright words and shapes, and often faint text that is asked for.

Texts are asked for by their colour. The palette has a named colour for light and for dark paper.
"""

import random

from arr_coc.training.documents import lexicon, text
from arr_coc.training.documents.page import Document, FontSet, Page, PageQuestion, load_font
from arr_coc.training.documents.questions import NOT_FOUND, ask

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
COLOUR_NAMES: tuple[str, ...] = tuple(sorted({*ON_LIGHT, *ON_DARK, GRAY}))


def colour_number(name: str) -> int:
    """The colour's number as a training target, from 1 on."""
    return COLOUR_NAMES.index(name) + 1


def vary_colour(rng: random.Random, colour: Colour) -> Colour:
    red, green, blue = (min(255, max(0, part + rng.randint(-16, 16))) for part in colour)
    return red, green, blue


def paper_colour(rng: random.Random) -> Colour:
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


def gray_ink(rng: random.Random, background: Colour) -> Colour:
    """A gray with little contrast to the paper, at times with more."""
    level = sum(background) // 3
    away = rng.randint(32, 80) if rng.random() < 0.6 else rng.randint(60, 125)
    level = level + max(60, away) if is_dark(background) else level - away
    return level, level, level


def _message(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(lexicon.NOTICE_MESSAGES).format(n=rng.randint(1, 10 ** rng.randint(1, 4)))
    return text.words(rng, 1, 4) if kind < 0.85 else f"{text.word(rng)} {text.code(rng)}"


def _shapes(rng: random.Random, page: Page, inks: list[Colour]) -> None:
    """Filled shapes, bars and stripes as distractors."""
    for _ in range(rng.randint(0, 4)):
        size = rng.uniform(0.06, 0.3) * min(page.width, page.height)
        x, y = rng.uniform(0, page.width - size), rng.uniform(0, page.height - size)
        colour = vary_colour(rng, rng.choice(inks))
        kind = rng.choice(("box", "disc", "frame", "bar"))
        if kind == "disc":
            page.draw.ellipse((x, y, x + size, y + size), fill=colour)
        elif kind == "frame":
            page.draw.rectangle((x, y, x + size * 1.6, y + size), outline=colour, width=rng.randint(2, 6))
        else:
            tall = size if kind == "box" else size * 0.15
            page.draw.rectangle((x, y, x + size * 1.5, y + tall), fill=colour)


def _place(
    rng: random.Random, page: Page, taken: list[tuple[float, float, float, float]], wide: float, tall: float
) -> tuple[float, float] | None:
    """A free spot for a text of that size, or None when the page is full."""
    for _ in range(12):
        x, y = rng.uniform(4, max(5, page.width - wide - 4)), rng.uniform(4, max(5, page.height - tall - 8))
        if all(x > right or x + wide < left or y > bottom or y + tall < top for left, top, right, bottom in taken):
            return x, y
    return None


def _size(rng: random.Random, quiet: bool, alone: bool, height: int) -> int:
    if alone and rng.random() < 0.6:  # a sign: few words, large
        return int(rng.uniform(20, max(24, min(90, height * 0.6))))
    return rng.randint(13, 28) if quiet else int(rng.uniform(14, 30) * rng.choice((1, 1, 1.6)))


def _colour_names(rng: random.Random, inks: dict[str, Colour]) -> list[str]:
    names = rng.sample(sorted(inks), rng.choice((0, 1, 2, 2, 3, 3, 4)))
    if rng.random() < 0.7 or not names:
        names.append(GRAY)
    rng.shuffle(names)
    return names


def render(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False) -> Document:
    """A coloured notice with one text per colour, one of them often gray and faint."""
    background = paper_colour(rng)
    inks = ON_DARK if is_dark(background) else ON_LIGHT
    page = Page(width, height, background)
    _shapes(rng, page, list(inks.values()))
    names = _colour_names(rng, inks)
    questions: list[PageQuestion] = []
    taken: list[tuple[float, float, float, float]] = []
    shown: dict[str, tuple[str, int]] = {}  # text and line of each colour
    for name in names:
        quiet = name == GRAY
        font = load_font(fonts.pick(rng, 0.3), _size(rng, quiet, len(names) == 1, height))
        message = font.shorten(text.Case.choose(rng, 0.5)(_message(rng)), width - 12)
        spot = _place(rng, page, taken, font.width(message), font.ascent + font.descent)
        if spot is None or any(message in other or other in message for other, _ in shown.values()):
            continue
        x, y = spot
        box = (x - 4, y - 4, x + font.width(message) + 4, y + font.ascent + font.descent + 4)
        page.draw.rectangle(box, fill=background)  # shapes never cross texts
        ink = gray_ink(rng, background) if quiet else vary_colour(rng, inks[name])
        index = page.write(x, y, message, font, ink, colour=colour_number(name))
        taken.append((x - 8, y - 8, box[2] + 4, box[3] + 4))
        shown[name] = message, index
        questions.append(ask(rng, "notice", message, (index,), held_out, which=_colour_word(rng, name)))
    if len(shown) == 1:
        message, index = next(iter(shown.values()))
        questions.append(ask(rng, "sign", message, (index,), held_out))
    if shown and rng.random() < 0.5:
        name = rng.choice(list(shown))
        message, index = shown[name]
        questions.append(ask(rng, "colour", name, (index,), held_out, words=message))
    if rng.random() < 0.3:
        absent = rng.choice([name for name in COLOUR_NAMES if name not in shown])
        which = _colour_word(rng, absent)
        # That a colour is missing can only be known when all texts are visible.
        everything = tuple(index for _, index in shown.values())
        questions.append(ask(rng, "notice", NOT_FOUND, everything, held_out, which=which))
    return page.document(questions)


def _colour_word(rng: random.Random, name: str) -> str:
    return rng.choice(("gray", "gray", "grey")) if name == GRAY else name
