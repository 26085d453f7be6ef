"""Scanned receipts told anew: the places of a real receipt's lines, filled with other words and numbers.

A few hundred scans show how receipts are laid out, but their shops and sums can be learned by heart. Here the layout is
kept and the contents change: words that many shops print (TOTAL, CASH, JALAN, SDN BHD) stay, all others and every number
are exchanged, the same one always for the same other within a receipt, so fields and lines still agree.
"""

import random
import re
from collections import defaultdict

from arr_coc.training.documents import text
from arr_coc.training.documents.page import Document, FontSet, Page, load_font
from recipes.reader.receipts import Placement, Receipt, field_questions

_WORD = re.compile(r"[A-Z]{2,}")
_COMMON_TO = 6  # shops that must print a word before it counts as nobody's own


def common_words(receipts: list[Receipt]) -> frozenset[str]:
    """Words that at least `_COMMON_TO` different companies print."""
    shops: dict[str, set[str]] = defaultdict(set)
    for receipt in receipts:
        for line, _ in receipt.lines:
            for word in _WORD.findall(line):
                shops[word].add(receipt.fields.get("company", ""))
    return frozenset(word for word, names in shops.items() if len(names) >= _COMMON_TO)


class Retelling:
    """Exchanges the words and numbers of one receipt, each always for the same other."""

    def __init__(self, rng: random.Random, common: frozenset[str], date: str | None):
        self.rng, self.common = rng, common
        self.known: dict[str, str] = {}
        dates = f"{re.escape(date)}|" if date else ""
        self.pattern = re.compile(rf"{dates}\d+\.\d\d(?!\d)|[A-Z]{{2,}}|\d+")
        if date:
            self.known[date] = text.date(rng)

    def _exchange(self, found: str) -> str:
        if found in self.common:
            return found
        if found.isalpha():
            if self.rng.random() < 0.2:
                return found
            return text.invented_word(self.rng, (2, 4))[: len(found)] if len(found) > 2 else found
        if set(found) <= set("0."):
            return found
        first = self.rng.choice("123456789") if found[0] != "0" else "0"
        return first + "".join(self.rng.choice("0123456789") if c.isdigit() else c for c in found[1:])

    def __call__(self, told: str) -> str:
        def exchange(match: re.Match[str]) -> str:
            found = match.group()
            if found not in self.known:
                self.known[found] = self._exchange(found)
            return self.known[found]

        return self.pattern.sub(exchange, told)


def render(
    rng: random.Random, shelf: FontSet, receipt: Receipt, common: frozenset[str], width: int, height: int
) -> Document:
    """A retelling of `receipt`, rendered on a canvas of `width` x `height` pixels."""
    retold = Retelling(rng, common, receipt.fields.get("date"))
    case = text.Case.choose(rng, 0.6)
    placement = Placement.varied(rng, receipt, width, height)
    page = Page(width, height, rng.randint(190, 255))
    path, other = shelf.pick(rng, 0.6), shelf.pick(rng, 0.6)
    ink = rng.randint(0, 110)
    for line, box in receipt.lines:
        left, top, right, bottom = placement.box(box)
        told = retold(line)
        size = min(60, max(6, round((bottom - top) * 0.9)))
        face = other if bottom - top > 30 else path
        wide = load_font(face, size).width(told)
        if wide > (right - left) * 1.05:
            size = max(6, int(size * (right - left) * 1.05 / wide))
        page.write(
            left, top + (bottom - top - size) / 2, case(told), load_font(face, size), max(0, ink + rng.randint(-10, 10))
        )
    fields = {kind: retold(answer) for kind, answer in receipt.fields.items()}
    lines = [line.text.upper() for line in page.lines]
    # Where the label never agreed with the print, the exchanged words need not agree either: not asked.
    questions = [q for q in field_questions(rng, fields, lines) if len(q.evidence) < len(lines)]
    return page.document(questions, capitals=True)
