"""A page to write on, which remembers where every character went."""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.training.documents.colours import UNNAMED
from arr_coc.training.documents.fonts import Font

Ink = int | tuple[int, int, int]


@dataclass(frozen=True)
class Line:
    """One written line: its text, its box `(left, top, right, bottom)` and its characters' middles, in pixels.

    `colour` is the number of its colour where texts are told apart by colour.
    """

    text: str
    box: tuple[float, float, float, float]
    middles: np.ndarray  # [len(text)]
    colour: int = UNNAMED

    @classmethod
    def in_box(cls, text: str, box: tuple[float, float, float, float]) -> "Line":
        """A line known by its box only: its characters are taken to be equally wide."""
        steps = (np.arange(len(text)) + 0.5) / max(1, len(text))
        return cls(text, box, box[0] + (box[2] - box[0]) * steps)


@dataclass(frozen=True)
class Question:
    """A question about a document; `evidence` are the indices of the lines that one must see to answer it."""

    kind: str
    text: str
    answer: str
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True)
class Document:
    """A picture, what is written on it and what can be asked about it.

    `capitals`: everything on it is answered in capitals, whatever case is printed. `caseless`: the printed case is not
    even known, because the lines come from labels in capitals.
    """

    image: np.ndarray  # [H, W] gray or [H, W, 3], uint8
    lines: tuple[Line, ...]
    questions: tuple[Question, ...]
    capitals: bool = False
    caseless: bool = False


class Page:
    """A gray or coloured canvas of `width` x `height` pixels."""

    def __init__(self, width: int, height: int, paper: Ink):
        self.width, self.height = width, height
        self.image = Image.new("L" if isinstance(paper, int) else "RGB", (width, height), paper)
        self.draw = ImageDraw.Draw(self.image)
        self.lines: list[Line] = []

    def write(
        self, x: float, top: float, text: str, font: Font, ink: Ink, align: str = "left", colour: int = UNNAMED
    ) -> int:
        """Write `text` with the top of its capitals at `top`; `x` is its left end, middle or right end.

        Returns the line's index in `lines`.
        """
        edges = font.edges(text)
        left = round(x - edges[-1] * {"left": 0.0, "center": 0.5, "right": 1.0}[align])
        baseline = round(top + font.ascent)
        self.draw.text((left, baseline), text, fill=ink, font=font.face, anchor="ls")
        box = (left, baseline - font.ascent, left + edges[-1], baseline + font.descent)
        self.lines.append(Line(text, box, left + (edges[:-1] + edges[1:]) / 2, colour))
        return len(self.lines) - 1

    def visible(self, index: int) -> bool:
        """Whether the whole line lies on the page."""
        left, top, right, bottom = self.lines[index].box
        return left >= 0 and top >= 0 and right <= self.width and bottom <= self.height

    def rule(self, left: float, right: float, y: float, ink: Ink, width: int = 1) -> None:
        self.draw.line((left, y, right, y), fill=ink, width=width)

    def document(self, questions: list[Question], capitals: bool = False) -> Document:
        """The finished document; questions about lines that run off the page are left out."""
        seen = [q for q in questions if all(self.visible(index) for index in q.evidence)]
        return Document(np.asarray(self.image), tuple(self.lines), tuple(seen), capitals)
