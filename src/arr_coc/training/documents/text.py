"""Words, dates, amounts and numbers for rendered documents.

Half of the words are made up from syllables: a reader that has only met real words learns to guess them.
"""

import random
from dataclasses import dataclass

from arr_coc.training.documents import lexicon

_CONSONANTS, _VOWELS = "BCDFGHJKLMNPQRSTVWXYZ", "AEIOU"
_OPENINGS = ("", *"BCDFGHJKLMNPRSTWY", "BR", "CH", "GL", "KR", "PL", "SH", "SR", "ST", "TH", "TR")
_MIDDLES = (*"AAEEIIOOUU", "AI", "AU", "EE", "IA", "OO", "UA")
_CLOSINGS = (*"DKLMNNRST", "CK", "HT", "LL", "MP", "NG", "NG", "NT", "RD", "SS")


def invented_word(rng: random.Random, syllables: tuple[int, int] = (1, 4)) -> str:
    """A word that nobody knows: plain syllables with any letters, or ones with the clusters that languages like."""
    parts = []
    plain = rng.random() < 0.5
    for _ in range(rng.randint(*syllables)):
        if plain:
            parts.append(rng.choice(_CONSONANTS) + rng.choice(_VOWELS))
            parts.append(rng.choice(_CONSONANTS) if rng.random() < 0.35 else "")
        else:
            parts.append(rng.choice(_OPENINGS) + rng.choice(_MIDDLES))
            parts.append(rng.choice(_CLOSINGS) if rng.random() < 0.4 else "")
    return "".join(parts)


def word(rng: random.Random) -> str:
    return rng.choice(lexicon.GOODS) if rng.random() < 0.5 else invented_word(rng)


def words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(word(rng) for _ in range(rng.randint(low, high)))


def person(rng: random.Random) -> str:
    first = rng.choice(lexicon.FIRST_NAMES) if rng.random() < 0.6 else invented_word(rng, (1, 3))
    return first if rng.random() < 0.3 else f"{first} {invented_word(rng, (1, 3))}"


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
