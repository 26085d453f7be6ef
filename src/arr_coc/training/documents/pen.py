"""A pen that goes down a page line by line, with one font, one ink and one pair of margins."""

import random

from arr_coc.training.documents.fonts import Font, FontShelf, load
from arr_coc.training.documents.page import Page


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
        self.font = load(path, size)
        self.step = size * rng.uniform(1.1, 1.6)

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def rows_left(self) -> int:
        return int((self.bottom - self.y) // self.step)

    def resized(self, change: int) -> Font:
        return load(self.path, max(7, self.font.size + change))

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
        index = self.put(font.shortened(text, self.width), at, font)
        self.down(max(1.0, font.size / self.font.size))
        return index

    def rule(self) -> None:
        """A line across: drawn, or typed with dashes as tills do."""
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


def pick_pen(page: Page, rng: random.Random, shelf: FontShelf, ink: int, monospaced: float = 0.5) -> Pen:
    """A pen with a random font and random margins, for a page on which text fills most of the width."""
    size = text_size(rng, page.width)
    left, right = rng.uniform(4, page.width * 0.1), page.width - rng.uniform(4, page.width * 0.1)
    top = rng.uniform(4, max(6.0, page.height * rng.choice((0.06, 0.06, 0.35))))
    return Pen(page, rng, shelf.pick(rng, monospaced), size, left, right, top, page.height - 4, ink)
