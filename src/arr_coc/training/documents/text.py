"""Words, names, dates, amounts and addresses for rendered documents.

Half of the words are made up from syllables: a reader that has only met real words learns to guess them.
"""

import random
from dataclasses import dataclass

from arr_coc.training.documents import lexicon

_CONSONANTS, _VOWELS = "BCDFGHJKLMNPQRSTVWXYZ", "AEIOU"


def invented_word(rng: random.Random, syllables: tuple[int, int] = (1, 4)) -> str:
    parts = []
    for _ in range(rng.randint(*syllables)):
        parts.append(rng.choice(_CONSONANTS) + rng.choice(_VOWELS))
        if rng.random() < 0.35:
            parts.append(rng.choice(_CONSONANTS))
    return "".join(parts)


def word(rng: random.Random) -> str:
    return rng.choice(lexicon.GOODS) if rng.random() < 0.5 else invented_word(rng)


def words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(word(rng) for _ in range(rng.randint(low, high)))


def person(rng: random.Random) -> str:
    first = rng.choice(lexicon.FIRST_NAMES) if rng.random() < 0.6 else invented_word(rng, (1, 3))
    return first if rng.random() < 0.3 else f"{first} {invented_word(rng, (1, 3))}"


def company(rng: random.Random) -> str:
    """A shop's or a firm's name, in capitals."""
    parts = [
        invented_word(rng, (1, 3)) if rng.random() < 0.7 else rng.choice(lexicon.GOODS)
        for _ in range(rng.randint(1, 2))
    ]
    parts += rng.sample(lexicon.TRADES, rng.randint(0, 2))
    if rng.random() < 0.12:
        parts.insert(rng.randint(0, 1), rng.choice(("&", str(rng.randint(1, 99)), "D.I.Y.", "MR.")))
    if rng.random() < 0.15:
        parts.append(f"({invented_word(rng, (1, 3))})")
    if rng.random() < 0.6:
        parts.append(rng.choice(lexicon.ENDINGS))
    return " ".join(parts).strip("& ")


def code(rng: random.Random) -> str:
    """A document number, such as `INV-00412` or `CS00018751`."""
    letters = "".join(rng.choice(_CONSONANTS + _VOWELS) for _ in range(rng.randint(0, 3)))
    return (
        letters
        + rng.choice(("", "", "-", "/")) * bool(letters)
        + f"{rng.randint(0, 10 ** rng.randint(3, 9)):0{rng.randint(3, 8)}d}"
    )


def digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(count))


def phone(rng: random.Random) -> str:
    return f"{rng.randint(1, 99):02d}{rng.choice('- ')}{digits(rng, rng.randint(7, 8))}"


def money(rng: random.Random, cents: int | None = None) -> str:
    """An amount with two decimals; small ones are the common ones."""
    cents = amount(rng) if cents is None else cents
    whole = f"{cents // 100:,}" if cents >= 100000 and rng.random() < 0.5 else str(cents // 100)
    return f"{whole}.{cents % 100:02d}"


def amount(rng: random.Random, highest: int = 20000) -> int:
    """An amount in cents; half of them end in a zero, as prices do."""
    cents = int(10 + rng.random() ** 3 * highest)
    return cents // 10 * 10 if rng.random() < 0.5 else cents


def date(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 31), rng.randint(1, 12), rng.randint(2005, 2026)
    kind = rng.random()
    mark = rng.choice("///--.")
    if kind < 0.5:
        return f"{day:02d}{mark}{month:02d}{mark}{year}"
    if kind < 0.65:
        return f"{day:02d}{mark}{month:02d}{mark}{year % 100:02d}"
    if kind < 0.75:
        return f"{day}/{month}/{year}"
    if kind < 0.82:
        return f"{year}{mark}{month:02d}{mark}{day:02d}"
    if kind < 0.87:
        return f"{month:02d}/{day:02d}/{year}"
    name = lexicon.MONTHS[month - 1] if rng.random() < 0.25 else lexicon.MONTHS[month - 1][:3]
    if rng.random() < 0.2:
        return f"{name} {day}, {year}"
    gap = rng.choice((" ", " ", "-", "/"))
    return f"{day:02d}{gap}{name}{gap}{year if rng.random() < 0.8 else year % 100}"


def time(rng: random.Random) -> str:
    hour, minute = rng.randint(0, 23), rng.randint(0, 59)
    seconds = f":{rng.randint(0, 59):02d}" if rng.random() < 0.5 else ""
    if rng.random() < 0.3:
        return f"{hour % 12 or 12}:{minute:02d}{seconds} {'AM' if hour < 12 else 'PM'}"
    return f"{hour:02d}:{minute:02d}{seconds}"


def _street(rng: random.Random) -> str:
    name = invented_word(rng, (1, 3))
    number = rng.choice(
        (
            "",
            f" {rng.randint(1, 40)}",
            f" {rng.randint(1, 30)}/{rng.randint(1, 99)}",
            f" SS{rng.randint(1, 30)}/{rng.randint(1, 99)}",
        )
    )
    kind = rng.choice(lexicon.STREETS)
    return f"{name} {kind}" if kind in ("STREET", "ROAD", "AVENUE", "LANE", "DRIVE") else f"{kind} {name}{number}"


def address(rng: random.Random) -> list[str]:
    """The lines of a postal address, in capitals; the commas are part of the lines."""
    house = rng.choice(
        (
            f"NO {rng.randint(1, 300)}",
            f"NO.{rng.randint(1, 300)}",
            f"NO. {rng.randint(1, 99)}-{rng.choice('GAB')}",
            f"LOT {rng.randint(1, 2000)}",
            f"{rng.randint(1, 400)}",
            f"LOT {rng.randint(1, 999)}-{rng.choice('ABC')} & {rng.randint(1, 999)}",
            f"{rng.randint(1, 9)}-{rng.randint(1, 60)}",
            f"NO:{rng.randint(1, 99)}",
        )
    )
    comma = "," if rng.random() < 0.85 else ""
    parts = [f"{house}{rng.choice((', ', ',', ' '))}{_street(rng)}"]
    if rng.random() < 0.7:
        parts.append(
            f"{rng.choice(lexicon.AREAS)} {invented_word(rng, (1, 3))}"
            + (f" {rng.randint(1, 12)}" if rng.random() < 0.2 else "")
        )
    if rng.random() < 0.25:
        parts.append(words(rng, 1, 3))
    town = rng.choice(lexicon.TOWNS) if rng.random() < 0.7 else invented_word(rng, (2, 3))
    parts.append(f"{digits(rng, 5)} {town}")
    if rng.random() < 0.6:
        parts.append(rng.choice(lexicon.STATES))
    lines, current = [], parts[0]
    for part in parts[1:]:
        if rng.random() < 0.35:
            current += f"{comma} {part}"
        else:
            lines.append(current + comma)
            current = part
    return [*lines, current + rng.choice(("", "", ".", ","))]


@dataclass(frozen=True)
class Case:
    """How a document writes its words: in capitals, with initial capitals, or small."""

    name: str

    @classmethod
    def choose(cls, rng: random.Random, capitals: float = 0.6) -> "Case":
        return cls("upper" if rng.random() < capitals else rng.choice(("title", "title", "sentence", "lower")))

    def __call__(self, text: str) -> str:
        if self.name == "upper":
            return text.upper()
        if self.name == "title":
            return " ".join(part.capitalize() for part in text.split(" "))
        return text.capitalize() if self.name == "sentence" else text.lower()
