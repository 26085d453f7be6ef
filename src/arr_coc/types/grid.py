"""Cells: what a model's visual tokens cover, numbered once and for all on the full grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

WHOLE = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Grid:
    """`t` frames of `h` x `w` cells, numbered frame by frame, row by row; one cell is one visual token.

    `area` is the part of the picture that the grid covers, as shares (left, top, right, bottom).

    >>> Grid(1, 2, 3).thw(torch.tensor([0, 5])).tolist()
    [[0, 0, 0], [0, 1, 2]]
    """

    t: int
    h: int
    w: int
    area: tuple[float, float, float, float] = WHOLE

    @property
    def n(self) -> int:
        return self.t * self.h * self.w

    @property
    def views(self) -> tuple[Grid, ...]:
        return (self,)

    def thw(self, cells: torch.Tensor) -> torch.Tensor:
        """Frame, row and column of each cell: `[K]` to `[K, 3]`."""
        frame = self.h * self.w
        return torch.stack([cells // frame, cells % frame // self.w, cells % self.w], dim=-1)

    def boxes(self, cells: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Pixel boxes `[K, 4]` (left, top, right, bottom) on a picture of `size` (width, height)."""
        left, top, right, bottom = self.area
        wide, high = (right - left) * size[0] / self.w, (bottom - top) * size[1] / self.h
        _, row, column = self.thw(cells).double().unbind(-1)
        x, y = left * size[0] + column * wide, top * size[1] + row * high
        return torch.stack([x, y, x + wide, y + high], dim=-1).float()

    def __str__(self) -> str:
        return f"{self.t} x {self.h} x {self.w}"


@dataclass(frozen=True)
class Mosaic:
    """Several grids over one picture (tiles, an overview), their cells numbered one grid after another."""

    views: tuple[Grid, ...]

    @cached_property
    def n(self) -> int:
        return sum(view.n for view in self.views)

    def thw(self, cells: torch.Tensor) -> torch.Tensor:
        """View, and row and column inside it, of each cell: `[K]` to `[K, 3]`."""
        return self._by_view(
            cells,
            lambda number, view, inside: torch.cat(
                [torch.full_like(inside[:, None], number), view.thw(inside)[:, 1:]], dim=-1
            ),
            3,
            torch.long,
        )

    def boxes(self, cells: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Pixel boxes `[K, 4]` (left, top, right, bottom) on a picture of `size` (width, height)."""
        return self._by_view(cells, lambda number, view, inside: view.boxes(inside, size), 4, torch.float32)

    def _by_view(
        self,
        cells: torch.Tensor,
        rule: Callable[[int, Grid, torch.Tensor], torch.Tensor],
        width: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        out = torch.zeros(len(cells), width, dtype=dtype)
        start = 0
        for number, view in enumerate(self.views):
            here = (cells >= start) & (cells < start + view.n)
            out[here] = rule(number, view, cells[here] - start)
            start += view.n
        return out

    def __str__(self) -> str:
        return " + ".join(str(view) for view in self.views)


Cells = Grid | Mosaic
