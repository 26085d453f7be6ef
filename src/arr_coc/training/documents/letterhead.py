"""The head of a receipt: the shop's name and address among everything else that tills print around them.

A shop's legal name may stand under its brand, over two lines or beside its registration number, and the address may
begin right below it or behind other numbers. What is asked for is the legal name, without the number, and the address.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from arr_coc.training.documents import gazetteer, lexicon, names, text
from arr_coc.training.documents.fonts import Font
from arr_coc.training.documents.pen import Pen

_LEGAL = ("SDN BHD", "SDN. BHD.", "S/B", "BHD")
_OWNED = ("OWNED BY :", "OWNED BY", "DIMILIKI:", "OPERATED BY", "MANAGED BY:")


@dataclass(frozen=True)
class Head:
    """Prints the head of one receipt; `answer` is told what was printed for the company and for the address."""

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
            self._line(rng.choice(lexicon.TITLES), pen.resized(rng.choice((0, 0, 2, 5))))
        pen.down(rng.uniform(0, 0.8))

    def _line(self, told: str, font: Font | None = None) -> int:
        return self.pen.line(self.case(told), self.at, font)

    def _above(self) -> None:
        """Something above the shop's name: a hand-written or stamped name, a number, a title, a greeting."""
        rng, pen = self.rng, self.pen
        style = rng.random()
        if style < 0.1:
            pen.line(self.case(text.person(rng)), rng.choice(("left", "center")), pen.resized(rng.randint(0, 10)))
            pen.down(rng.uniform(0.3, 2))
        elif style < 0.16:
            pen.line(text.code(rng), rng.choice(("left", "center", "right")), pen.resized(rng.randint(0, 8)))
            pen.down(rng.uniform(0, 1.5))
        elif style < 0.21:
            self._line(rng.choice(lexicon.TITLES))
        elif style < 0.25:
            self._line(rng.choice(lexicon.FAREWELLS))

    def _brand(self) -> None:
        """The name on the shop's sign, which is not the firm's."""
        rng = self.rng
        brand = rng.choice((names.proper(rng), f"{names.proper(rng)} {rng.choice(gazetteer.TRADES)}"))
        self._line(brand, self.pen.resized(rng.choice((0, 2, 6, 12))))
        if rng.random() < 0.3:
            self._line(rng.choice(_OWNED))

    def _company(self, legal: bool) -> None:
        rng, pen = self.rng, self.pen
        if not legal and rng.random() < 0.06:
            return self.answer("company", "", ())
        name = names.company(rng)
        if legal and not name.endswith(_LEGAL):
            name = f"{name} {rng.choice(_LEGAL)}"
        font = pen.resized(rng.choice((0, 0, 0, 1, 3, 6, 10)))
        # Beside the name its number; narrow heads break a name even where the paper has room.
        number = rng.choice(("", "", "", f"({names.registration(rng)})", f"({names.registration(rng)})"))
        room = pen.width if rng.random() < 0.7 else pen.width * rng.uniform(0.45, 0.8)
        rows = wrapped(self.case(name), font, room)
        if number and font.width(f"{rows[-1]} {number}") > pen.width:
            number = ""
        shown = [*rows[:-1], f"{rows[-1]} {number}".strip()]
        found = tuple(pen.line(row, self.at, font) for row in shown)
        self.answer("company", " ".join(rows), found)

    def _address(self) -> None:
        rng, pen = self.rng, self.pen
        if rng.random() < 0.07:
            return self.answer("address", "", ())
        font = pen.font if rng.random() < 0.85 else pen.resized(rng.choice((-2, -1, 2)))
        widest = max(12, int(pen.width / max(1.0, font.width("ABEMNORST ") / 10)))
        rows = [font.shortened(self.case(row), pen.width) for row in names.address(rng, widest)]
        found = tuple(pen.line(row, self.at, font) for row in rows)
        self.answer("address", " ".join(rows), found)

    def _registration(self) -> None:
        number = names.registration(self.rng)
        marks = ("CO. REG : ", "CO.REG NO: ", "ROC NO: ", "COMPANY NO. ", "CO NO : ", "REG NO ", "BR NO. :", "ROC: ")
        mark = self.rng.choice(marks)
        self._line(self.rng.choice((f"({number})", f"({number})", number, f"({mark}{number})", f"{mark}{number}")))

    def _tax_number(self) -> None:
        rng = self.rng
        kind = rng.choice(("GST ID", "GST REG NO", "GST NO", "GST ID NO", "GST REG. NO.", "SST ID", "TAX NO"))
        told = f"{kind}{rng.choice((': ', ' : ', ':', '. '))}{text.digits(rng, 12)}"
        self._line(f"({told})" if rng.random() < 0.25 else told)

    def _phone(self) -> None:
        rng = self.rng
        mark = rng.choice(("TEL: ", "TEL : ", "TEL ", "TEL:", "TEL NO. ", "PHONE: ", "H/P: ", "HP:", "TELEPHONE NO. "))
        told = mark + text.phone(rng)
        if rng.random() < 0.25:
            told += f" FAX:{text.phone(rng)}"
        self._line(told)

    def _branch(self) -> None:
        rng = self.rng
        place = f"{rng.choice(gazetteer.NAME_WORDS)} {rng.choice(('MALL', 'PLAZA', 'SQUARE', 'JAYA', 'CENTRE'))}"
        self._line(
            rng.choice(
                (
                    f"({place})",
                    f"BRANCH : {place}",
                    f"OUTLET: {names.proper(rng)}",
                    f"{rng.randint(100, 1999)}-{names.proper(rng)}",
                )
            )
        )

    def _mail(self) -> None:
        rng = self.rng
        word = text.invented_word(rng, (1, 2))
        self._line(rng.choice((f"EMAIL: INFO@{word}.COM", f"WWW.{word}.COM.MY", f"FB: {word}")))


def wrapped(name: str, font: Font, room: float) -> list[str]:
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
    return [font.shortened(row, room) for row in (*rows, current)]
