"""Invoices: rows multiply, columns add up, and dates follow each other."""

from __future__ import annotations

import datetime
import random
import re

import pytest

from arr_coc.training.documents import invoice, names
from arr_coc.training.documents.page import Document, bundled_fonts


def cents(shown: str) -> int:
    """An amount in cents, whatever marks its thousands: the last two digits are the decimals."""
    sign = -1 if "-" in shown else 1
    return sign * int(re.sub(r"\D", "", shown))


def documents(count: int = 30) -> list[Document]:
    fonts = bundled_fonts()
    return [invoice.render(random.Random(seed), fonts, 760, 1060) for seed in range(count)]


def answers(document: Document) -> dict[str, str]:
    return {one.kind: one.answer for one in document.questions if not one.absent}


def rows(document: Document) -> list[tuple[str, int, int, int]]:
    """The line items as printed: item, quantity, price, amount."""
    found = []
    levels: dict[int, list[tuple[float, str]]] = {}
    for line in document.lines:
        levels.setdefault(round(line.box[1]), []).append((line.box[0], line.text))
    for _, parts in sorted(levels.items()):
        texts = [text for _, text in sorted(parts)]
        numbers = [one for one in texts if re.fullmatch(r"[\d.,]+", one)]
        if len(texts) == 4 and len(numbers) == 3:
            (item,) = (one for one in texts if one not in numbers)
            found.append((item, int(numbers[0]), cents(numbers[1]), cents(numbers[2])))
    return found


def test_quantity_times_price_is_the_amount_and_amounts_add_up() -> None:
    checked = 0
    for document in documents():
        listed, known = rows(document), answers(document)
        if not listed or any(re.fullmatch(r"[\d.,]+", item) for item, *_ in listed):
            continue
        assert all(quantity * price == amount for _, quantity, price, amount in listed)
        total = sum(amount for *_, amount in listed)
        assert total == cents(known.get("subtotal", known["total"]))
        checked += 1
    assert checked > 20


def test_the_total_is_the_sum_of_its_parts() -> None:
    discounts = 0
    for document in documents():
        known = {kind: cents(answer) for kind, answer in answers(document).items() if kind in ("subtotal", "discount", "shipping", "tax", "total")}  # fmt: skip
        if "subtotal" not in known:
            continue
        discounts += "discount" in known
        parts = known["subtotal"] + known.get("discount", 0) + known.get("shipping", 0) + known.get("tax", 0)
        assert parts == known["total"]
    assert discounts > 0


def test_it_is_due_after_it_was_issued() -> None:
    for form in range(6):
        for seed in range(20):
            first, later = names.dates(random.Random(seed), form)
            pattern = ("%d/%m/%Y", "%d.%m.%Y", "%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y")[form]
            gap = datetime.datetime.strptime(later, pattern) - datetime.datetime.strptime(first, pattern)
            assert 7 <= gap.days <= 90


@pytest.mark.parametrize("width", [600, 760])
def test_numbers_and_dates_are_printed_whole(width: int) -> None:
    fonts = bundled_fonts()
    for seed in range(15):
        document = invoice.render(random.Random(seed), fonts, width, round(width * 1.4))
        for question in document.questions:
            if question.kind == "date" and not question.absent:
                assert re.search(r"(20\d\d)", question.answer), question
            if question.kind == "IBAN" and not question.absent:
                assert len(question.answer.replace(" ", "")) >= 18
