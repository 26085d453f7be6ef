"""Scanned receipts with parts of other scanned receipts: a total, a date, a name or an address cut out there and pasted here.

There are only a few hundred scans, and after some rounds a network knows their answers by heart. When the pieces that
are asked for come from elsewhere, only reading helps, and the print stays real.
"""

import random
import re
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from recipes.reader.receipts import FIELDS, Box, Receipt

_AMOUNT = re.compile(r"(?:RM ?)?(\d[\d,]*\.\d\d)")
_TRIED = 6  # donors that are looked at before the one of the most similar proportions is taken


@dataclass(frozen=True)
class Piece:
    """What a receipt shows for a field: some of its lines, the box around them and the answer they give."""

    receipt: Receipt
    lines: tuple[int, ...]
    box: Box
    answer: str

    @property
    def proportion(self) -> float:
        return (self.box[2] - self.box[0]) / max(1.0, self.box[3] - self.box[1])


def _around(boxes: list[Box]) -> Box:
    edges = np.array(boxes)
    return (*edges[:, :2].min(0), *edges[:, 2:].max(0))


def _lines_of(receipt: Receipt, kind: str) -> list[int]:
    """The lines that show the field and nothing that would be missed; none if that cannot be told."""
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


def _pieces(receipt: Receipt, kind: str) -> list[Piece]:
    """An address is one piece of several lines; a total or a date may be printed several times, each a piece."""
    lines, answer = _lines_of(receipt, kind), receipt.fields.get(kind, "")
    if kind != "address":
        return [Piece(receipt, (index,), receipt.lines[index][1], answer) for index in lines]
    if not lines:
        return []
    box = _around([receipt.lines[index][1] for index in lines])
    middles = [
        ((b[0] + b[2]) / 2, (b[1] + b[3]) / 2) for index, (_, b) in enumerate(receipt.lines) if index not in lines
    ]
    if any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in middles):
        return []  # something else stands between the lines
    return [Piece(receipt, tuple(lines), box, answer)]


class PieceShelf:
    """The pieces of all training receipts, by field."""

    def __init__(self, receipts: list[Receipt]):
        self.of: dict[str, dict[str, list[Piece]]] = {receipt.name: {} for receipt in receipts}
        self.all: dict[str, dict[str, list[Piece]]] = {kind: defaultdict(list) for kind in FIELDS}
        for receipt in receipts:
            for kind in FIELDS:
                pieces = _pieces(receipt, kind)
                self.of[receipt.name][kind] = pieces
                for piece in pieces:
                    self.all[kind][piece.answer].append(piece)
        self.answers = {kind: sorted(pieces) for kind, pieces in self.all.items()}

    def donor(self, rng: random.Random, kind: str, host: Piece) -> Piece:
        """A piece for the host's place; every answer is as likely as any other, however many receipts give it."""
        drawn = [rng.choice(self.all[kind][rng.choice(self.answers[kind])]) for _ in range(_TRIED)]
        return min(drawn, key=lambda piece: abs(np.log(piece.proportion / host.proportion)))


def _paper(pixels: np.ndarray) -> float:
    return float(np.percentile(pixels, 75)) if pixels.size else 255.0


def _paste(canvas: np.ndarray, host: Piece, donor: Piece) -> list[tuple[str, Box]]:
    """Paint over the host's box and paste the donor's picture into it; returns the pasted lines."""
    left, top, right, bottom = (round(edge) for edge in host.box)
    left, top = max(0, left - 1), max(0, top - 1)
    right, bottom = min(canvas.shape[1], right + 1), min(canvas.shape[0], bottom + 1)
    taken = donor.box
    crop = donor.receipt.image.crop((round(taken[0]), round(taken[1]), round(taken[2]), round(taken[3])))
    scale = min((right - left) / crop.width, (bottom - top) / crop.height)
    wide, tall = max(1, int(crop.width * scale)), max(1, int(crop.height * scale))
    pasted = np.asarray(crop.resize((wide, tall)), np.float32)
    paper = _paper(canvas[top:bottom, left:right])
    canvas[top:bottom, left:right] = paper
    x, y = left + (right - left - wide) // 2, top + (bottom - top - tall) // 2
    canvas[y : y + tall, x : x + wide] = np.clip(pasted * (paper / max(1.0, _paper(pasted))), 0, 255)
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


def transplanted(
    rng: random.Random,
    receipt: Receipt,
    shelf: PieceShelf,
    chance: float = 0.5,
    kept: frozenset[str] = frozenset(),
) -> Receipt:
    """`receipt` with each field, by `chance`, taken from another receipt; those that are `kept` stay."""
    canvas, fields, lines = None, dict(receipt.fields), list(receipt.lines)
    added: list[tuple[str, Box]] = []
    gone: set[int] = set()
    for kind in FIELDS:
        hosts = shelf.of[receipt.name][kind]
        if (
            not hosts
            or kind in kept
            or rng.random() > chance
            or any(index in gone for host in hosts for index in host.lines)
        ):
            continue
        if canvas is None:
            canvas = np.array(receipt.image)
        donor = shelf.donor(rng, kind, hosts[0])
        for host in hosts:
            added += _paste(canvas, host, donor)
            gone |= set(host.lines)
        fields[kind] = donor.answer
    if canvas is None:
        return receipt
    others = tuple(line for index, line in enumerate(lines) if index not in gone)
    return replace(receipt, image=Image.fromarray(canvas), fields=fields, lines=(*added, *others))
