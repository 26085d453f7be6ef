"""Encoders that take images of whole cells: one pass over a resized image, or overlapping windows at full size.

- The aspect ratio is kept: sides are rounded to whole cells, never squashed to a square.
- Windows start at whole cells, so features need no resampling: a cell is the weighted mean of its windows.
- Weights fall towards a window's edges, where the network sees least context, and sum to 1 in every cell.
- If one window covers the image, native mode is the same as fast mode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.embedding.encoder import Encoder, Mode, l2_normalize

MAX_SIDE = 4096  # px; native mode scales larger images down to this, because time and memory grow with the area
EDGE_WEIGHT = 0.05  # at a window's edge; the centre has 1


class WindowedEncoder(Encoder):
    """An encoder with both modes. A subclass implements `encode_batch` instead of `encode`."""

    cell: int  # px of one side of a cell
    side: int  # px of one side of the square that the network is used at
    overlap: float = 0.5  # minimum share of a window that its neighbour covers too
    cells_per_batch: int = 16_384  # about 1 GB in a large vision transformer

    @abstractmethod
    def encode_batch(self, images: torch.Tensor) -> torch.Tensor:
        """Images `[B, 3, h * cell, w * cell]` in [0, 1] to features `[B, D, h, w]`, not normalised."""

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        layout = self.plan(pixels) if mode == "native" else None
        height, width = pixels.shape[1:]
        rows, columns = layout.grid if layout else fit_grid(height, width, (self.side // self.cell) ** 2)
        image = resize(pixels, (rows * self.cell, columns * self.cell))
        return blend(layout, self.encode_windows(image, layout)) if layout else self.encode_batch(image[None])[0]

    def plan(self, pixels: torch.Tensor) -> WindowLayout | None:
        """The windows of native mode on an image `[3, H, W]`; None if one pass covers it."""
        height, width = pixels.shape[1:]
        if max(height, width) <= self.side:
            return None
        cells = self.side // self.cell
        layout = plan_windows(native_grid(height, width, self.cell), (cells, cells), self.overlap)
        return layout if len(layout) > 1 else None

    def encode_windows(
        self, pixels: torch.Tensor, layout: WindowLayout, numbers: Sequence[int] | None = None
    ) -> Iterator[torch.Tensor]:
        """Features `[D, rows, columns]` of each window of an image `[3, rows * cell, columns * cell]`, or of `numbers`.

        Windows are batched, with at most `cells_per_batch` cells at a time.
        """
        rows, columns = layout.window
        height, width = rows * self.cell, columns * self.cell
        corners = [(top * self.cell, left * self.cell) for top, left in layout]
        if numbers is not None:
            corners = [corners[number] for number in numbers]
        size = max(1, self.cells_per_batch // (rows * columns))
        for start in range(0, len(corners), size):
            batch = [pixels[:, y : y + height, x : x + width] for y, x in corners[start : start + size]]
            yield from l2_normalize(self.encode_batch(torch.stack(batch)), dim=1)


@dataclass(frozen=True)
class WindowLayout:
    """Windows of `window` (rows, columns) on a grid of `grid` (rows, columns), all in cells."""

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
        """The weight of each window in each of its cells: `[windows, rows, columns]`; they sum to 1 in every cell."""
        rows, columns = self.window
        weight = _raised_cosine(rows)[:, None] * _raised_cosine(columns)[None]
        total = torch.zeros(self.grid, dtype=torch.float64)
        for top, left in self:
            total[top : top + rows, left : left + columns] += weight
        return torch.stack([weight / total[top : top + rows, left : left + columns] for top, left in self]).float()


def plan_windows(grid: tuple[int, int], window: tuple[int, int], overlap: float = 0.5) -> WindowLayout:
    """Windows that cover the grid; neighbours share at least `overlap` of their side."""
    rows, columns = min(window[0], grid[0]), min(window[1], grid[1])
    return WindowLayout(grid, (rows, columns), _starts(grid[0], rows, overlap), _starts(grid[1], columns, overlap))


def blend(layout: WindowLayout, windows: Iterable[torch.Tensor]) -> torch.Tensor:
    """The weighted mean of all windows' features, `[D, rows, columns]` each, over the grid: `[D, rows, columns]`."""
    rows, columns = layout.window
    total: torch.Tensor | None = None
    for (top, left), features, weight in zip(layout, windows, layout.weights(), strict=True):
        if total is None:
            total = features.new_zeros(len(features), *layout.grid)
        total[:, top : top + rows, left : left + columns] += features * weight.to(features.device)
    assert total is not None
    return total


def fit_grid(height: int, width: int, cells: int) -> tuple[int, int]:
    """(rows, columns) with the image's aspect ratio and about `cells` cells; neither side has more than `cells`.

    >>> fit_grid(480, 640, 400), fit_grid(1, 10_000, 400)
    ((17, 23), (1, 400))
    """
    scale = (cells / (height * width)) ** 0.5
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    return min(rows, cells), min(columns, cells)


def native_grid(height: int, width: int, cell: int) -> tuple[int, int]:
    """(rows, columns) of cells of `cell` px at the image's own size, or at MAX_SIDE px if it is larger."""
    scale = min(1.0, MAX_SIDE / max(height, width)) / cell
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """An image `[3, H, W]` at another size (height, width): bicubic, antialiased, in [0, 1]."""
    if tuple(pixels.shape[1:]) == size:
        return pixels
    return F.interpolate(pixels[None], size=size, mode="bicubic", antialias=True, align_corners=False)[0].clamp(0, 1)


def _raised_cosine(side: int) -> torch.Tensor:
    """`[side]`: 1 at the centre, EDGE_WEIGHT at the edges."""
    position = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    return EDGE_WEIGHT + (1 - EDGE_WEIGHT) * (0.5 - 0.5 * torch.cos(2 * torch.pi * position))


def _starts(length: int, window: int, overlap: float) -> tuple[int, ...]:
    """Evenly spaced starts, rounded down to cells."""
    free = length - window
    if free == 0:
        return (0,)
    steps = -(-free // max(1, int(window * (1 - overlap))))
    return tuple(free * step // steps for step in range(steps + 1))
