"""Random text for drawn documents: words, dates, amounts, names of shops, postal addresses.

Half of the words are made up from syllables, because a reader that has only seen real words learns to guess them. Names
and addresses are combined from many parts in many orders, so that they can hardly be memorised. Spaces and commas vary as
much as on real receipts.
"""

import random
from dataclasses import dataclass

from arr_coc.training.documents import lexicon

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONSONANTS, _VOWELS = "BCDFGHJKLMNPQRSTVWXYZ", "AEIOU"
_OPENINGS = ("", *"BCDFGHJKLMNPRSTWY", "BR", "CH", "GL", "KR", "PL", "SH", "SR", "ST", "TH", "TR")
_MIDDLES = (*"AAEEIIOOUU", "AI", "AU", "EE", "IA", "OO", "UA")
_CLOSINGS = (*"DKLMNNRST", "CK", "HT", "LL", "MP", "NG", "NG", "NT", "RD", "SS")


def invented_word(rng: random.Random, syllables: tuple[int, int] = (1, 4)) -> str:
    """A made-up word: syllables of any letters, or syllables with common letter clusters."""
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


def proper_name(rng: random.Random) -> str:
    """A made-up proper name of one or two words."""
    style = rng.random()
    if style < 0.6:
        return invented_word(rng, (1, 3))
    if style < 0.85:
        return f"{invented_word(rng, (1, 2))} {invented_word(rng, (1, 2))}"
    return rng.choice(lexicon.NAME_WORDS)


def _opening(rng: random.Random) -> str:
    """What a shop's name starts with."""
    style = rng.random()
    if style < 0.5:
        return proper_name(rng)
    if style < 0.6:  # initials: ABC, A.B.C., A & B
        letters = [rng.choice(_LETTERS) for _ in range(rng.randint(1, 3))]
        return rng.choice(("".join(letters), ".".join(letters) + ".", " & ".join(letters[:2]), "&".join(letters[:2])))
    if style < 0.67:
        return f"{invented_word(rng, (1, 2))}'S"
    if style < 0.72:
        return str(rng.randint(1, 999))
    if style < 0.76:
        return f"{invented_word(rng, (1, 1))}-{invented_word(rng, (1, 2))}"
    if style < 0.82:
        return f"{rng.choice(('MR.', 'MR', 'THE', 'DR', 'OLD', 'NEW'))} {proper_name(rng)}"
    return rng.choice(lexicon.NAME_WORDS if rng.random() < 0.6 else lexicon.GOODS)


def company(rng: random.Random) -> str:
    """A shop's or a firm's name, in capitals."""
    parts = [_opening(rng)]
    if rng.random() < 0.4:
        parts.append(proper_name(rng))
    parts += rng.sample(lexicon.TRADES, rng.choice((0, 1, 1, 2)))
    if rng.random() < 0.3:  # trades come first in Malay
        parts.insert(0, parts.pop())
    if rng.random() < 0.08:
        parts.insert(rng.randint(1, len(parts)), rng.choice(("&", "DAN", "AND", "D.I.Y.", "N", "OF")))
    if rng.random() < 0.18:
        parts.append(f"({rng.choice(('M', 'KL', 'JOHOR', 'MALAYSIA', proper_name(rng), proper_name(rng)))})")
    if rng.random() < 0.65:
        parts.append(rng.choice(lexicon.ENDINGS))
    name = " ".join(parts)
    for mark in ("& ", "DAN ", "AND ", "OF ", "N "):
        name = name.removeprefix(mark)
    return name.removesuffix(" &").strip()


def registration(rng: random.Random) -> str:
    """A firm's registration number, such as `704427-T`."""
    gap = rng.choice(("-", "-", "-", " - ", " ", ""))
    return f"{digits(rng, rng.choice((5, 6, 6, 7, 9)))}{gap}{rng.choice('ADHKMPTUVWX')}"


def _number(rng: random.Random) -> str:
    return rng.choice(
        (
            str(rng.randint(1, 400)),
            f"{rng.randint(1, 60)}-{rng.randint(1, 60)}",
            f"{rng.randint(1, 99)}{rng.choice('ABG')}",
            f"{rng.randint(1, 99)} & {rng.randint(1, 99)}",
            f"{rng.randint(1, 99)}&{rng.randint(1, 99)}",
            f"{rng.randint(1, 99)}-{rng.choice('GABF')}",
            f"{rng.choice('ABGK')}-{rng.randint(1, 30):02d}-{rng.randint(1, 30):02d}",
            f"{rng.choice('ABGK')}{rng.randint(1, 9)}-{rng.randint(1, 200)}",
        )
    )


def _house(rng: random.Random) -> str:
    number = _number(rng)
    return rng.choice(
        (
            *(f"{mark}{number}" for mark in ("NO ", "NO.", "NO. ", "NO:", "NO: ", "", "", "UNIT ", "LOT ", "LOT NO. ")),
            f"LOT {rng.randint(1, 40000)}",
            f"LOT {rng.randint(1, 9999)}-{rng.choice('ABC')} & {rng.randint(1, 9999)}-{rng.choice('BCD')}",
            f"PT {rng.randint(1, 9999)}",
            f"LOT P.T. {rng.randint(1, 99999)}",
            f"{rng.choice(('LEVEL', 'FLOOR', 'BLOCK', 'BLK'))} {rng.choice('ABCDG123456')}, {proper_name(rng)} "
            f"{rng.choice(('PLAZA', 'MALL', 'TOWER', 'SQUARE', 'CENTRE', 'COMPLEX'))}",
            f"{rng.choice(('GROUND FLOOR', 'G/F', 'GRD FLOOR', '1ST FLR', 'TINGKAT BAWAH'))}, NO {number}",
        )
    )


def _street(rng: random.Random) -> str:
    kind = rng.choice(lexicon.STREETS)
    if kind in lexicon.STREETS_BEHIND:
        return f"{proper_name(rng)} {kind}"
    name = proper_name(rng) if rng.random() < 0.75 else ""
    number = rng.choice(
        (
            "",
            "",
            f" {rng.randint(1, 40)}",
            f" {rng.randint(1, 40)}/{rng.randint(1, 99)}",
            f" {rng.randint(1, 40)}/{rng.randint(1, 99)}{rng.choice('ABCH')}",
            f" {rng.choice(('SS', 'SS ', 'PJU ', 'U', 'USJ ', 'KPB ', 'SR ', 'BP '))}{rng.randint(1, 30)}/{rng.randint(1, 99)}",
            f" {rng.choice('ABCGQX')} U{rng.randint(1, 20)}/{rng.choice('ABCGQX')}",
        )
    )
    off = "OFF " if rng.random() < 0.06 else ""
    return f"{off}{kind} {name}{number or ('' if name else ' BESAR')}".replace("  ", " ")


def _area(rng: random.Random) -> str:
    kind = rng.choice(lexicon.AREAS)
    name = f"{rng.choice(('SEKSYEN', 'SECTION', 'FASA', 'BATU', 'MUKIM'))} {rng.choice('U ')}{rng.randint(1, 30)}"
    if rng.random() < 0.8:
        name = f"{kind} {proper_name(rng)}" + (
            f" {rng.choice((rng.randint(1, 12), 'BARU', 'JAYA'))}" * (rng.random() < 0.3)
        )
    return name.replace("  ", " ")


def _town(rng: random.Random) -> list[str]:
    """Postcode, town and state, in one part or several."""
    town = rng.choice(lexicon.TOWNS) if rng.random() < 0.45 else proper_name(rng)
    postcode = digits(rng, 5)
    first = rng.choice((f"{postcode} {town}",) * 6 + (f"{postcode}, {town}", f"{town} {postcode}", town))
    state = rng.choice(lexicon.STATES) if rng.random() < 0.75 else proper_name(rng)
    return [first, *([state] if rng.random() < 0.6 else []), *(["MALAYSIA"] if rng.random() < 0.08 else [])]


def address(rng: random.Random, widest: int = 46) -> list[str]:
    """The lines of a postal address, none much longer than `widest`, in capitals; the commas are part of the lines."""
    comma = rng.choice((", ",) * 7 + (",", ",", " , ", " "))
    parts = [_house(rng) + rng.choice((comma, comma, " ")).rstrip(" ") + "\0" + _street(rng)]
    parts += [_area(rng) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    parts += [words(rng, 1, 2)] if rng.random() < 0.1 else []
    parts += _town(rng)
    whole = parts[0].replace("\0", "" if comma == "," and "," in parts[0] else " ")
    for part in parts[1:]:
        whole += (comma if rng.random() < 0.9 else " ") + part
    whole += rng.choice(("", "", "", ".", "."))
    whole = whole.replace("..", ".").replace("  ", " ")
    return _break_lines(rng, whole, widest)


def _break_lines(rng: random.Random, whole: str, widest: int) -> list[str]:
    """Break the address into lines of similar width: after commas, or wherever a line is full."""
    room, anywhere = min(widest, rng.randint(18, 46)), rng.random() < 0.45
    lines, current = [], ""
    for word in whole.split(" "):
        full = len(current) + 1 + len(word) > room
        early = not anywhere and len(current) > room * 0.55 and current.endswith((",", "."))
        if current and (full or early) and word != ",":
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}".strip()
    return [*lines, current]
