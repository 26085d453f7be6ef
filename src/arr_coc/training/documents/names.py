"""Names of shops and postal addresses: what a reader is most tempted to remember instead of reading.

Both are put together from many parts in many orders, and most of the words in them are made up, so that hardly two are
alike. Spaces and commas are set as carelessly as tills set them.
"""

import random

from arr_coc.training.documents import gazetteer, lexicon, text

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def proper(rng: random.Random) -> str:
    """A made-up proper name of one or two words."""
    style = rng.random()
    if style < 0.6:
        return text.invented_word(rng, (1, 3))
    if style < 0.85:
        return f"{text.invented_word(rng, (1, 2))} {text.invented_word(rng, (1, 2))}"
    return rng.choice(gazetteer.NAME_WORDS)


def _opening(rng: random.Random) -> str:
    """What a shop's name starts with."""
    style = rng.random()
    if style < 0.5:
        return proper(rng)
    if style < 0.6:  # initials: ABC, A.B.C., A & B
        letters = [rng.choice(_LETTERS) for _ in range(rng.randint(1, 3))]
        return rng.choice(("".join(letters), ".".join(letters) + ".", " & ".join(letters[:2]), "&".join(letters[:2])))
    if style < 0.67:
        return f"{text.invented_word(rng, (1, 2))}'S"
    if style < 0.72:
        return str(rng.randint(1, 999))
    if style < 0.76:
        return f"{text.invented_word(rng, (1, 1))}-{text.invented_word(rng, (1, 2))}"
    if style < 0.82:
        return f"{rng.choice(('MR.', 'MR', 'THE', 'DR', 'OLD', 'NEW'))} {proper(rng)}"
    return rng.choice(gazetteer.NAME_WORDS if rng.random() < 0.6 else lexicon.GOODS)


def company(rng: random.Random) -> str:
    """A shop's or a firm's name, in capitals."""
    parts = [_opening(rng)]
    if rng.random() < 0.4:
        parts.append(proper(rng))
    parts += rng.sample(gazetteer.TRADES, rng.choice((0, 1, 1, 2)))
    if rng.random() < 0.3:  # trades come first in Malay
        parts.insert(0, parts.pop())
    if rng.random() < 0.08:
        parts.insert(rng.randint(1, len(parts)), rng.choice(("&", "DAN", "AND", "D.I.Y.", "N", "OF")))
    if rng.random() < 0.18:
        parts.append(f"({rng.choice(('M', 'KL', 'JOHOR', 'MALAYSIA', proper(rng), proper(rng)))})")
    if rng.random() < 0.65:
        parts.append(rng.choice(gazetteer.ENDINGS))
    name = " ".join(parts)
    for mark in ("& ", "DAN ", "AND ", "OF ", "N "):
        name = name.removeprefix(mark)
    return name.removesuffix(" &").strip()


def registration(rng: random.Random) -> str:
    """A firm's registration number, such as `704427-T`."""
    gap = rng.choice(("-", "-", "-", " - ", " ", ""))
    return f"{text.digits(rng, rng.choice((5, 6, 6, 7, 9)))}{gap}{rng.choice('ADHKMPTUVWX')}"


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
            f"{rng.choice(('LEVEL', 'FLOOR', 'BLOCK', 'BLK'))} {rng.choice('ABCDG123456')}, {proper(rng)} "
            f"{rng.choice(('PLAZA', 'MALL', 'TOWER', 'SQUARE', 'CENTRE', 'COMPLEX'))}",
            f"{rng.choice(('GROUND FLOOR', 'G/F', 'GRD FLOOR', '1ST FLR', 'TINGKAT BAWAH'))}, NO {number}",
        )
    )


def _street(rng: random.Random) -> str:
    kind = rng.choice(gazetteer.STREETS)
    if kind in gazetteer.STREETS_BEHIND:
        return f"{proper(rng)} {kind}"
    name = proper(rng) if rng.random() < 0.75 else ""
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
    kind = rng.choice(gazetteer.AREAS)
    name = f"{rng.choice(('SEKSYEN', 'SECTION', 'FASA', 'BATU', 'MUKIM'))} {rng.choice('U ')}{rng.randint(1, 30)}"
    if rng.random() < 0.8:
        name = f"{kind} {proper(rng)}" + (f" {rng.choice((rng.randint(1, 12), 'BARU', 'JAYA'))}" * (rng.random() < 0.3))
    return name.replace("  ", " ")


def _town(rng: random.Random) -> list[str]:
    """Postcode, town and state, in one part or several."""
    town = rng.choice(gazetteer.TOWNS) if rng.random() < 0.45 else proper(rng)
    postcode = text.digits(rng, 5)
    first = rng.choice((f"{postcode} {town}",) * 6 + (f"{postcode}, {town}", f"{town} {postcode}", town))
    state = rng.choice(gazetteer.STATES) if rng.random() < 0.75 else proper(rng)
    return [first, *([state] if rng.random() < 0.6 else []), *(["MALAYSIA"] if rng.random() < 0.08 else [])]


def address(rng: random.Random, widest: int = 46) -> list[str]:
    """The lines of a postal address, none much longer than `widest`, in capitals; the commas are part of the lines."""
    comma = rng.choice((", ",) * 7 + (",", ",", " , ", " "))
    parts = [_house(rng) + rng.choice((comma, comma, " ")).rstrip(" ") + "\0" + _street(rng)]
    parts += [_area(rng) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    parts += [text.words(rng, 1, 2)] if rng.random() < 0.1 else []
    parts += _town(rng)
    whole = parts[0].replace("\0", "" if comma == "," and "," in parts[0] else " ")
    for part in parts[1:]:
        whole += (comma if rng.random() < 0.9 else " ") + part
    whole += rng.choice(("", "", "", ".", "."))
    whole = whole.replace("..", ".").replace("  ", " ")
    return _broken(rng, whole, widest)


def _broken(rng: random.Random, whole: str, widest: int) -> list[str]:
    """The address on lines of about the same width: broken behind commas, or wherever a line is full."""
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
