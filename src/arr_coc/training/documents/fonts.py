"""Fonts from a folder, with the measures that give every character its place."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import ImageFont

_SHOWN = [chr(code) for code in range(32, 127)]


@dataclass(frozen=True)
class Font:
    """A font at one size. `advances[code]` is the width of a character in pixels."""

    face: ImageFont.FreeTypeFont
    size: int
    advances: np.ndarray  # [128]
    ascent: float  # from the baseline up to the top of a capital
    descent: float  # from the baseline down to the lowest letter
    _widths: tuple[float, ...]  # the advances again, as the plain numbers that a sum likes

    def width(self, text: str) -> float:
        """Width of the text without kerning, which is much quicker to know than the exact one."""
        return sum(map(self._widths.__getitem__, text.encode("ascii", "replace")))

    def edges(self, text: str) -> np.ndarray:
        """Left edge of every character and the right edge of the last, from the line's start: [len(text) + 1]."""
        codes = np.frombuffer(text.encode("ascii"), np.uint8)
        edges = np.concatenate([[0.0], np.cumsum(self.advances[codes])])
        # Kerning moves letters by a fraction of a pixel; spreading it over the line keeps the end exact.
        return edges * (self.face.getlength(text) / edges[-1]) if len(text) and edges[-1] > 0 else edges

    def shortened(self, text: str, width: float) -> str:
        """`text` without as many last words, then letters, as it takes to fit into `width` pixels."""
        while len(text) > 1 and self.width(text) > width:
            text = text.rsplit(" ", 1)[0] if " " in text else text[:-1]
        return text.strip()


@lru_cache(maxsize=4096)
def load(path: str, size: int) -> Font:
    face = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
    advances = np.zeros(128)
    advances[32:127] = [face.getlength(character) for character in _SHOWN]
    top, bottom = face.getbbox("H", anchor="ls")[1], face.getbbox("gjpq", anchor="ls")[3]
    return Font(face, size, advances, ascent=-top, descent=bottom, _widths=tuple(advances.tolist()))


@dataclass(frozen=True)
class FontShelf:
    """The fonts of a folder; till rolls are mostly printed with characters of one width."""

    paths: tuple[str, ...]
    monospaced: tuple[str, ...]

    @classmethod
    def open(cls, folder: str | Path) -> "FontShelf":
        paths = tuple(sorted(str(path) for path in Path(folder).glob("*.ttf")))
        if not paths:
            raise FileNotFoundError(f"expected a folder with .ttf fonts, found none in {folder}")
        return cls.of(paths)

    @classmethod
    def of(cls, paths: Sequence[str]) -> "FontShelf":
        faces = ((path, ImageFont.truetype(path, 20, layout_engine=ImageFont.Layout.BASIC)) for path in paths)
        mono = tuple(path for path, face in faces if face.getlength("i") == face.getlength("M"))
        return cls(tuple(paths), mono or tuple(paths))

    def pick(self, rng: random.Random, monospaced: float = 0.5) -> str:
        return rng.choice(self.monospaced if rng.random() < monospaced else self.paths)
