"""A small encoder that knows colours: a cell is a soft choice among prototype colours, a question those that it names.

Deterministic, of 40 dimensions, and counted, so that tests can say how often it ran.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from arr_coc.embedding.encoder import Encoder, Mode

WIDTH = 40
NAMES = ("black", "red", "green", "blue", "yellow", "pink", "cyan", "white", "gray", "orange")
COLOURS = torch.tensor(
    [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (1, 1, 0),
        (1, 0, 1),
        (0, 1, 1),
        (1, 1, 1),
        (0.5, 0.5, 0.5),
        (1, 0.5, 0),
    ]
)
CELL = 16  # pixels in native mode; the fast one has 8 x 8 cells


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Colours(Encoder):
    """Counts its runs in `pictures` and `texts`."""

    name = "colours"
    width = WIDTH

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.pictures = 0
        self.texts = 0
        self.table = random(64, WIDTH, seed=seed)  # soft colours to features
        self.gap = {"picture": random(WIDTH, seed=seed + 1), "text": random(WIDTH, seed=seed + 2)}
        steps = torch.linspace(0, 1, 4)
        self.prototypes = torch.cartesian_prod(steps, steps, steps)  # [64, 3]

    @property
    def identity(self) -> str:
        return f"colours-{self.seed}"

    def encode_batch(self, batch: torch.Tensor) -> torch.Tensor:
        """Pictures `[B, 3, s, s]` in one batch: `[B, D, h, w]`."""
        return torch.stack([self.encode(one, "fast") for one in batch])

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        self.pictures += 1
        height, width = pixels.shape[1:]
        size = (8, 8) if mode == "fast" else (max(1, height // CELL), max(1, width // CELL))
        cells = F.adaptive_avg_pool2d(pixels[None], size)[0]  # [3, h, w]
        rows = self.soft(cells.flatten(1).T) @ self.table + 2 * self.gap["picture"]
        return rows.T.reshape(WIDTH, *size)

    def embed(self, questions: list[str]) -> torch.Tensor:
        self.texts += 1
        return torch.stack([self._vector(question) for question in questions])

    def soft(self, colours: torch.Tensor) -> torch.Tensor:
        """`[N, 3]` to `[N, 64]`: how near each prototype is."""
        return (-8 * torch.cdist(colours.float(), self.prototypes)).softmax(1)

    def _vector(self, question: str) -> torch.Tensor:
        named = [number for number, name in enumerate(NAMES) if name in question.lower()]
        if not named:
            seed = int.from_bytes(hashlib.sha256(question.encode()).digest()[:4], "little")
            return random(WIDTH, seed=seed) + 2 * self.gap["text"]
        return (self.soft(COLOURS[named]) @ self.table).sum(0) + 2 * self.gap["text"]


def blocks(height: int = 96, width: int = 128, seed: int = 0, side: int = 4) -> torch.Tensor:
    """A picture `[3, height, width]` of coloured blocks."""
    dice = torch.Generator().manual_seed(seed)
    coarse = COLOURS[torch.randint(len(COLOURS), (side, side), generator=dice)].permute(2, 0, 1)  # [3, side, side]
    shade = 1 - 0.2 * torch.rand(1, side, side, generator=dice)
    return F.interpolate((coarse * shade)[None], (height, width), mode="nearest")[0]


def photo(height: int = 96, width: int = 128, seed: int = 0) -> Image.Image:
    """The same as a PIL image, with a little noise, so that no two cells are quite alike."""
    noisy = blocks(height, width, seed) * 0.9 + 0.1 * torch.rand(
        3, height, width, generator=torch.Generator().manual_seed(seed)
    )
    return Image.fromarray((noisy.permute(1, 2, 0).numpy() * 255).astype(np.uint8))


def make() -> Colours:
    """For `module:name`, and for processes that must make their own."""
    return Colours()


def other() -> Colours:
    return Colours(seed=7)


class Slow(Colours):
    """Slow after ten pictures; touches the file $SLOW_READY once the first block of the other worker is done."""

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        if self.pictures >= 10:
            time.sleep(2)
            Path(os.environ["SLOW_READY"]).touch()
            time.sleep(5)
        return super().encode(pixels, mode)


def slow() -> Colours:
    return Slow()


class Dying(Colours):
    """Works in the parent process and dies in workers."""

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        if multiprocessing.parent_process() is not None:
            os._exit(9)
        return super().encode(pixels, mode)


def dying() -> Colours:
    return Dying()


class Stamped(Colours):
    """Writes a file per picture into $STAMPS, named by process, start and end."""

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        begun = time.time_ns()
        time.sleep(0.1)
        made = super().encode(pixels, mode)
        Path(os.environ["STAMPS"], f"{os.getpid()}-{begun}-{time.time_ns()}").touch()
        return made


def stamped() -> Colours:
    return Stamped()
