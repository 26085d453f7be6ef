"""Cells: the parts of an image that a model's visual tokens cover, numbered on the full grid.

One cell is one visual token. Also here: where an answer is (evidence boxes), and boxes of an even grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from arr_coc.errors import ArrCocError, whole_number

WHOLE = (0.0, 0.0, 1.0, 1.0)
MAX_CELLS = 1 << 24  # of an even grid: more than one per pixel of a 16-megapixel image

Box = Sequence[float]  # x0, y0, x1, y1 in pixels; for a video, an optional fifth number is the frame, from 0
Evidence = Sequence[Sequence[Box]]  # groups: all boxes of a group are needed, any one group suffices
Placed = tuple[tuple[float, float, float, float], int]  # a box, and its time step on the grid


@dataclass(frozen=True)
class Grid:
    """`t` time steps of `h` x `w` cells, numbered step by step, row by row.

    `area` is the part of the image that the grid covers, as fractions (left, top, right, bottom).

    >>> Grid(1, 2, 3).thw(torch.tensor([0, 5])).tolist()
    [[0, 0, 0], [0, 1, 2]]
    """

    t: int
    h: int
    w: int
    area: tuple[float, float, float, float] = WHOLE

    @cached_property
    def n(self) -> int:
        return self.t * self.h * self.w

    @cached_property
    def views(self) -> tuple[Grid, ...]:
        return (self,)

    def thw(self, cells: torch.Tensor) -> torch.Tensor:
        """Time step, row and column of each cell: `[K]` to `[K, 3]`."""
        frame = self.h * self.w
        return torch.stack([cells // frame, cells % frame // self.w, cells % self.w], dim=-1)

    def boxes(self, cells: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Pixel boxes `[K, 4]` (left, top, right, bottom) on an image of `size` (width, height)."""
        left, top, right, bottom = self.area
        wide, high = (right - left) * size[0] / self.w, (bottom - top) * size[1] / self.h
        _, row, column = self.thw(cells).double().unbind(-1)
        x, y = left * size[0] + column * wide, top * size[1] + row * high
        return torch.stack([x, y, x + wide, y + high], dim=-1).float()

    def __str__(self) -> str:
        return f"{self.t} x {self.h} x {self.w}"


@dataclass(frozen=True)
class Mosaic:
    """Several grids over one image (tiles, an overview). Cells are numbered one grid after another."""

    views: tuple[Grid, ...]

    @cached_property
    def n(self) -> int:
        return sum(view.n for view in self.views)

    def thw(self, cells: torch.Tensor) -> torch.Tensor:
        """View, and row and column inside it, of each cell: `[K]` to `[K, 3]`."""

        def place(number: int, view: Grid, inside: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.full_like(inside[:, None], number), view.thw(inside)[:, 1:]], dim=-1)

        return self._by_view(cells, place, 3, torch.long)

    def boxes(self, cells: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Pixel boxes `[K, 4]` (left, top, right, bottom) on an image of `size` (width, height)."""
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


def split_views(
    grid: Cells, values: torch.Tensor, frame: int = 0
) -> list[tuple[tuple[float, float, float, float], torch.Tensor]]:
    """Values `[N]` of a grid's cells at one time step, as (area, `[h, w]`) for each view."""
    parts = values.split([one.n for one in grid.views])  # type: ignore[no-untyped-call]
    return [(one.area, some.view(one.t, one.h, one.w)[frame]) for one, some in zip(grid.views, parts, strict=True)]


def split_cells(views: Sequence[Grid], cells: torch.Tensor) -> list[torch.Tensor]:
    """Sorted cells of several grids, numbered one grid after another, as cells of each grid."""
    if len(views) == 1:
        return [cells]
    starts = torch.tensor([0, *(view.n for view in views)]).cumsum(0)
    ends = torch.searchsorted(cells, starts).tolist()
    return [cells[ends[i] : ends[i + 1]] - starts[i] for i in range(len(views))]


def check_grid(height: int, width: int) -> tuple[int, int]:
    """(rows, columns) as plain ints, each at least 1."""
    rows, columns = (side if type(side) is int else whole_number(side) or 0 for side in (height, width))
    if min(rows, columns) < 1:
        raise ArrCocError(f"expected a grid of at least 1x1 cells in whole numbers, got {height!r} x {width!r}")
    if rows * columns > MAX_CELLS:
        raise ArrCocError(
            f"expected a grid of at most {MAX_CELLS:,} cells, got {rows} x {columns} = {rows * columns:,}"
        )
    return rows, columns


def cell_boxes(grid: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
    """Boxes (x0, y0, x1, y1) of an even grid on an image of `size` (height, width): float64 `[h*w, 4]`, row by row."""
    (rows, columns), (height, width) = grid, size
    # One rounding per border: neighbours share it to the last bit, and the outer borders are exactly 0 and the size.
    y = torch.arange(rows + 1, dtype=torch.float64) * height / rows
    x = torch.arange(columns + 1, dtype=torch.float64) * width / columns
    top, left = torch.meshgrid(y[:-1], x[:-1], indexing="ij")
    bottom, right = torch.meshgrid(y[1:], x[1:], indexing="ij")
    return torch.stack([left, top, right, bottom], dim=-1).reshape(-1, 4)


def by_moment(evidence: Evidence, grid: Cells, frames: int = 1) -> list[list[Placed]]:
    """Evidence groups with each box at its time step of the grid. A step may hold several of a video's `frames`.

    A box without a frame number holds at every step, and any step suffices: its group becomes one group per step.

    >>> by_moment([[(0, 0, 8, 8, 3)], [(4, 4, 9, 9)]], Grid(2, 1, 1), frames=4)
    [[((0, 0, 8, 8), 1)], [((4, 4, 9, 9), 0)], [((4, 4, 9, 9), 1)]]
    """
    steps = grid.t if isinstance(grid, Grid) else 1
    per_step = -(-frames // steps)
    found = []
    for group in evidence:
        placed: list[Placed] = [(_sides(box), min(int(box[4]) // per_step, steps - 1)) for box in group if len(box) > 4]
        always = [_sides(box) for box in group if len(box) == 4]
        for step in range(steps) if always else (0,):
            found.append([*placed, *((box, step) for box in always)])
    return found


def moments_of(grid: Cells) -> torch.Tensor:
    """The time step `[N]` of each cell; 0 everywhere on a still image, tiles and overviews included."""
    cells = torch.arange(grid.n)
    return cells // (grid.h * grid.w) if isinstance(grid, Grid) else torch.zeros_like(cells)


def _sides(box: Box) -> tuple[float, float, float, float]:
    return box[0], box[1], box[2], box[3]
