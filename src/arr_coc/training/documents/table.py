"""Small tables: a header row, named rows, and questions for the value of a row and a column."""

import random
from collections.abc import Callable

from arr_coc.training.documents import text
from arr_coc.training.documents.names import COUNTRIES, Names
from arr_coc.training.documents.page import Document, FontSet, Page, PageQuestion, Pen, pick_pen
from arr_coc.training.documents.questions import NOT_FOUND, ask

_COLUMNS: dict[str, Callable[[random.Random], str]] = {
    "quantity": lambda rng: str(rng.randint(1, 500)),
    "price": text.money,
    "amount": text.money,
    "stock": lambda rng: str(rng.randint(0, 2000)),
    "code": text.code,
    "size": lambda rng: rng.choice(("S", "M", "L", "XL", f"{rng.randint(1, 90)} cm", f"{rng.randint(1, 90)} mm")),
    "score": lambda rng: str(rng.randint(0, 100)),
    "date": text.date,
    "time": text.time,
    "weight": lambda rng: f"{rng.randint(1, 99)}.{rng.randint(0, 9)}",
    "share": lambda rng: f"{rng.randint(0, 100)}%",
    "year": lambda rng: str(rng.randint(1950, 2030)),
    "colour": lambda rng: rng.choice(("red", "blue", "green", "white", "black", "gray")),
    "team": lambda rng: rng.choice(
        ("Red", "Blue", "Tigers", "Harbour", "Nordic", text.invented_word(rng, (2, 2)).capitalize())
    ),
    "region": lambda rng: rng.choice(
        ("East", "West", "Valley", "Islands", "Central", text.invented_word(rng, (2, 3)).capitalize())
    ),
    "status": lambda rng: rng.choice(("open", "closed", "paid", "late", "done", "pending")),
    "hours": lambda rng: f"{rng.randint(1, 80)} h",
    "rate": lambda rng: f"{rng.randint(1, 99)}.{rng.randint(0, 9)}%",
    "grade": lambda rng: rng.choice("ABCDEF"),
    "country": lambda rng: rng.choice(COUNTRIES),
    "points": lambda rng: str(rng.randint(1, 9999)),
    "room": lambda rng: f"{rng.choice('ABCD')}{rng.randint(1, 400)}",
}

_TITLES = (
    "Results of round 3", "Price list", "Stock by warehouse", "Team standings", "Work schedule", "Members, spring term",
    "Sales by region", "Exam marks", "Opening times", "Delivery plan", "Overview 2024", "Rooms and times",
)  # fmt: skip


def _grid(
    rng: random.Random, pen: Pen, names: list[str], columns: list[str], case: text.Case
) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Write the table and return `(row name, column name, value, lines)` for every value that is fully shown."""
    first = pen.width * rng.uniform(0.34, 0.46) if len(columns) > 1 else pen.width * 0.55
    while len(columns) > 1 and any(
        pen.font.width(case(one)) > (pen.width - first) / len(columns) - 6 for one in columns
    ):
        columns.pop()  # heads are not cut
    room = (pen.width - first) / len(columns)
    at = rng.choice(("left", "right"))
    lined, top = rng.random() < 0.5, pen.y - pen.step * 0.3

    def indent(column: int) -> float:
        return first + room * column + 3 if at == "left" else pen.width - first - room * (column + 1) + 3

    pen.put(case(rng.choice(("item", "name", "product", "part", "city", "player"))))
    heads = [
        pen.put(pen.font.shorten(case(column), room - 6), at, indent=indent(k)) for k, column in enumerate(columns)
    ]
    pen.down(1.2)
    found: list[tuple[str, str, str, tuple[int, ...]]] = []
    for name in names:
        if pen.rows_left < 1:
            break
        if lined:
            pen.page.rule(pen.left, pen.right, pen.y - pen.step * 0.25, pen.ink)
        row = pen.put(name)
        for k, column in enumerate(columns):
            value = _COLUMNS[column](rng)
            if pen.font.width(value) > room - 6:
                continue
            cell = pen.put(value, at, indent=indent(k))
            found.append((name, column, value, (row, cell, heads[k])))
        pen.down(1.2)
    if lined and rng.random() < 0.6:
        aside = -2 if at == "left" else 2  # away from the values
        edges = [pen.left - 4, *(pen.left + first + room * k + aside for k in range(len(columns))), pen.right + 4]
        for x in edges:
            pen.page.draw.line((x, top, x, pen.y - pen.step * 0.3), fill=pen.ink)
    return found


def render(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False) -> Document:
    """A table with one to four columns of values on a gray page."""
    page = Page(width, height, rng.randint(205, 255))
    pen = pick_pen(page, rng, fonts, ink=rng.randint(0, 110), monospaced=0.3)
    case = text.Case.choose(rng, 0.4)
    questions: list[PageQuestion] = []
    if rng.random() < 0.5 and pen.rows_left > 5:
        title = rng.choice(_TITLES) if rng.random() < 0.4 else text.words(rng, 1, 3)
        heading = pen.resize_font(6).shorten(case(title), pen.width)
        index = pen.line(heading, "left", pen.resize_font(6))
        questions.append(ask(rng, "heading", heading, (index,), held_out))
        pen.down(0.5)
    columns = rng.sample(sorted(_COLUMNS), rng.randint(1, 4 if width > 400 else 2))
    names: list[str] = []
    who = Names(rng, rng.random() < 0.5) if rng.random() < 0.35 else None
    for _ in range(rng.randint(2, 14)):
        name = pen.font.shorten(case(who.person() if who else text.words(rng, 1, 2)), pen.width * 0.33)
        if not any(name in other or other in name for other in names):
            names.append(name)
    values = _grid(rng, pen, names, columns, case)
    for name, column, value, lines in rng.sample(values, min(len(values), 8)):
        questions.append(ask(rng, "table", value, lines, held_out, column=column, row=name))
    if rng.random() < 0.6:
        stranger = case(text.words(rng, 1, 2))
        if not any(stranger in name or name in stranger for name in names):
            questions.append(ask(rng, "table", NOT_FOUND, (), held_out, column=columns[0], row=stranger))
    return page.document(questions)
