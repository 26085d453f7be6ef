"""Pages to draw on: fonts, a canvas that records the place of every character, and a pen that writes line by line."""

import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from arr_coc.errors import ArrCocError

Ink = int | tuple[int, int, int]
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels
UNNAMED_COLOUR = 0  # of text whose colour is never asked for
BUNDLED_FONTS = Path(__file__).parent / "fonts"
MACHINE_FONTS = 80  # at most: more would hardly add variety
_PRINTABLE = [chr(code) for code in range(32, 127)]
_MISSING = "\uffff"  # no font has it


@dataclass(frozen=True)
class Font:
    """A font at one size. `advances[code]` is the width of a character in pixels."""

    face: ImageFont.FreeTypeFont
    size: int
    advances: np.ndarray  # [128]
    ascent: float  # from the baseline up to the top of a capital
    descent: float  # from the baseline down to the lowest letter
    _widths: tuple[float, ...]  # the advances as Python floats, which sum faster

    def width(self, text: str) -> float:
        """Width of the text without kerning: much faster than the exact width."""
        return sum(map(self._widths.__getitem__, text.encode("ascii", "replace")))

    def edges(self, text: str) -> np.ndarray:
        """Left edge of every character and the right edge of the last, from the line's start: [len(text) + 1]."""
        codes = np.frombuffer(text.encode("ascii"), np.uint8)
        edges = np.concatenate([[0.0], np.cumsum(self.advances[codes])])
        # Kerning moves letters by a fraction of a pixel; spreading it over the line keeps the end exact.
        return edges * (self.face.getlength(text) / edges[-1]) if len(text) and edges[-1] > 0 else edges

    def overhang(self, character: str) -> float:
        """How far the ink of a character reaches beyond its advance, as in italics."""
        return max(0.0, self.face.getbbox(character, anchor="ls")[2] - float(self.advances[ord(character)]))

    def shorten(self, text: str, width: float) -> str:
        """Drop last words, then last letters, until `text` fits into `width` pixels."""
        while len(text) > 1 and self.width(text) > width:
            text = text.rsplit(" ", 1)[0] if " " in text else text[:-1]
        return text.strip()

    def wrap(self, text: str, width: float) -> list[str]:
        """Break `text` between words into rows of at most `width` pixels; a word that is wider is cut."""
        rows, current = [], ""
        for word in text.split():
            longer = f"{current} {word}" if current else self.shorten(word, width)
            if current and self.width(longer) > width:
                rows.append(current)
                longer = self.shorten(word, width)
            current = longer
        return [*rows, current] if current else rows


@lru_cache(maxsize=4096)
def load_font(path: str, size: int) -> Font:
    face = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
    advances = np.zeros(128)
    advances[32:127] = [face.getlength(character) for character in _PRINTABLE]
    top, bottom = face.getbbox("H", anchor="ls")[1], face.getbbox("gjpq", anchor="ls")[3]
    return Font(face, size, advances, ascent=-top, descent=bottom, _widths=tuple(advances.tolist()))


@dataclass(frozen=True)
class FontSet:
    """The fonts of a folder. `monospaced` is drawn from separately, because most receipts use one."""

    paths: tuple[str, ...]
    monospaced: tuple[str, ...]

    @classmethod
    def from_folder(cls, folder: str | Path) -> "FontSet":
        paths = tuple(sorted(str(path) for path in Path(folder).glob("*.ttf")))
        if not paths:
            raise FileNotFoundError(f"expected a folder with .ttf fonts, found none in {folder}")
        return cls.from_paths(paths)

    @classmethod
    def from_paths(cls, paths: Sequence[str]) -> "FontSet":
        """The fonts of `paths` that have all printable characters; symbol fonts are left out."""
        usable = [path for path in paths if has_letters(path)]
        if not usable:
            raise ArrCocError(f"expected a font with Latin letters and digits, got {', '.join(paths) or 'no font'}")
        faces = ((path, ImageFont.truetype(path, 20, layout_engine=ImageFont.Layout.BASIC)) for path in usable)
        mono = tuple(path for path, face in faces if face.getlength("i") == face.getlength("M"))
        return cls(tuple(usable), mono or tuple(usable))

    def pick(self, rng: random.Random, monospaced: float = 0.5) -> str:
        return rng.choice(self.monospaced if rng.random() < monospaced else self.paths)

    def heavier(self, path: str) -> str:
        """The bold font of the same family, or `path` itself where there is none."""
        family, name = Path(path).stem.split("-")[0], Path(path).name
        bold = [
            other
            for other in self.paths
            if Path(other).stem in (f"{family}-Bold", f"{family}-Medium", f"{family} Bold")
        ]
        return bold[0] if bold and "Bold" not in name else path


def has_letters(path: str) -> bool:
    """Whether a font file draws every printable character; False for symbol fonts and files that are no font."""
    try:
        face = ImageFont.truetype(path, 16, layout_engine=ImageFont.Layout.BASIC)
        missing = bytes(face.getmask(_MISSING))
        drawn = [bytes(face.getmask(character)) for character in _PRINTABLE[1:]]
    except (OSError, ValueError):
        return False
    return all(any(one) and one != missing for one in drawn)


def check_fonts(folder: Path) -> None:
    """Check that a folder has fonts to draw with."""
    try:
        FontSet.from_folder(folder)
    except FileNotFoundError as error:
        raise ArrCocError(str(error)) from None


@lru_cache(maxsize=1)
def bundled_fonts() -> FontSet:
    """The fonts that ship with the package: the same on every machine."""
    return FontSet.from_folder(BUNDLED_FONTS)


@lru_cache(maxsize=1)
def machine_fonts() -> FontSet:
    """The bundled fonts, and regular and bold fonts of the families that are installed on this machine."""
    families: dict[str, list[str]] = defaultdict(list)
    found = (
        path for folder in _font_folders() for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf")
    )
    for path in sorted(found):
        family, _, style = path.stem.partition("-")
        if style.lower() in ("", "regular", "bold", "medium") and has_letters(str(path)):
            families[family].append(str(path))
    own = bundled_fonts().paths
    new = [
        paths
        for family, paths in sorted(families.items())
        if not any(Path(one).stem.split("-")[0] == family for one in own)
    ]
    chosen = new[:: max(1, -(-sum(map(len, new)) // MACHINE_FONTS))]  # every n-th family where there are too many
    return FontSet.from_paths((*own, *(path for paths in chosen for path in paths)))


def _font_folders() -> list[Path]:
    """Where the operating system keeps its fonts."""
    home = Path.home()
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
    if sys.platform == "darwin":
        return [Path("/Library/Fonts"), Path("/System/Library/Fonts"), home / "Library" / "Fonts"]
    return [
        Path("/usr/share/fonts"),
        Path("/usr/local/share/fonts"),
        home / ".local" / "share" / "fonts",
        home / ".fonts",
    ]


@dataclass(frozen=True)
class Line:
    """One written line: its text, its box `(left, top, right, bottom)` and its characters' middles, in pixels.

    `colour` is the number of its colour on pages that ask for text by colour.
    """

    text: str
    box: Box
    middles: np.ndarray  # [len(text)]
    colour: int = UNNAMED_COLOUR

    @classmethod
    def in_box(cls, text: str, box: Box) -> "Line":
        """A line known by its box only: its characters are taken to be equally wide."""
        steps = (np.arange(len(text)) + 0.5) / max(1, len(text))
        return cls(text, box, box[0] + (box[2] - box[0]) * steps)


@dataclass(frozen=True)
class PageQuestion:
    """A question about a document. `evidence` holds the indices of the lines that its answer needs.

    `others` are further sets of lines, each of which answers it as well. `slots` are the words that were filled into the
    phrasing. `absent`: what it asks for is not in the picture. `whole`: it is about all of the picture.
    """

    kind: str
    text: str
    answer: str
    evidence: tuple[int, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()
    slots: tuple[tuple[str, str], ...] = ()
    absent: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Document:
    """A picture with its text lines and its questions.

    `capitals`: answers are in capitals, whatever case is printed. `caseless`: the printed case is unknown, because the lines
    come from labels in capitals. `summary`: what the page is, in one or two sentences.
    """

    image: np.ndarray  # [H, W] gray or [H, W, 3], uint8
    lines: tuple[Line, ...]
    questions: tuple[PageQuestion, ...]
    capitals: bool = False
    caseless: bool = False
    summary: str = ""

    def line_starts(self, cell: int) -> list[tuple[int, int]]:
        """The cell `(row, column)` in which each line begins, of `cell` x `cell` pixels; (-1, -1) for an empty line."""
        return [
            (int((line.box[1] + line.box[3]) / 2 / cell), int(line.middles[0] / cell)) if line.text else (-1, -1)
            for line in self.lines
        ]


class Page:
    """A gray or coloured canvas of `width` x `height` pixels."""

    def __init__(self, width: int, height: int, paper: Ink):
        self.width, self.height = width, height
        self.image = Image.new("L" if isinstance(paper, int) else "RGB", (width, height), paper)
        self.draw = ImageDraw.Draw(self.image)
        self.lines: list[Line] = []

    def write(
        self, x: float, top: float, text: str, font: Font, ink: Ink, align: str = "left", colour: int = UNNAMED_COLOUR
    ) -> int:
        """Write `text` with the top of its capitals at `top`; `x` is its left end, middle or right end.

        Returns the line's index in `lines`.
        """
        edges = font.edges(text)
        left = round(x - edges[-1] * {"left": 0.0, "center": 0.5, "right": 1.0}[align])
        baseline = round(top + font.ascent)
        self.draw.text((left, baseline), text, fill=ink, font=font.face, anchor="ls")
        over = font.overhang(text[-1]) if text else 0.0
        box = (left, baseline - font.ascent, left + edges[-1] + over, baseline + font.descent)
        self.lines.append(Line(text, box, left + (edges[:-1] + edges[1:]) / 2, colour))
        return len(self.lines) - 1

    def write_upwards(self, x: float, y: float, text: str, font: Font, ink: Ink) -> int:
        """Write `text` turned by a quarter, from the bottom up, with its middle at `(x, y)`. Returns the line's index."""
        long, tall = round(font.width(text)) + 2, round(font.ascent + font.descent) + 2
        mask = Image.new("L", (long, tall), 0)
        ImageDraw.Draw(mask).text((1, font.ascent + 1), text, fill=255, font=font.face, anchor="ls")
        left, top = round(x - tall / 2), round(y - long / 2)
        self.image.paste(ink, (left, top, left + tall, top + long), mask.transpose(Image.Transpose.ROTATE_90))
        self.lines.append(Line(text, (left, top, left + tall, top + long), np.full(len(text), left + tall / 2)))
        return len(self.lines) - 1

    def mark(self, box: Box) -> int:
        """Record something drawn, such as a bar or a switch, as a line without text. Returns its index in `lines`."""
        self.lines.append(Line("", box, np.zeros(0)))
        return len(self.lines) - 1

    def visible(self, index: int) -> bool:
        """Whether the whole line lies on the page."""
        left, top, right, bottom = self.lines[index].box
        return left >= 0 and top >= 0 and right <= self.width and bottom <= self.height

    def rule(self, left: float, right: float, y: float, ink: Ink, width: int = 1) -> None:
        self.draw.line((left, y, right, y), fill=ink, width=width)

    def document(self, questions: list[PageQuestion], capitals: bool = False, summary: str = "") -> Document:
        """The finished document; questions about lines that run off the page are left out."""
        seen = [q for q in questions if all(self.visible(index) for index in q.evidence)]
        return Document(np.asarray(self.image), tuple(self.lines), tuple(seen), capitals, summary=summary)


class Pen:
    """Writes on `page` between `left` and `right`, from `y` down to `bottom`."""

    def __init__(
        self,
        page: Page,
        rng: random.Random,
        path: str,
        size: int,
        left: float,
        right: float,
        y: float,
        bottom: float,
        ink: int,
    ):
        self.page, self.rng, self.path, self.ink = page, rng, path, ink
        self.left, self.right, self.y, self.bottom = left, right, y, bottom
        self.font = load_font(path, size)
        self.step = size * rng.uniform(1.1, 1.6)

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def rows_left(self) -> int:
        return int((self.bottom - self.y) // self.step)

    def resize_font(self, change: int) -> Font:
        return load_font(self.path, max(7, self.font.size + change))

    def put(self, text: str, at: str = "left", font: Font | None = None, indent: float = 0.0) -> int:
        """Write at the left margin, in the middle or at the right margin without going down a line."""
        font = font or self.font
        x = {"left": self.left + indent, "center": (self.left + self.right) / 2, "right": self.right - indent}[at]
        ink = min(255, max(0, self.ink + self.rng.randint(-12, 12)))
        return self.page.write(x, self.y, text, font, ink, at)

    def down(self, rows: float = 1.0) -> None:
        self.y += self.step * rows

    def line(self, text: str, at: str = "left", font: Font | None = None) -> int:
        """Write one line, shortened to the margins, and go down."""
        font = font or self.font
        index = self.put(font.shorten(text, self.width), at, font)
        self.down(max(1.0, font.size / self.font.size))
        return index

    def rule(self) -> None:
        """A horizontal rule: drawn, or typed with dashes."""
        if self.rng.random() < 0.5:
            self.page.rule(self.left, self.right, self.y + self.step * 0.4, self.ink)
        else:
            mark = self.rng.choice("--=*_.")
            count = int(self.width / max(1.0, self.font.width(mark)))
            self.put(mark * min(count, 60))
        self.down(self.rng.uniform(0.7, 1.0))


def text_size(rng: random.Random, width: int) -> int:
    """A letter size for a page `width` pixels wide: mostly that of scanned receipts, at times small or large."""
    size = rng.lognormvariate(2.86, 0.24)  # median 17.5 px
    return int(min(max(size, 8), 30, width / 15))


def pick_pen(page: Page, rng: random.Random, fonts: FontSet, ink: int, monospaced: float = 0.5) -> Pen:
    """A pen with a random font and random margins, for a page on which text fills most of the width."""
    size = text_size(rng, page.width)
    left, right = rng.uniform(4, page.width * 0.1), page.width - rng.uniform(4, page.width * 0.1)
    top = rng.uniform(4, max(6.0, page.height * rng.choice((0.06, 0.06, 0.35))))
    return Pen(page, rng, fonts.pick(rng, monospaced), size, left, right, top, page.height - 4, ink)
