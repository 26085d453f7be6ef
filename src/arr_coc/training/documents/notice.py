"""Notices and signs in colour: loud words and shapes, and beside them the quiet text that is asked for."""

import random

from arr_coc.training.documents import text
from arr_coc.training.documents.fonts import FontShelf, load
from arr_coc.training.documents.page import Document, Page, Question
from arr_coc.training.documents.questions import NOT_FOUND, ask

_COLOURS = {
    "red": (205, 30, 30),
    "blue": (30, 60, 200),
    "green": (20, 135, 50),
    "orange": (235, 125, 15),
    "purple": (125, 40, 155),
    "black": (15, 15, 15),
    "brown": (115, 70, 30),
}
_MESSAGES = (
    "NO PARKING",
    "EXIT",
    "MEET AT DOCK {n}",
    "GATE {n}",
    "CLOSED ON MONDAYS",
    "WET FLOOR",
    "STAFF ONLY",
    "PUSH",
    "PULL",
    "SALE {n}% OFF",
    "KEEP LEFT",
    "ROOM {n}",
    "PLATFORM {n}",
    "DOORS OPEN AT {n}",
    "MAXIMUM {n} PERSONS",
    "DO NOT ENTER",
    "MIND THE STEP",
    "PLEASE RING THE BELL",
    "KEY UNDER BOX {n}",
    "CODE {n}",
    "LUNCH AT {n}",
    "OPEN DAILY",
    "NO SMOKING",
    "PRIVATE ROAD",
    "TICKETS HERE",
    "BEWARE OF THE DOG",
    "LIFT OUT OF ORDER",
    "CALL {n}",
    "PIN {n}",
)


def _message(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(_MESSAGES).format(n=rng.randint(1, 10 ** rng.randint(1, 4)))
    return text.words(rng, 1, 4) if kind < 0.85 else f"{text.word(rng)} {text.code(rng)}"


def _shade(rng: random.Random, colour: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, part + rng.randint(-18, 18))) for part in colour)
    return red, green, blue


def _background(rng: random.Random) -> tuple[int, int, int]:
    if rng.random() < 0.75:
        level = rng.randint(215, 255)
        red, green, blue = (min(255, level + rng.randint(-14, 6)) for _ in range(3))
        return red, green, blue
    return rng.choice(((250, 240, 200), (225, 240, 250), (245, 225, 225), (255, 235, 120), (225, 245, 225)))


def _shapes(rng: random.Random, page: Page) -> None:
    """Filled shapes, bars and stripes that draw the eye and say nothing."""
    for _ in range(rng.randint(0, 4)):
        size = rng.uniform(0.06, 0.3) * min(page.width, page.height)
        x, y = rng.uniform(0, page.width - size), rng.uniform(0, page.height - size)
        colour = _shade(rng, rng.choice(list(_COLOURS.values())))
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


def render(rng: random.Random, shelf: FontShelf, width: int, height: int, held_out: bool = False) -> Document:
    """A coloured notice with one text per colour, one of them often gray and faint."""
    background = _background(rng)
    page = Page(width, height, background)
    _shapes(rng, page)
    level = sum(background) // 3
    names = rng.sample(sorted(_COLOURS), rng.randint(0, 4))
    if rng.random() < 0.7 or not names:
        names.append("gray")
    rng.shuffle(names)
    questions: list[Question] = []
    taken: list[tuple[float, float, float, float]] = []
    shown: list[str] = []
    for name in names:
        quiet = name == "gray"
        ink = (level - rng.randint(25, 120),) * 3 if quiet else _shade(rng, _COLOURS[name])
        size = rng.randint(11, 26) if quiet else int(rng.uniform(14, 30) * rng.choice((1, 1, 1.6)))
        if len(names) == 1 and rng.random() < 0.6:  # a sign: few words, large
            size = int(rng.uniform(20, max(24, min(90, height * 0.6))))
        font = load(shelf.pick(rng, 0.3), size)
        message = font.shortened(text.Case.choose(rng, 0.5)(_message(rng)), width - 12)
        spot = _place(rng, page, taken, font.width(message), font.ascent + font.descent)
        if spot is None:
            continue
        x, y = spot
        box = (x - 4, y - 4, x + font.width(message) + 4, y + font.ascent + font.descent + 4)
        page.draw.rectangle(box, fill=background)  # shapes surround texts but never cross them
        index = page.write(x, y, message, font, ink)
        taken.append((x - 8, y - 8, box[2] + 4, box[3] + 4))
        shown.append(name)
        which = rng.choice(("gray", "grey")) if quiet else name
        questions.append(Question("notice", ask(rng, "notice", held_out, which=which), message, (index,)))
        if len(names) == 1:
            questions.append(Question("sign", ask(rng, "sign", held_out), message, (index,)))
    if rng.random() < 0.25:
        absent = rng.choice([name for name in (*_COLOURS, "gray") if name not in shown])
        questions.append(Question("notice", ask(rng, "notice", held_out, which=absent), NOT_FOUND))
    return page.document(questions)
