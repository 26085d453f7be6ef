"""Names, postal addresses, bank details and short sentences for drawn papers and screens, in ordinary spelling.

`Names(rng, invented=True)` makes every name of random syllables or misspells it, so that a reader has to copy what is
printed and cannot answer from memory.
"""

import datetime
import random
from dataclasses import dataclass

from arr_coc.training.documents import text
from arr_coc.training.documents.phrasings import misspell


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


FIRST = _words(
    "Anna Ben Carla Daniel Emma Felix Grace Hannah Igor Julia Karim Laura Marco Nina Oliver Paula Quentin Rosa Samuel Tina "
    "Ursula Victor Wendy Xavier Yasmin Zoe Amir Bianca Cedric Dora Elias Fatima George Helen Ivan Jane Kofi Lena Mei Noah"
)
LAST = _words(
    "Adams Baker Clarke Dubois Evans Fischer Garcia Hughes Ivanov Jensen Keller Lopez Martin Novak Olsen Patel Quinn Rossi "
    "Schmidt Tanaka Ueda Vogel Walker Xu Young Zimmer Andersson Brown Costa Dietrich Eriksen Ferrari Green Hansen Okafor Singh"
)
TOWNS = _words(
    "Berlin Lyon Porto Leeds Bristol Vienna Graz Zurich Basel Milan Turin Madrid Oslo Bergen Malmo Utrecht Ghent Dublin Cork "
    "Boston Austin Denver Portland Toronto Ottawa Sydney Perth Auckland Nairobi Accra Mumbai Pune Osaka Kobe Seoul Lima"
)
STREETS = _words("Street Road Avenue Lane Drive Square Way Court Place Boulevard Terrace Park")
STREET_NAMES = _words(
    "Main Church Mill Station High Garden River King Queen Park Bridge Oak Maple Cedar Market Harbour North South Victoria "
    "Castle Lincoln Cherry Elm Hill Spring Lake Union College Green Forest"
)
TRADES = _words(
    "Software Logistics Consulting Design Foods Electronics Textiles Printing Optics Energy Tools Media Furniture Instruments "
    "Packaging Travel Motors Medical Systems Garden Metals Paper Ceramics Robotics Labs Partners Studio"
)
FORMS = ("Ltd", "Ltd.", "GmbH", "Inc.", "AG", "LLC", "S.A.", "BV", "& Sons", "& Co.", "plc", "")
COUNTRIES = _words("Germany France Italy Spain Norway Ireland Canada Australia Kenya Japan Austria Portugal Sweden")


@dataclass(frozen=True)
class Names:
    """Names and addresses drawn from `rng`. `invented`: all of random syllables or misspelt."""

    rng: random.Random
    invented: bool = False

    def _one_of(self, listed: tuple[str, ...]) -> str:
        """A listed word; at times, and always for `invented` names, a made-up or misspelt one."""
        known = self.rng.choice(listed)
        if not self.invented and self.rng.random() < 0.75:
            return known
        if self.rng.random() < 0.3:
            return misspell(self.rng, known)
        return text.invented_word(self.rng, (2, 3)).capitalize()

    def first(self) -> str:
        return self._one_of(FIRST)

    def last(self) -> str:
        return self._one_of(LAST)

    def person(self) -> str:
        style = self.rng.random()
        if style < 0.1:
            return f"{self.rng.choice(('Dr.', 'Mr', 'Ms', 'Mrs', 'Prof.'))} {self.first()} {self.last()}"
        if style < 0.2:
            return f"{self.first()} {chr(self.rng.randint(65, 90))}. {self.last()}"
        return f"{self.first()} {self.last()}"

    def company(self) -> str:
        style = self.rng.random()
        name = (
            f"{self.last()} {self._one_of(TRADES)}"
            if style < 0.5
            else f"{self.last()} & {self.last()}"
            if style < 0.65
            else f"{text.invented_word(self.rng, (2, 3)).capitalize()} {self._one_of(TRADES)}"
        )
        return f"{name} {self.rng.choice(FORMS)}".strip()

    def town(self) -> str:
        return self._one_of(TOWNS)

    def street(self) -> str:
        number, name, kind = self.rng.randint(1, 299), self._one_of(STREET_NAMES), self.rng.choice(STREETS)
        return f"{number} {name} {kind}" if self.rng.random() < 0.6 else f"{name} {kind} {number}"

    def address(self) -> list[str]:
        """Two to four lines: street, postcode and town, and at times a flat or a country."""
        rng = self.rng
        lines = [self.street()]
        if rng.random() < 0.2:
            lines.insert(0, rng.choice((f"Floor {rng.randint(1, 30)}", f"Suite {rng.randint(1, 900)}", "Building C")))
        postcode = text.digits(rng, rng.choice((4, 5, 5)))
        town = self.town()
        lines.append(rng.choice((f"{postcode} {town}", f"{town} {postcode}", f"{town}, {postcode}")))
        if rng.random() < 0.4:
            lines.append(rng.choice(COUNTRIES))
        return lines

    def domain(self) -> str:
        word = self.rng.choice((self.last(), self._one_of(TRADES), text.invented_word(self.rng, (1, 3)))).lower()
        return f"{word}.{self.rng.choice(('com', 'net', 'org', 'de', 'co.uk', 'eu', 'io'))}"

    def email(self) -> str:
        user = self.rng.choice((self.first(), self.last(), "info", "office", "sales", f"{self.first()}.{self.last()}"))
        return f"{user.lower()}@{self.domain()}"


def phone(rng: random.Random) -> str:
    return rng.choice(
        (
            f"+{rng.randint(1, 99)} {rng.randint(10, 999)} {text.digits(rng, 6)}",
            f"({rng.randint(200, 999)}) {text.digits(rng, 3)}-{text.digits(rng, 4)}",
            f"0{rng.randint(10, 999)} {text.digits(rng, 3)} {text.digits(rng, 4)}",
        )
    )


def iban(rng: random.Random) -> str:
    """An account number in groups of four, such as `DE12 3456 7890 ...`; its check digits are random."""
    country, length = rng.choice((("DE", 18), ("FR", 23), ("GB", 18), ("NL", 14), ("AT", 16), ("ES", 20), ("CH", 17)))
    number = country + text.digits(rng, 2) + text.digits(rng, length)
    gap = "" if rng.random() < 0.15 else " "
    return gap.join(number[at : at + 4] for at in range(0, len(number), 4))


def bic(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHIKLMNOPRSTUVWXZ") for _ in range(4))
    return (
        f"{letters}{rng.choice(('DE', 'FR', 'GB', 'NL', 'AT', 'CH'))}{rng.choice(('FF', '2X', 'HH', 'MM', '33'))}"
        + ("XXX" if rng.random() < 0.5 else "")
    )


MONTHS = _words("January February March April May June July August September October November December")


def date(rng: random.Random, form: int | None = None) -> str:
    """A date; `form` (0 to 5) keeps one spelling on a page."""
    return dates(rng, form)[0]


def dates(rng: random.Random, form: int | None = None) -> tuple[str, str]:
    """A date and a later one, at most three months later, in the same spelling."""
    form = rng.randrange(6) if form is None else form
    first = datetime.date(rng.randint(2015, 2027), rng.randint(1, 12), rng.randint(1, 28))
    return _spelled(first, form), _spelled(
        first + datetime.timedelta(days=rng.choice((7, 14, 14, 30, 30, 60, 90))), form
    )


def _spelled(day: datetime.date, form: int) -> str:
    name = MONTHS[day.month - 1]
    return (
        f"{day:%d/%m/%Y}",
        f"{day:%d.%m.%Y}",
        f"{day:%Y-%m-%d}",
        f"{day.day} {name} {day.year}",
        f"{name} {day.day}, {day.year}",
        f"{day.day:02d}-{name[:3]}-{day.year}",
    )[form]


def money(cents: int, style: int) -> str:
    """An amount with two decimals: `style` 0 is 1234.50, 1 is 1,234.50 and 2 is 1.234,50."""
    whole, part = divmod(abs(cents), 100)
    sign = "-" if cents < 0 else ""
    if style == 0:
        return f"{sign}{whole}.{part:02d}"
    grouped = f"{whole:,}"
    return f"{sign}{grouped}.{part:02d}" if style == 1 else f"{sign}{grouped.replace(',', '.')},{part:02d}"
