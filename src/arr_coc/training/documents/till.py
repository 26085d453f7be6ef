"""What a till prints, part by part: shop, particulars, items, totals that add up, payment and small print."""

import random

from arr_coc.training.documents import lexicon, text
from arr_coc.training.documents.letterhead import Head
from arr_coc.training.documents.page import Question
from arr_coc.training.documents.pen import Pen
from arr_coc.training.documents.questions import NOT_FOUND, ask


class Till:
    """Prints one receipt and collects the questions on the way."""

    def __init__(self, pen: Pen, rng: random.Random, case: text.Case, held_out: bool):
        self.pen, self.rng, self.case, self.held_out = pen, rng, case, held_out
        self.questions: list[Question] = []
        self.currency = rng.choice(("", "", "", "RM ", "RM", "$", "$"))
        self.middle = rng.choice(("center", "center", "center", "left"))

    def answer(self, kind: str, answer: str, evidence: tuple[int, ...], **slots: str) -> None:
        question = ask(self.rng, kind, self.held_out, **slots)
        self.questions.append(Question(kind, question, answer.upper() if evidence else NOT_FOUND, evidence))

    def header(self) -> None:
        Head(self.pen, self.rng, self.case, self.middle, self.answer).write()

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
            name = pen.font.shortened(case(text.words(rng, 1, 3)), pen.width * 0.6)
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
                    else pen.font.shortened(f"{text.digits(rng, rng.choice((4, 7, 13)))} {name}", pen.width * 0.95)
                )
                pen.down() if style != "columns" else None
                mark = f"{quantity} {rng.choice('Xx*')} {each}" if style != "columns" else str(quantity)
                indent = pen.width * (0.45 if style == "columns" else rng.choice((0.05, 0.2, 0.4)))
                # On a narrow roll the quantity would run into the price: it moves to the left or is left out.
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
            rows.append(
                (
                    rng.choice(
                        (
                            "SUB TOTAL",
                            "SUB-TOTAL",
                            "SUBTOTAL",
                            "SUBTOTAL:",
                            "TOTAL (EXCLUDING GST):",
                            "GROSS AMT",
                            "AMOUNT",
                        )
                    ),
                    subtotal,
                    True,
                )
            )
        tax = round(subtotal * rng.choice((0.06, 0.06, 0.1, 0.05))) if rng.random() < 0.5 else 0
        if tax:
            rows.append(
                (
                    rng.choice(("GST 6%", "TAX", "SERVICE TAX", "GST PAYABLE (6%):", "SVR CHG 10%", "GOV TAX :")),
                    tax,
                    True,
                )
            )
        off = rng.choice((0, 0, 0, rng.randint(1, 9) * 10))
        if off or rng.random() < 0.2:
            rows.append((rng.choice(("DISCOUNT", "DISC :", "TOTAL SAVINGS", "LESS DISCOUNT")), off, True))
        exact = max(5, subtotal + tax - off)
        total = round(exact / 5) * 5 if rng.random() < 0.6 else exact
        if total != exact or rng.random() < 0.3:
            if rng.random() < 0.5:  # the amount before rounding is called a total too; the rounded one is the answer
                rows.append((rng.choice(("TOTAL", "TOTAL SALES", "TOTAL AMOUNT")), exact, True))
            rows.append(
                (
                    rng.choice(("ROUNDING", "ROUNDING ADJ", "ROUNDING ADJUSTMENT", "ROUND ADJ :")),
                    abs(total - exact),
                    True,
                )
            )
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
            font = pen.resized(rng.choice((0, 0, 0, 2, 4, 8))) if main else pen.font
            value = text.money(rng, cents) if is_money else str(cents)
            shown = (self.currency if is_money else "") + value
            name = font.shortened(
                case(rng.choice(lexicon.TOTALS) if main else label), pen.width - indent - font.width(shown) - 6
            )
            if rng.random() < 0.12:
                index = (pen.put(f"{name} {shown}", "right", font),)
            else:
                index = (pen.put(name, "left", font, indent), pen.put(shown, "right", font))
            if main:
                keep_sign = self.currency in ("$", "RM")  # a sign that touches the number belongs to it
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
