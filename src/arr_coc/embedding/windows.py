"""From pictures of any size to what a network takes: one pass over the whole, or overlapping windows in one batch.

Notable:
- a picture keeps its shape: sides are rounded to whole cells and never squashed to a square;
- windows stand on whole cells, so nothing is resampled: a cell is the weighted mean of the windows that saw it;
- weights fall smoothly towards a window's edges, where a network sees least around a cell, and sum to 1 in every cell;
- where one window covers everything, native mode is the one pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.embedding.encoder import Encoder, Mode, unit

LONGEST = 4096  # px; native mode scales longer pictures down to this, because time and memory grow with the area
FLOOR = 0.05  # the weight at a window's very edge, where the middle has 1


class Windowed(Encoder):
    """An encoder that takes pictures of whole cells: `look` says what it sees in a batch of them."""

    cell: int  # px of one side of a cell
    side: int  # px of one side of the square that the network is used at
    overlap: float = 0.5  # share of a window that its neighbour sees too, at least
    at_once: int = 16_384  # cells in one call, more go in several: about 1 GB in a large vision transformer

    @abstractmethod
    def look(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures `[B, 3, h * cell, w * cell]` in [0, 1] to features `[B, D, h, w]`, of any length."""

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        height, width = pixels.shape[1:]
        own = self.side // self.cell
        windows = self.plan(pixels) if mode == "native" else None
        if windows is not None:
            whole = resized(pixels, (windows.grid[0] * self.cell, windows.grid[1] * self.cell))
            return blended(windows, self.through(whole, windows))
        rows, columns = fitted_grid(height, width, own * own)
        return self.look(resized(pixels, (rows * self.cell, columns * self.cell))[None])[0]

    def plan(self, pixels: torch.Tensor) -> Plan | None:
        """The windows of native mode on a picture `[3, H, W]`; None where one pass sees all of it."""
        height, width = pixels.shape[1:]
        if max(height, width) <= self.side:
            return None
        own = self.side // self.cell
        windows = plan(native_grid(height, width, self.cell), (own, own), self.overlap)
        return windows if len(windows) > 1 else None

    def through(self, pixels: torch.Tensor, windows: Plan, some: Sequence[int] | None = None) -> Iterator[torch.Tensor]:
        """What each window of a picture `[3, rows * cell, columns * cell]`, or each of `some`, sees: `[D, rows, columns]`.

        All go in one call, or in as few as `at_once` cells at a time allow.
        """
        rows, columns = windows.window
        at_once = max(1, self.at_once // (rows * columns))
        corners = list(windows)
        corners = corners if some is None else [corners[number] for number in some]
        for start in range(0, len(corners), at_once):
            views = [
                pixels[
                    :,
                    top * self.cell : (top + rows) * self.cell,
                    left * self.cell : (left + columns) * self.cell,
                ]
                for top, left in corners[start : start + at_once]
            ]
            yield from unit(self.look(torch.stack(views)), dim=1)


def fitted_grid(height: int, width: int, cells: int) -> tuple[int, int]:
    """(rows, columns) in the picture's shape, about `cells` of them and, where it is very long, no more.

    >>> fitted_grid(480, 640, 400), fitted_grid(1, 10_000, 400)
    ((17, 23), (1, 400))
    """
    scale = (cells / (height * width)) ** 0.5
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    return min(rows, cells), min(columns, cells)


def native_grid(height: int, width: int, cell: int) -> tuple[int, int]:
    """(rows, columns) of cells of `cell` pixels at the picture's own size, or at LONGEST pixels where it is longer."""
    scale = min(1.0, LONGEST / max(height, width)) / cell
    return max(1, round(height * scale)), max(1, round(width * scale))


def resized(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """A picture `[3, H, W]` at another size (height, width): bicubic, smoothed where it shrinks, in [0, 1]."""
    if tuple(pixels.shape[1:]) == size:
        return pixels
    return F.interpolate(pixels[None], size=size, mode="bicubic", antialias=True, align_corners=False)[0].clamp(0, 1)


@dataclass(frozen=True)
class Plan:
    """Where windows of `window` (rows, columns) stand on a grid of `grid` (rows, columns), all in cells."""

    grid: tuple[int, int]
    window: tuple[int, int]
    tops: tuple[int, ...]
    lefts: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(top, left) of every window, row by row."""
        return ((top, left) for top in self.tops for left in self.lefts)

    def __len__(self) -> int:
        return len(self.tops) * len(self.lefts)

    def weights(self) -> torch.Tensor:
        """How much each window counts in each of its cells: `[windows, rows, columns]`; every cell's weights sum to 1."""
        rows, columns = self.window
        bump = profile(rows)[:, None] * profile(columns)[None]
        total = torch.zeros(self.grid, dtype=torch.float64)
        for top, left in self:
            total[top : top + rows, left : left + columns] += bump
        return torch.stack([bump / total[top : top + rows, left : left + columns] for top, left in self]).float()


def plan(grid: tuple[int, int], window: tuple[int, int], overlap: float = 0.5) -> Plan:
    """Windows that cover the grid, none larger than it, neighbours sharing at least `overlap` of their side."""
    rows, columns = min(window[0], grid[0]), min(window[1], grid[1])
    return Plan(grid, (rows, columns), _starts(grid[0], rows, overlap), _starts(grid[1], columns, overlap))


def profile(side: int) -> torch.Tensor:
    """A raised cosine over a window's cells `[side]`: 1 in the middle, near 0 at the edges, never 0."""
    place = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    return FLOOR + (1 - FLOOR) * (0.5 - 0.5 * torch.cos(2 * torch.pi * place))


def blended(windows: Plan, seen: Iterable[torch.Tensor]) -> torch.Tensor:
    """What all windows see, `[D, rows, columns]` each, as one weighted mean over the grid: `[D, rows, columns]`."""
    rows, columns = windows.window
    total: torch.Tensor | None = None
    for (top, left), features, share in zip(windows, seen, windows.weights(), strict=True):
        if total is None:
            total = features.new_zeros(len(features), *windows.grid)
        total[:, top : top + rows, left : left + columns] += features * share.to(features.device)
    assert total is not None
    return total


def _starts(length: int, window: int, overlap: float) -> tuple[int, ...]:
    """Evenly spread starts, rounded down to cells."""
    free = length - window
    if free == 0:
        return (0,)
    steps = -(-free // max(1, int(window * (1 - overlap))))
    return tuple(free * step // steps for step in range(steps + 1))
