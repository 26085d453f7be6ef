"""Drawn receipts and tax invoices: a header, particulars, items, totals that add up, payment and small print.

All answers are in capitals, whatever case is printed, because the scanned receipts are labelled that way. The header is
the most varied part: a shop's legal name may follow its brand, take two lines or come with its registration number.
The question asks for the legal name without the number.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from arr_coc.training.documents import lexicon, text
from arr_coc.training.documents.page import Document, Font, FontSet, Page, PageQuestion, Pen, text_size
from arr_coc.training.documents.questions import NOT_FOUND, ask

_LEGAL = ("SDN BHD", "SDN. BHD.", "S/B", "BHD")
_OWNED = ("OWNED BY :", "OWNED BY", "DIMILIKI:", "OPERATED BY", "MANAGED BY:")


@dataclass(frozen=True)
class _Header:
    """Prints the header. `answer(kind, text, lines)` records the company and the address as printed."""

    pen: Pen
    rng: random.Random
    case: text.Case
    at: str  # left or center
    answer: Callable[[str, str, tuple[int, ...]], None]

    def write(self) -> None:
        rng, pen = self.rng, self.pen
        self._above()
        brand = rng.random() < 0.15
        if brand:
            self._brand()
        self._company(legal=brand)
        between = [self._registration] * (rng.random() < 0.45) + [self._tax_number] * (rng.random() < 0.2)
        for part in between:
            part()
        self._address()
        below = [
            part
            for chance, part in (
                (0.65, self._phone),
                (0.2, self._branch),
                (0.12, self._mail),
                (0.45, self._tax_number),
            )
            if rng.random() < chance
        ]
        rng.shuffle(below)
        for part in below:
            part()
        if rng.random() < 0.6:
            pen.down(rng.uniform(0.1, 1))
            self._line(rng.choice(lexicon.TITLES), pen.resize_font(rng.choice((0, 0, 2, 5))))
        pen.down(rng.uniform(0, 0.8))

    def _line(self, line: str, font: Font | None = None) -> int:
        return self.pen.line(self.case(line), self.at, font)

    def _above(self) -> None:
        """A line above the shop's name: a person, a number, a title or a greeting."""
        rng, pen = self.rng, self.pen
        style = rng.random()
        if style < 0.1:
            pen.line(self.case(text.person(rng)), rng.choice(("left", "center")), pen.resize_font(rng.randint(0, 10)))
            pen.down(rng.uniform(0.3, 2))
        elif style < 0.16:
            pen.line(text.code(rng), rng.choice(("left", "center", "right")), pen.resize_font(rng.randint(0, 8)))
            pen.down(rng.uniform(0, 1.5))
        elif style < 0.21:
            self._line(rng.choice(lexicon.TITLES))
        elif style < 0.25:
            self._line(rng.choice(lexicon.FAREWELLS))

    def _brand(self) -> None:
        """The brand name, which is not the legal name."""
        rng = self.rng
        brand = rng.choice((text.proper_name(rng), f"{text.proper_name(rng)} {rng.choice(lexicon.TRADES)}"))
        self._line(brand, self.pen.resize_font(rng.choice((0, 2, 6, 12))))
        if rng.random() < 0.3:
            self._line(rng.choice(_OWNED))

    def _company(self, legal: bool) -> None:
        rng, pen = self.rng, self.pen
        if not legal and rng.random() < 0.06:
            return self.answer("company", "", ())
        name = text.company(rng)
        if legal and not name.endswith(_LEGAL):
            name = f"{name} {rng.choice(_LEGAL)}"
        font = pen.resize_font(rng.choice((0, 0, 0, 1, 3, 6, 10)))
        # The registration number may follow the name. Narrow headers wrap a name even where the paper has room.
        number = rng.choice(("", "", "", f"({text.registration(rng)})", f"({text.registration(rng)})"))
        room = pen.width if rng.random() < 0.7 else pen.width * rng.uniform(0.45, 0.8)
        rows = _wrap_name(self.case(name), font, room)
        if number and font.width(f"{rows[-1]} {number}") > pen.width:
            number = ""
        shown = [*rows[:-1], f"{rows[-1]} {number}".strip()]
        found = tuple(pen.line(row, self.at, font) for row in shown)
        self.answer("company", " ".join(rows), found)

    def _address(self) -> None:
        rng, pen = self.rng, self.pen
        if rng.random() < 0.07:
            return self.answer("address", "", ())
        font = pen.font if rng.random() < 0.85 else pen.resize_font(rng.choice((-2, -1, 2)))
        widest = max(12, int(pen.width / max(1.0, font.width("ABEMNORST ") / 10)))
        rows = [font.shorten(self.case(row), pen.width) for row in text.address(rng, widest)]
        found = tuple(pen.line(row, self.at, font) for row in rows)
        self.answer("address", " ".join(rows), found)

    def _registration(self) -> None:
        number = text.registration(self.rng)
        marks = ("CO. REG : ", "CO.REG NO: ", "ROC NO: ", "COMPANY NO. ", "CO NO : ", "REG NO ", "BR NO. :", "ROC: ")
        mark = self.rng.choice(marks)
        self._line(self.rng.choice((f"({number})", f"({number})", number, f"({mark}{number})", f"{mark}{number}")))

    def _tax_number(self) -> None:
        rng = self.rng
        kind = rng.choice(("GST ID", "GST REG NO", "GST NO", "GST ID NO", "GST REG. NO.", "SST ID", "TAX NO"))
        line = f"{kind}{rng.choice((': ', ' : ', ':', '. '))}{text.digits(rng, 12)}"
        self._line(f"({line})" if rng.random() < 0.25 else line)

    def _phone(self) -> None:
        rng = self.rng
        mark = rng.choice(("TEL: ", "TEL : ", "TEL ", "TEL:", "TEL NO. ", "PHONE: ", "H/P: ", "HP:", "TELEPHONE NO. "))
        line = mark + text.phone(rng)
        if rng.random() < 0.25:
            line += f" FAX:{text.phone(rng)}"
        self._line(line)

    def _branch(self) -> None:
        rng = self.rng
        place = f"{rng.choice(lexicon.NAME_WORDS)} {rng.choice(('MALL', 'PLAZA', 'SQUARE', 'JAYA', 'CENTRE'))}"
        self._line(
            rng.choice(
                (
                    f"({place})",
                    f"BRANCH : {place}",
                    f"OUTLET: {text.proper_name(rng)}",
                    f"{rng.randint(100, 1999)}-{text.proper_name(rng)}",
                )
            )
        )

    def _mail(self) -> None:
        rng = self.rng
        word = text.invented_word(rng, (1, 2))
        self._line(rng.choice((f"EMAIL: INFO@{word}.COM", f"WWW.{word}.COM.MY", f"FB: {word}")))


def _wrap_name(name: str, font: Font, room: float) -> list[str]:
    """The name on one line, or on up to three when it is wider than `room`."""
    rows: list[str] = []
    current = ""
    for part in name.split(" "):
        longer = f"{current} {part}".strip()
        if current and font.width(longer) > room and len(rows) < 2:
            rows.append(current)
            current = part
        else:
            current = longer
    return [font.shorten(row, room) for row in (*rows, current)]


class _ReceiptPrinter:
    """Prints one receipt part by part and collects its questions."""

    def __init__(self, pen: Pen, rng: random.Random, case: text.Case, held_out: bool):
        self.pen, self.rng, self.case, self.held_out = pen, rng, case, held_out
        self.questions: list[PageQuestion] = []
        self.currency = rng.choice(("", "", "", "RM ", "RM", "$", "$"))
        self.middle = rng.choice(("center", "center", "center", "left"))

    def answer(self, kind: str, answer: str, evidence: tuple[int, ...], **slots: str) -> None:
        shown = answer.upper() if evidence else NOT_FOUND
        self.questions.append(ask(self.rng, kind, shown, evidence, self.held_out, **slots))

    def header(self) -> None:
        _Header(self.pen, self.rng, self.case, self.middle, self.answer).write()

    def date_row(self) -> None:
        pen, rng, case = self.pen, self.rng, self.case
        date = case(text.date(rng))
        label = case(
            rng.choice(("", "", "DATE: ", "DATE : ", "DATE ", "INVOICE DATE: ", "DATE/TIME: ", "SALES DATE : ", "DT "))
        )
        index: tuple[int, ...]
        if rng.random() < 0.25 and label:  # label and value in two columns
            index = (
                pen.put(label.strip()),
                pen.put(
                    date + (" " + text.time(rng) if rng.random() < 0.4 else ""),
                    indent=pen.width * rng.uniform(0.25, 0.5),
                ),
            )
            pen.down()
        else:
            row = label + date + (rng.choice((" ", " ", "  ")) + text.time(rng) if rng.random() < 0.6 else "")
            if rng.random() < 0.15:
                row = case(rng.choice(("TIME: ", "POS 1 ", "SH01 "))) + text.time(rng) + " " + row
            row = row if pen.font.width(row) <= pen.width else label + date
            at = rng.choice(("left", "left", "left", "center", "right"))
            index = (pen.put(row, at),)
            pen.down()
        self.answer("date", date, index)

    def particulars(self, with_date: bool) -> None:
        pen, rng, case = self.pen, self.rng, self.case
        rows = [
            f"INVOICE NO: {text.code(rng)}",
            f"CASHIER: {text.person(rng)}",
            f"TABLE {rng.randint(1, 60)}",
            f"BILL# {text.code(rng)}",
            f"COUNTER: {rng.randint(1, 9)}",
            f"DOC NO : {text.code(rng)}",
            f"SALESPERSON : {text.person(rng)}",
            f"MEMBER: {text.digits(rng, 8)}",
            f"TERMINAL : {rng.randint(1, 300)}",
            f"PAX: {rng.randint(1, 9)}",
        ]
        chosen: list[str | None] = list(rng.sample(rows, rng.randint(0, 4)))
        if with_date:
            chosen.insert(rng.randint(0, len(chosen)), None)
        for row in chosen:
            self.date_row() if row is None else pen.line(case(row))
        if rng.random() < 0.6:
            pen.rule()

    def items(self, count: int) -> int:
        """Print `count` items and return their sum in cents."""
        pen, rng, case = self.pen, self.rng, self.case
        style, total, listed = rng.choice(("plain", "plain", "below", "below", "columns", "coded")), 0, []
        tax_mark = rng.choice(("", "", " SR", " S", " Z"))
        if style != "plain" and rng.random() < 0.7:
            for at, name, indent in (
                ("left", "ITEM", 0),
                ("left", "QTY", pen.width * 0.45),
                ("right", rng.choice(("AMOUNT", "AMT", "TOTAL", "RM")), 0),
            ):
                pen.put(case(name), at, indent=indent)
            pen.down()
        for _ in range(count):
            name = pen.font.shorten(case(text.words(rng, 1, 3)), pen.width * 0.6)
            quantity = 1 if rng.random() < 0.6 else rng.randint(2, 12)
            unit = text.amount(rng, 6000)
            price, each = text.money(rng, unit * quantity), text.money(rng, unit)
            total += unit * quantity
            shown = price + tax_mark
            if style == "plain":
                found = (pen.put(name), pen.put(shown, "right"))
                pen.down()
            else:
                first = pen.put(
                    name
                    if style != "coded"
                    else pen.font.shorten(f"{text.digits(rng, rng.choice((4, 7, 13)))} {name}", pen.width * 0.95)
                )
                pen.down() if style != "columns" else None
                mark = f"{quantity} {rng.choice('Xx*')} {each}" if style != "columns" else str(quantity)
                indent = pen.width * (0.45 if style == "columns" else rng.choice((0.05, 0.2, 0.4)))
                # On narrow paper the quantity would overlap the price: move it to the left or omit it.
                end = pen.width - pen.font.width(shown) - pen.font.size * 0.6
                indent = min(indent, end - pen.font.width(mark))
                if indent >= (pen.font.width(name) + 6 if style == "columns" else 0):
                    pen.put(mark, indent=indent)
                found = (first, pen.put(shown, "right"))
                pen.down()
            listed.append((name, price, found))
            if rng.random() < 0.1:
                pen.down(0.4)
        names = [name for name, _, _ in listed]
        unique = [row for row in listed if names.count(row[0]) == 1]
        for name, price, found in rng.sample(unique, min(2, len(unique))):
            if not any(name != other and name in other for other in names):
                self.answer("price", price, found, item=name if rng.random() < 0.5 else name.upper())
        if rng.random() < 0.15:
            absent = text.words(rng, 1, 2)
            if absent not in " ".join(names).upper():
                self.answer("price", "", (), item=absent)
        if rng.random() < 0.6:
            pen.rule()
        return total

    def totals(self, subtotal: int, with_total: bool) -> None:
        pen, rng, case = self.pen, self.rng, self.case
        if not with_total:
            return self.answer("total", "", ())
        rows: list[tuple[str, int, bool]] = []
        if rng.random() < 0.35:
            rows.append((rng.choice(("TOTAL QTY:", "ITEM COUNT", "TOTAL ITEMS:", "QTY")), rng.randint(1, 30), False))
        if rng.random() < 0.5:
            rows.append((rng.choice(lexicon.SUBTOTALS), subtotal, True))
        tax = round(subtotal * rng.choice((0.06, 0.06, 0.1, 0.05))) if rng.random() < 0.5 else 0
        if tax:
            rows.append((rng.choice(lexicon.TAXES), tax, True))
        off = rng.choice((0, 0, 0, rng.randint(1, 9) * 10))
        if off or rng.random() < 0.2:
            rows.append((rng.choice(("DISCOUNT", "DISC :", "TOTAL SAVINGS", "LESS DISCOUNT")), off, True))
        exact = max(5, subtotal + tax - off)
        total = round(exact / 5) * 5 if rng.random() < 0.6 else exact
        if total != exact or rng.random() < 0.3:
            if rng.random() < 0.5:  # the unrounded amount is also called a total; the rounded one is the answer
                rows.append((rng.choice(("TOTAL", "TOTAL SALES", "TOTAL AMOUNT")), exact, True))
            rows.append((rng.choice(lexicon.ROUNDINGS), abs(total - exact), True))
        rows.append(("*", total, True))
        if rng.random() < 0.7:
            given = total if rng.random() < 0.4 else (total // 1000 + rng.choice((1, 1, 2, 5))) * 1000
            rows.append((rng.choice(lexicon.PAYMENTS), given, True))
            if given != total or rng.random() < 0.6:
                rows.append((rng.choice(("CHANGE", "CHANGE :", "CHANGE DUE", "BALANCE")), given - total, True))
        indent = rng.choice((0.0, 0.0, 0.0, pen.width * rng.uniform(0.1, 0.35)))
        index: tuple[int, ...]
        for label, cents, is_money in rows:
            main = label == "*"
            font = pen.resize_font(rng.choice((0, 0, 0, 2, 4, 8))) if main else pen.font
            value = text.money(rng, cents) if is_money else str(cents)
            shown = (self.currency if is_money else "") + value
            name = font.shorten(
                case(rng.choice(lexicon.TOTALS) if main else label), pen.width - indent - font.width(shown) - 6
            )
            if rng.random() < 0.12:
                index = (pen.put(f"{name} {shown}", "right", font),)
            else:
                index = (pen.put(name, "left", font, indent), pen.put(shown, "right", font))
            if main:
                keep_sign = self.currency in ("$", "RM")  # a currency sign next to the number is part of the answer
                self.answer("total", (self.currency if keep_sign else "") + value, index)
            pen.down(max(1.0, font.size / pen.font.size))

    def small_print(self) -> None:
        pen, rng, case = self.pen, self.rng, self.case
        if rng.random() < 0.4 and pen.rows_left > 4:
            pen.down(rng.uniform(0.2, 1))
            for row in (
                ("GST SUMMARY", "AMT(RM)", "TAX(RM)"),
                ("SR = 6%", text.money(rng), text.money(rng, rng.randint(0, 999))),
            ):
                for at, cell, indent in zip(("left", "left", "right"), row, (0, pen.width * 0.5, 0), strict=False):
                    pen.put(case(cell), at, indent=indent)
                pen.down()
        for _ in range(rng.randint(0, 4)):
            if pen.rows_left < 1:
                break
            pen.line(case(rng.choice(lexicon.FAREWELLS) if rng.random() < 0.6 else text.words(rng, 2, 4)), self.middle)


def _paper(rng: random.Random, width: int, height: int) -> tuple[Page, tuple[float, float, float, float], int]:
    """The page, the receipt's margins and its ink: the receipt fills the page, lies on a desk, or is small on a sheet."""
    paper, ink = rng.randint(190, 255), rng.randint(0, 110)
    style = rng.random()
    if style < 0.6:
        page = Page(width, height, paper)
        side = width * 0.09
        return (
            page,
            (rng.uniform(3, side), rng.uniform(3, height * 0.12), width - rng.uniform(3, side), height - 3),
            ink,
        )
    page = Page(width, height, rng.randint(0, 140) if style < 0.8 else rng.randint(235, 255))
    share = rng.uniform(0.75, 0.96) if style < 0.8 else rng.uniform(0.5, 0.9)
    wide, tall = width * share, height * min(1.0, share * rng.uniform(0.95, 1.2))
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - tall)
    page.draw.rectangle((left, top, left + wide, top + tall), fill=paper)
    return page, (left + 8, top + 6, left + wide - 8, top + tall - 4), ink


def render(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False) -> Document:
    """A receipt on a gray page of `width` x `height` pixels."""
    page, (left, top, right, bottom), ink = _paper(rng, width, height)
    size = min(text_size(rng, int(right - left)), max(8, int((bottom - top) / 22)))
    pen = Pen(page, rng, fonts.pick(rng, 0.6), size, left, right, top, bottom, ink)
    receipt = _ReceiptPrinter(pen, rng, text.Case.choose(rng, 0.6), held_out)
    receipt.header()
    has_date, date_is_late, has_total = rng.random() < 0.93, rng.random() < 0.25, rng.random() < 0.95
    receipt.particulars(with_date=has_date and not date_is_late)
    room = (pen.rows_left - 10) // 2
    subtotal = receipt.items(rng.randint(max(1, min(room, 20) // 3), max(1, min(room, 20))))
    receipt.totals(subtotal, has_total)
    if has_date and date_is_late:
        pen.down(0.5)
        receipt.date_row()
    elif not has_date:
        receipt.answer("date", "", ())
    receipt.small_print()
    return page.document(receipt.questions, capitals=True)
