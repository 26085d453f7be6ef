"""Notices and signs in colour: loud words and shapes, and beside them the quiet text that is asked for."""

import random

from arr_coc.training.documents import colours, text
from arr_coc.training.documents.fonts import FontShelf, load
from arr_coc.training.documents.page import Document, Page, Question
from arr_coc.training.documents.questions import NOT_FOUND, ask

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


def _shapes(rng: random.Random, page: Page, inks: list[colours.Colour]) -> None:
    """Filled shapes, bars and stripes that draw the eye and say nothing."""
    for _ in range(rng.randint(0, 4)):
        size = rng.uniform(0.06, 0.3) * min(page.width, page.height)
        x, y = rng.uniform(0, page.width - size), rng.uniform(0, page.height - size)
        colour = colours.shade(rng, rng.choice(inks))
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


def _colour_names(rng: random.Random, inks: dict[str, colours.Colour]) -> list[str]:
    names = rng.sample(sorted(inks), rng.choice((0, 1, 2, 2, 3, 3, 4)))
    if rng.random() < 0.7 or not names:
        names.append(colours.GRAY)
    rng.shuffle(names)
    return names


def render(rng: random.Random, shelf: FontShelf, width: int, height: int, held_out: bool = False) -> Document:
    """A coloured notice with one text per colour, one of them often gray and faint."""
    background = colours.paper(rng)
    inks = colours.ON_DARK if colours.is_dark(background) else colours.ON_LIGHT
    page = Page(width, height, background)
    _shapes(rng, page, list(inks.values()))
    names = _colour_names(rng, inks)
    questions: list[Question] = []
    taken: list[tuple[float, float, float, float]] = []
    shown: dict[str, tuple[str, int]] = {}  # text and line of each colour
    for name in names:
        quiet = name == colours.GRAY
        font = load(shelf.pick(rng, 0.3), _size(rng, quiet, len(names) == 1, height))
        message = font.shortened(text.Case.choose(rng, 0.5)(_message(rng)), width - 12)
        spot = _place(rng, page, taken, font.width(message), font.ascent + font.descent)
        if spot is None or any(message in other or other in message for other, _ in shown.values()):
            continue
        x, y = spot
        box = (x - 4, y - 4, x + font.width(message) + 4, y + font.ascent + font.descent + 4)
        page.draw.rectangle(box, fill=background)  # shapes surround texts but never cross them
        ink = colours.gray(rng, background) if quiet else colours.shade(rng, inks[name])
        index = page.write(x, y, message, font, ink, colour=colours.number(name))
        taken.append((x - 8, y - 8, box[2] + 4, box[3] + 4))
        shown[name] = message, index
        questions.append(Question("notice", ask(rng, "notice", held_out, which=_called(rng, name)), message, (index,)))
    if len(shown) == 1:
        message, index = next(iter(shown.values()))
        questions.append(Question("sign", ask(rng, "sign", held_out), message, (index,)))
    if shown and rng.random() < 0.5:
        name = rng.choice(list(shown))
        message, index = shown[name]
        questions.append(Question("colour", ask(rng, "colour", held_out, words=message), name, (index,)))
    if rng.random() < 0.3:
        absent = rng.choice([name for name in colours.NAMES if name not in shown])
        asked = ask(rng, "notice", held_out, which=_called(rng, absent))
        # Whether a colour is missing can only be told when all texts are seen.
        questions.append(Question("notice", asked, NOT_FOUND, tuple(index for _, index in shown.values())))
    return page.document(questions)


def _called(rng: random.Random, name: str) -> str:
    return rng.choice(("gray", "gray", "grey")) if name == colours.GRAY else name
