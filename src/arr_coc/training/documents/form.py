"""Forms and letters with named fields: invoices, tickets, labels, certificates."""

import random
from collections.abc import Callable

from arr_coc.training.documents import lexicon, text
from arr_coc.training.documents.page import Document, FontSet, Page, PageQuestion, Pen, load_font, pick_pen
from arr_coc.training.documents.questions import NOT_FOUND, ask

_Maker = Callable[[random.Random], str]

FIELDS: dict[str, _Maker] = {
    key: make
    for keys, make in (
        (
            "invoice number, order number, reference, account number, policy number, serial number, ticket number, "
            "tracking number, customer ID, batch, license, booking code",
            text.code,
        ),
        ("invoice date, due date, date of birth, issue date, expiry date, delivery date, date, valid until", text.date),
        ("name, customer, contact, manager, patient, passenger, author, signed by, recipient", text.person),
        ("company, supplier, bank, employer, carrier", text.company),
        ("total, amount due, balance, deposit, tax, price, fee, subtotal", text.money),
        ("phone, fax, mobile", text.phone),
        ("time, departure, arrival, check-in", text.time),
        ("quantity, age, gate, room, seat, platform, floor, weight, pages", lambda rng: str(rng.randint(1, 999))),
        (
            "city, country, department, status, colour, destination, product, model, type",
            lambda rng: text.words(rng, 1, 2),
        ),
        ("address, deliver to", lambda rng: text.address(rng)[0].rstrip(" ,.")),
        ("email", lambda rng: f"{text.invented_word(rng)}@{text.invented_word(rng)}.com".lower()),
    )
    for key in keys.split(", ")
}


def _value(rng: random.Random, key: str, case: text.Case) -> str:
    value = FIELDS[key](rng)
    return value if key == "email" else case(value)


def _invented_key(rng: random.Random) -> str:
    return f"{text.invented_word(rng, (1, 3))} {rng.choice(('code', 'name', 'no', 'level', 'rate'))}".lower()


def _put_pair(pen: Pen, layout: str, key: str, value: str, column: float, bold_path: str) -> tuple[int, ...]:
    """Write one field in the form's layout and return the lines it took."""
    if layout == "inline":
        return (pen.line(f"{key}: {value}"),)
    if layout == "columns":
        key_font = load_font(bold_path, pen.font.size)
        room = pen.width * column - 6
        found = (
            pen.put(key_font.shorten(key, room) if key_font.width(key) > room else key, font=key_font),
            pen.put(pen.font.shorten(value, pen.width * (1 - column)), indent=pen.width * column),
        )
        pen.down()
        return found
    small = pen.resize_font(-3)  # layout "stacked": a small key above its value
    first = pen.put(key, font=small)
    pen.down(0.9)
    second = pen.put(value)
    pen.down(1.2)
    return (first, second)


def render(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False) -> Document:
    """A form on a gray page: a heading and as many fields as fit."""
    page = Page(width, height, rng.randint(205, 255))
    pen = pick_pen(page, rng, fonts, ink=rng.randint(0, 110), monospaced=0.3)
    key_case, value_case = text.Case.choose(rng, 0.3), text.Case.choose(rng, 0.4)
    layout = rng.choice(("inline", "columns", "columns", "stacked"))
    column, bold = rng.uniform(0.35, 0.5), fonts.pick(rng, 0.3)
    questions: list[PageQuestion] = []
    if rng.random() < 0.7 and pen.rows_left > 3:
        font = pen.resize_font(rng.randint(3, 14))
        heading = font.shorten(
            text.Case.choose(rng)(rng.choice(lexicon.FORM_HEADINGS) if rng.random() < 0.7 else text.words(rng, 1, 2)),
            pen.width,
        )
        index = pen.line(heading, rng.choice(("left", "center")), font)
        questions.append(ask(rng, "heading", heading, (index,), held_out))
        pen.down(rng.uniform(0, 0.6))
    keys = rng.sample(sorted(FIELDS), min(len(FIELDS), rng.randint(3, 16)))
    keys = [key if rng.random() < 0.85 else _invented_key(rng) for key in keys]
    written: list[str] = []
    for key in keys:
        if pen.rows_left < (2 if layout == "stacked" else 1):
            break
        shown = key_case(key)
        value = _value(rng, key, value_case) if key in FIELDS else value_case(text.code(rng))
        limit = (
            pen.width - pen.font.width(shown + ": ")
            if layout == "inline"
            else pen.width * (1 - column if layout == "columns" else 1)
        )
        value = pen.font.shorten(value, limit)
        if layout == "columns" and load_font(bold, pen.font.size).width(shown) > pen.width * column - 6:
            continue
        lines = _put_pair(pen, layout, shown, value, column, bold)
        written.append(key)
        questions.append(ask(rng, "field", value, lines, held_out, key=key if rng.random() < 0.7 else shown))
        if rng.random() < 0.1:
            pen.rule()
        elif rng.random() < 0.15:
            pen.down(rng.uniform(0.2, 1))
    absent = [key for key in FIELDS if not any(key in other or other in key for other in written)]
    for key in rng.sample(absent, rng.choice((0, 1, 1, 2))):
        questions.append(ask(rng, "field", NOT_FOUND, (), held_out, key=key))
    return page.document(questions)
