"""Scanned receipts whose names and addresses are put together from words cut out of many scans.

Shops repeat, and a whole name or address that was seen a few times is soon known by heart. Word by word there are always
new ones, in real print. Words are told apart by the blanks between them; lines where that is doubtful are left alone.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from recipes.reader.receipts import Receipt

KINDS = ("company", "address")
_KEPT = frozenset({"SDN", "BHD", "SDN.", "BHD.", "S/B", "(M)", "ENTERPRISE", "TRADING"})  # what marks a firm's name
_TRIED = 5  # words that are looked at before the one of the most similar width is taken


@dataclass(frozen=True)
class Word:
    """A word of a line, its box in the scan, and its print with the paper's brightness."""

    text: str
    box: tuple[int, int, int, int]
    print: np.ndarray  # [h, w] uint8
    paper: float

    @property
    def sort(self) -> tuple[bool, bool]:
        """Words are exchanged for words of their sort, so that an address keeps its shape."""
        return any(map(str.isdigit, self.text)), self.text.endswith((",", "."))

    @property
    def proportion(self) -> float:
        return self.print.shape[1] / max(1, self.print.shape[0])


def blanks(pixels: np.ndarray, text: str) -> list[tuple[int, int]] | None:
    """Where the blanks of a line `[h, w]` are, as `(start, end)` columns; None when they cannot be told for sure."""
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


def words_of(receipt: Receipt, line: int) -> list[Word] | None:
    """The words of a line with their boxes, or None."""
    text, (left, top, right, bottom) = receipt.lines[line]
    x, y = max(0, round(left)), max(0, round(top))
    pixels = np.asarray(receipt.image)[y : round(bottom), x : round(right)]
    if min(pixels.shape) < 6 or "  " in text or text != text.strip():
        return None
    gaps = blanks(pixels, text)
    if gaps is None:
        return None
    starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), pixels.shape[1]]
    paper = float(np.percentile(pixels, 80))
    return [
        Word(word, (x + start, y, x + end, y + pixels.shape[0]), pixels[:, start:end], paper)
        for word, start, end in zip(text.split(" "), starts, ends, strict=True)
    ]


def _told_lines(receipt: Receipt, kind: str) -> list[int]:
    """Lines that follow each other and read exactly as the field's answer."""
    answer, texts = receipt.fields.get(kind, ""), [text for text, _ in receipt.lines]
    for first in range(len(texts)):
        for end in range(first + 1, min(first + 7, len(texts) + 1)):
            if answer and " ".join(texts[first:end]) == answer:
                return list(range(first, end))
    return []


class WordShelf:
    """The words of the names and addresses of all training receipts."""

    def __init__(self, receipts: list[Receipt]):
        self.of: dict[tuple[str, str], dict[int, list[Word]]] = {}
        self.all: dict[tuple[str, tuple[bool, bool]], dict[str, list[Word]]] = defaultdict(lambda: defaultdict(list))
        for receipt in receipts:
            for kind in KINDS:
                lines = {index: words_of(receipt, index) for index in _told_lines(receipt, kind)}
                known = {index: words for index, words in lines.items() if words is not None}
                if not known:
                    continue
                self.of[receipt.name, kind] = known
                for word in (word for words in known.values() for word in words):
                    self.all[kind, word.sort][word.text].append(word)
        # A word counts once, however many receipts print it.
        self.texts = {key: sorted(words) for key, words in self.all.items()}
        self.all = {key: dict(words) for key, words in self.all.items()}

    def other(self, rng: random.Random, kind: str, host: Word) -> Word:
        key = (kind, host.sort)
        drawn = [rng.choice(self.all[key][rng.choice(self.texts[key])]) for _ in range(_TRIED)]

        def strain(word: Word) -> float:
            """How much the word would be squeezed, or blown up beyond what its pixels hold."""
            squeezed = abs(np.log(word.proportion / host.proportion))
            return squeezed + max(0.0, np.log(host.print.shape[0] / word.print.shape[0]) - 0.4)

        return min(drawn, key=strain)


def _paste(canvas: np.ndarray, host: Word, donor: Word) -> None:
    """The donor's print in the host's box, as tall as fits and at its own proportion where there is room."""
    left, top, right, bottom = host.box
    tall, wide = bottom - top, right - left
    width = max(2, min(wide, round(donor.proportion * tall)))
    shown = np.asarray(Image.fromarray(donor.print).resize((width, tall)), np.float32)
    canvas[top:bottom, left:right] = host.paper
    start = left + (wide - width) // 2
    canvas[top:bottom, start : start + width] = np.clip(shown * (host.paper / max(1.0, donor.paper)), 0, 255)


def patched(
    rng: random.Random, receipt: Receipt, shelf: WordShelf, chance: float = 0.5
) -> tuple[Receipt, frozenset[str]]:
    """`receipt` with the words of its name and of its address exchanged, each by `chance`; and which of them were."""
    canvas, lines, fields = None, list(receipt.lines), dict(receipt.fields)
    changed = set()
    for kind in KINDS:
        known = shelf.of.get((receipt.name, kind))
        if known is None or rng.random() > chance:
            continue
        canvas = np.array(receipt.image) if canvas is None else canvas
        share = rng.uniform(0.4, 1.0)
        for index, words in known.items():
            told = []
            for word in words:
                donor = word
                if word.text not in _KEPT and rng.random() < share:
                    donor = shelf.other(rng, kind, word)
                    _paste(canvas, word, donor)
                told.append(donor.text)
            lines[index] = (" ".join(told), lines[index][1])
        fields[kind] = " ".join(lines[index][0] for index in _told_lines(receipt, kind))
        changed.add(kind)
    if canvas is None:
        return receipt, frozenset()
    return replace(receipt, image=Image.fromarray(canvas), fields=fields, lines=tuple(lines)), frozenset(changed)
