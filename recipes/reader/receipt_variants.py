"""Variants of scanned receipts, so that the few hundred scans cannot be memorised.

`rerender` keeps the layout and draws other words and numbers. `swap_fields` pastes whole fields (total, date, name, address)
from other scans. `swap_words` pastes single words into names and addresses. Swapped pieces are real print.
"""

import random
import re
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.training.documents import text
from arr_coc.training.documents.page import Document, FontSet, Page, load_font
from recipes.reader.receipts import FIELDS, Box, Placement, Receipt, field_questions

# Rerendering

_WORD = re.compile(r"[A-Z]{2,}")
_COMMON_TO = 6  # companies that must print a word before it counts as common


def common_words(receipts: list[Receipt]) -> frozenset[str]:
    """Words that at least `_COMMON_TO` different companies print."""
    shops: dict[str, set[str]] = defaultdict(set)
    for receipt in receipts:
        for line, _ in receipt.lines:
            for word in _WORD.findall(line):
                shops[word].add(receipt.fields.get("company", ""))
    return frozenset(word for word, names in shops.items() if len(names) >= _COMMON_TO)


class Replacements:
    """Replaces the words and numbers of one receipt, each always by the same other, so fields and lines still agree.

    Words that many shops print (TOTAL, CASH, JALAN, SDN BHD) stay.
    """

    def __init__(self, rng: random.Random, common: frozenset[str], date: str | None):
        self.rng, self.common = rng, common
        self.known: dict[str, str] = {}
        dates = f"{re.escape(date)}|" if date else ""
        self.pattern = re.compile(rf"{dates}\d+\.\d\d(?!\d)|[A-Z]{{2,}}|\d+")
        if date:
            self.known[date] = text.date(rng)

    def _replacement(self, found: str) -> str:
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

    def __call__(self, line_text: str) -> str:
        def replace_match(match: re.Match[str]) -> str:
            found = match.group()
            if found not in self.known:
                self.known[found] = self._replacement(found)
            return self.known[found]

        return self.pattern.sub(replace_match, line_text)


def rerender(
    rng: random.Random, fonts: FontSet, receipt: Receipt, common: frozenset[str], width: int, height: int
) -> Document:
    """The layout of `receipt` with other words and numbers, on a canvas of `width` x `height` pixels."""
    new_text = Replacements(rng, common, receipt.fields.get("date"))
    case = text.Case.choose(rng, 0.6)
    placement = Placement.varied(rng, receipt, width, height)
    page = Page(width, height, rng.randint(190, 255))
    path, other = fonts.pick(rng, 0.6), fonts.pick(rng, 0.6)
    ink = rng.randint(0, 110)
    for line, box in receipt.lines:
        left, top, right, bottom = placement.box(box)
        line_text = new_text(line)
        size = min(60, max(6, round((bottom - top) * 0.9)))
        face = other if bottom - top > 30 else path
        wide = load_font(face, size).width(line_text)
        if wide > (right - left) * 1.05:
            size = max(6, int(size * (right - left) * 1.05 / wide))
        page.write(
            left,
            top + (bottom - top - size) / 2,
            case(line_text),
            load_font(face, size),
            max(0, ink + rng.randint(-10, 10)),
        )
    fields = {kind: new_text(answer) for kind, answer in receipt.fields.items()}
    lines = [line.text.upper() for line in page.lines]
    # Where the label never agreed with the print, the new words need not agree either: no question.
    questions = [q for q in field_questions(rng, fields, lines) if len(q.evidence) < len(lines)]
    return page.document(questions, capitals=True)


WORD_FIELDS = ("company", "address")

# Swapping fields

_AMOUNT = re.compile(r"(?:RM ?)?(\d[\d,]*\.\d\d)")
_FIELD_CANDIDATES = 6  # the one with the most similar proportions is used


@dataclass(frozen=True)
class FieldPiece:
    """What a receipt shows for a field: some of its lines, the box around them and the answer they give."""

    receipt: Receipt
    lines: tuple[int, ...]
    box: Box
    answer: str

    @property
    def proportion(self) -> float:
        return (self.box[2] - self.box[0]) / max(1.0, self.box[3] - self.box[1])


def _bounding_box(boxes: list[Box]) -> Box:
    edges = np.array(boxes)
    return (*edges[:, :2].min(0), *edges[:, 2:].max(0))


def _lines_of(receipt: Receipt, kind: str) -> list[int]:
    """The lines that show only the field; none if that is not certain."""
    answer, texts = receipt.fields.get(kind, ""), [text for text, _ in receipt.lines]
    if not answer:
        return []
    if kind == "total":
        shown = [index for index, text in enumerate(texts) if answer in text]
        return (
            shown
            if all((found := _AMOUNT.fullmatch(texts[index])) and found.group(1) == answer for index in shown)
            else []
        )
    if kind == "date":
        return [index for index, text in enumerate(texts) if answer in text and "TOTAL" not in text]
    if kind == "company":
        return [index for index, text in enumerate(texts) if text.replace(" ", "") == answer.replace(" ", "")][:1]
    flat = answer.replace(" ", "")
    shown = [index for index, text in enumerate(texts) if len(text) > 5 and text.replace(" ", "").strip(",.") in flat]
    together = "".join(texts[index] for index in shown).replace(" ", "")
    return shown if shown and together.strip(",.") == flat.strip(",.") else []


def _pieces(receipt: Receipt, kind: str) -> list[FieldPiece]:
    """An address is one piece of several lines; a total or a date may be printed several times, each a piece."""
    lines, answer = _lines_of(receipt, kind), receipt.fields.get(kind, "")
    if kind != "address":
        return [FieldPiece(receipt, (index,), receipt.lines[index][1], answer) for index in lines]
    if not lines:
        return []
    box = _bounding_box([receipt.lines[index][1] for index in lines])
    middles = [
        ((b[0] + b[2]) / 2, (b[1] + b[3]) / 2) for index, (_, b) in enumerate(receipt.lines) if index not in lines
    ]
    if any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in middles):
        return []  # other text is between the lines
    return [FieldPiece(receipt, tuple(lines), box, answer)]


class FieldPieces:
    """The pieces of all training receipts, by field."""

    def __init__(self, receipts: list[Receipt]):
        self.of: dict[str, dict[str, list[FieldPiece]]] = {receipt.name: {} for receipt in receipts}
        self.all: dict[str, dict[str, list[FieldPiece]]] = {kind: defaultdict(list) for kind in FIELDS}
        for receipt in receipts:
            for kind in FIELDS:
                pieces = _pieces(receipt, kind)
                self.of[receipt.name][kind] = pieces
                for piece in pieces:
                    self.all[kind][piece.answer].append(piece)
        self.answers = {kind: sorted(pieces) for kind, pieces in self.all.items()}

    def donor(self, rng: random.Random, kind: str, host: FieldPiece) -> FieldPiece:
        """A piece for the host's place; all answers are equally likely, however many receipts give them."""
        drawn = [rng.choice(self.all[kind][rng.choice(self.answers[kind])]) for _ in range(_FIELD_CANDIDATES)]
        return min(drawn, key=lambda piece: abs(np.log(piece.proportion / host.proportion)))


def _paper_level(pixels: np.ndarray) -> float:
    return float(np.percentile(pixels, 75)) if pixels.size else 255.0


def _paste_field(canvas: np.ndarray, host: FieldPiece, donor: FieldPiece) -> list[tuple[str, Box]]:
    """Paint over the host's box and paste the donor's picture into it; returns the pasted lines."""
    left, top, right, bottom = (round(edge) for edge in host.box)
    left, top = max(0, left - 1), max(0, top - 1)
    right, bottom = min(canvas.shape[1], right + 1), min(canvas.shape[0], bottom + 1)
    taken = donor.box
    crop = donor.receipt.image.crop((round(taken[0]), round(taken[1]), round(taken[2]), round(taken[3])))
    scale = min((right - left) / crop.width, (bottom - top) / crop.height)
    wide, tall = max(1, int(crop.width * scale)), max(1, int(crop.height * scale))
    pasted = np.asarray(crop.resize((wide, tall)), np.float32)
    paper = _paper_level(canvas[top:bottom, left:right])
    canvas[top:bottom, left:right] = paper
    x, y = left + (right - left - wide) // 2, top + (bottom - top - tall) // 2
    canvas[y : y + tall, x : x + wide] = np.clip(pasted * (paper / max(1.0, _paper_level(pasted))), 0, 255)
    lines = []
    for index in donor.lines:
        text, box = donor.receipt.lines[index]
        shift = (donor.box[0], donor.box[1])
        moved = (
            (box[0] - shift[0]) * scale + x,
            (box[1] - shift[1]) * scale + y,
            (box[2] - shift[0]) * scale + x,
            (box[3] - shift[1]) * scale + y,
        )
        lines.append((text, moved))
    return lines


def swap_fields(
    rng: random.Random,
    receipt: Receipt,
    pieces: FieldPieces,
    chance: float = 0.5,
    kept: frozenset[str] = frozenset(),
) -> Receipt:
    """`receipt` with each field, by `chance`, pasted from another receipt; fields in `kept` stay."""
    canvas, fields, lines = None, dict(receipt.fields), list(receipt.lines)
    added: list[tuple[str, Box]] = []
    gone: set[int] = set()
    for kind in FIELDS:
        hosts = pieces.of[receipt.name][kind]
        if (
            not hosts
            or kind in kept
            or rng.random() > chance
            or any(index in gone for host in hosts for index in host.lines)
        ):
            continue
        if canvas is None:
            canvas = np.array(receipt.image)
        donor = pieces.donor(rng, kind, hosts[0])
        for host in hosts:
            added += _paste_field(canvas, host, donor)
            gone |= set(host.lines)
        fields[kind] = donor.answer
    if canvas is None:
        return receipt
    others = tuple(line for index, line in enumerate(lines) if index not in gone)
    return replace(receipt, image=Image.fromarray(canvas), fields=fields, lines=(*added, *others))


# Printing over


def reprint(rng: random.Random, fonts: FontSet, receipt: Receipt, common: frozenset[str]) -> Receipt:
    """`receipt` with company and address printed over in a font: invented words and numbers in the shape of the old ones."""
    new_text = Replacements(rng, common, None)
    canvas = receipt.image.copy()
    draw, pixels = ImageDraw.Draw(canvas), np.asarray(receipt.image)
    fields, lines = dict(receipt.fields), list(receipt.lines)
    path = fonts.pick(rng, 0.5)
    for kind in WORD_FIELDS:
        shown = _lines_of(receipt, kind)
        for index in shown:
            line, (left, top, right, bottom) = lines[index]
            box = tuple(round(edge) for edge in (left, top, right, bottom))
            old = pixels[max(0, box[1]) : box[3], max(0, box[0]) : box[2]]
            line = new_text(line)
            size = max(6, round((bottom - top) * 0.85))
            wide = load_font(path, size).width(line)
            font = load_font(path, max(6, int(size * min(1.0, (right - left) * 1.04 / max(1.0, wide)))))
            draw.rectangle(box, fill=round(_paper_level(old)))
            ink = round(float(np.percentile(old, 4))) if old.size else 0
            draw.text((left, (top + bottom + font.ascent) / 2), line, fill=ink, font=font.face, anchor="ls")
            lines[index] = (line, (left, top, left + font.width(line), bottom))
        if shown:
            fields[kind] = new_text(fields[kind])
    return replace(receipt, image=canvas, fields=fields, lines=tuple(lines))


# Swapping words

_KEPT_WORDS = frozenset({"SDN", "BHD", "SDN.", "BHD.", "S/B", "(M)", "ENTERPRISE", "TRADING"})  # company forms
_WORD_CANDIDATES = 5  # the one with the most similar proportions is used


@dataclass(frozen=True)
class WordPiece:
    """A word of a line, its box in the scan, and its print with the paper's brightness."""

    text: str
    box: tuple[int, int, int, int]
    print: np.ndarray  # [h, w] uint8
    paper: float

    @property
    def sort(self) -> tuple[bool, bool]:
        """Words are swapped for words of their sort, so that an address keeps its shape."""
        return any(map(str.isdigit, self.text)), self.text.endswith((",", "."))

    @property
    def proportion(self) -> float:
        return self.print.shape[1] / max(1, self.print.shape[0])


def find_blanks(pixels: np.ndarray, text: str) -> list[tuple[int, int]] | None:
    """Where the blanks of a line `[h, w]` are, as `(start, end)` columns; None when that is not certain."""
    count, (height, width) = text.count(" "), pixels.shape
    paper = float(np.percentile(pixels, 80))
    inked = pixels < paper - 0.4 * (paper - float(pixels.min()))
    empty = inked.sum(0) == 0
    steps = np.flatnonzero(np.diff(np.concatenate([[False], empty, [False]]).astype(np.int8)))
    runs = [(int(start), int(end)) for start, end in zip(steps[::2], steps[1::2], strict=True)]
    runs = [(start, end) for start, end in runs if start > 0 and end < width]
    runs.sort(key=lambda run: run[0] - run[1])
    chosen, others = runs[:count], runs[count:]
    narrowest = min((end - start for start, end in chosen), default=width)
    if len(chosen) < count or narrowest < 0.15 * height:
        return None
    if others and narrowest < 1.5 * (others[0][1] - others[0][0]):
        return None
    chosen.sort()
    expected = [(index + 0.5) / len(text) * width for index, letter in enumerate(text) if letter == " "]
    far = 2.5 * width / len(text)
    if any(abs((start + end) / 2 - x) > far for (start, end), x in zip(chosen, expected, strict=True)):
        return None
    return chosen


def split_words(receipt: Receipt, line: int) -> list[WordPiece] | None:
    """The words of a line with their boxes, or None."""
    text, (left, top, right, bottom) = receipt.lines[line]
    x, y = max(0, round(left)), max(0, round(top))
    pixels = np.asarray(receipt.image)[y : round(bottom), x : round(right)]
    if min(pixels.shape) < 6 or "  " in text or text != text.strip():
        return None
    gaps = find_blanks(pixels, text)
    if gaps is None:
        return None
    starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), pixels.shape[1]]
    paper = float(np.percentile(pixels, 80))
    return [
        WordPiece(word, (x + start, y, x + end, y + pixels.shape[0]), pixels[:, start:end], paper)
        for word, start, end in zip(text.split(" "), starts, ends, strict=True)
    ]


def _field_lines(receipt: Receipt, kind: str) -> list[int]:
    """Lines that follow each other and read exactly as the field's answer."""
    answer, texts = receipt.fields.get(kind, ""), [text for text, _ in receipt.lines]
    for first in range(len(texts)):
        for end in range(first + 1, min(first + 7, len(texts) + 1)):
            if answer and " ".join(texts[first:end]) == answer:
                return list(range(first, end))
    return []


class WordPieces:
    """The words of the names and addresses of all training receipts."""

    def __init__(self, receipts: list[Receipt]):
        self.of: dict[tuple[str, str], dict[int, list[WordPiece]]] = {}
        self.all: dict[tuple[str, tuple[bool, bool]], dict[str, list[WordPiece]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for receipt in receipts:
            for kind in WORD_FIELDS:
                lines = {index: split_words(receipt, index) for index in _field_lines(receipt, kind)}
                known = {index: words for index, words in lines.items() if words is not None}
                if not known:
                    continue
                self.of[receipt.name, kind] = known
                for word in (word for words in known.values() for word in words):
                    self.all[kind, word.sort][word.text].append(word)
        # A word counts once, however many receipts print it.
        self.texts = {key: sorted(words) for key, words in self.all.items()}
        self.all = {key: dict(words) for key, words in self.all.items()}

    def other(self, rng: random.Random, kind: str, host: WordPiece) -> WordPiece:
        key = (kind, host.sort)
        drawn = [rng.choice(self.all[key][rng.choice(self.texts[key])]) for _ in range(_WORD_CANDIDATES)]

        def distortion(word: WordPiece) -> float:
            """How much the word would be stretched, or upscaled."""
            squeezed = abs(np.log(word.proportion / host.proportion))
            return squeezed + max(0.0, np.log(host.print.shape[0] / word.print.shape[0]) - 0.4)

        return min(drawn, key=distortion)


def _paste_word(canvas: np.ndarray, host: WordPiece, donor: WordPiece) -> None:
    """The donor's print in the host's box, as tall as fits and at its own proportion where there is room."""
    left, top, right, bottom = host.box
    tall, wide = bottom - top, right - left
    width = max(2, min(wide, round(donor.proportion * tall)))
    shown = np.asarray(Image.fromarray(donor.print).resize((width, tall)), np.float32)
    canvas[top:bottom, left:right] = host.paper
    start = left + (wide - width) // 2
    canvas[top:bottom, start : start + width] = np.clip(shown * (host.paper / max(1.0, donor.paper)), 0, 255)


def swap_words(
    rng: random.Random, receipt: Receipt, pieces: WordPieces, chance: float = 0.5
) -> tuple[Receipt, frozenset[str]]:
    """`receipt` with the words of its name and of its address swapped, each by `chance`; and which of them were."""
    canvas, lines, fields = None, list(receipt.lines), dict(receipt.fields)
    changed = set()
    for kind in WORD_FIELDS:
        known = pieces.of.get((receipt.name, kind))
        if known is None or rng.random() > chance:
            continue
        canvas = np.array(receipt.image) if canvas is None else canvas
        share = rng.uniform(0.4, 1.0)
        for index, words in known.items():
            words_now = []
            for word in words:
                donor = word
                if word.text not in _KEPT_WORDS and rng.random() < share:
                    donor = pieces.other(rng, kind, word)
                    _paste_word(canvas, word, donor)
                words_now.append(donor.text)
            lines[index] = (" ".join(words_now), lines[index][1])
        fields[kind] = " ".join(lines[index][0] for index in _field_lines(receipt, kind))
        changed.add(kind)
    if canvas is None:
        return receipt, frozenset()
    return replace(receipt, image=Image.fromarray(canvas), fields=fields, lines=tuple(lines)), frozenset(changed)
