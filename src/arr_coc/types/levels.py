"""`Levels`: cells of different sizes over one image, and their positions in the coordinates of one common grid.

A cell of level l has 2**l cells of level 0 along a side, and four cells of level l - 1 inside. Level 0 may cover a part of the
image only: the page, where detail matters. The other levels cover all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from arr_coc.types.grid import Grid, Mosaic


@dataclass(frozen=True)
class Levels(Mosaic):
    """A `Mosaic` of nested grids, the finest first. All lengths here are cells of level 0.

    `height`, `width`: of the image, its last cells cut. `top`, `left`: where level 0 starts, on a border of the coarsest cells.
    `step`: how far two neighbours of level 0 are apart in the language model's positions: 1, or less where that would leave
    the range that models know.

    >>> Levels.make(6, 8, (0, 0, 6, 8), 2, 1.0)
    Levels(1 x 6 x 8 + 1 x 3 x 4 + 1 x 2 x 2)
    """

    height: int = 0
    width: int = 0
    top: int = 0
    left: int = 0
    step: float = 1.0

    @classmethod
    def make(cls, height: int, width: int, page: tuple[int, int, int, int], coarser: int, step: float) -> Levels:
        """An image of `height` x `width` finest cells; `page`: top, left, height and width of what level 0 covers."""
        top, left, high, wide = page
        area = (left / width, top / height, (left + wide) / width, (top + high) / height)
        grids = [Grid(1, high, wide, area)]
        for level in range(1, coarser + 1):
            rows, columns = -(-height // 2**level), -(-width // 2**level)
            grids.append(Grid(1, rows, columns, (0.0, 0.0, columns * 2**level / width, rows * 2**level / height)))
        return cls(tuple(grids), height, width, top, left, step)

    @property
    def coarser(self) -> int:
        """The number of levels beyond the finest."""
        return len(self.views) - 1

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of each level's first cell, and the number of all cells."""
        found = [0]
        for view in self.views:
            found.append(found[-1] + view.n)
        return tuple(found)

    def level(self, cells: torch.Tensor) -> torch.Tensor:
        """The level of each cell: `[K]`."""
        return torch.bucketize(cells, torch.tensor(self.starts[1:-1]), right=True)

    def spans(self, cells: torch.Tensor) -> torch.Tensor:
        """Top, left, bottom and right of each cell `[K, 4]`."""
        found = self.thw(cells)
        side = 2 ** found[:, 0]
        finest = found[:, 0] == 0
        rows = found[:, 1] * side + finest * self.top
        columns = found[:, 2] * side + finest * self.left
        return torch.stack([rows, columns, rows + side, columns + side], -1)

    def positions(self, cells: torch.Tensor) -> torch.Tensor:
        """Row and column `[K, 2]` of each cell's centre for the language model.

        Inside the rows (and the columns) of level 0, its cells are `step` apart. Outside, the coarsest cells are 1 apart: what
        is shown only roughly takes little of the range. Whole numbers where all of them are.
        """
        top, left, bottom, right = self.spans(cells).double().unbind(-1)
        page = self.views[0]
        rows = (self._place(top, self.top, page.h) + self._place(bottom, self.top, page.h)) / 2
        columns = (self._place(left, self.left, page.w) + self._place(right, self.left, page.w)) / 2
        found = torch.stack([rows, columns], -1) - 0.5
        return found.long() if bool((found == found.round()).all()) else found.float()

    @property
    def extent(self) -> tuple[int, int]:
        """How many positions the image takes: rows and columns. Text after it starts at the larger one."""
        page = self.views[0]
        ends = (self._place(torch.tensor([float(end)]).double(), start, length) for end, start, length in (
            (self.height, self.top, page.h), (self.width, self.left, page.w)
        ))  # fmt: skip
        rows, columns = (max(1, math.ceil(float(end))) for end in ends)
        return rows, columns

    def _place(self, at: torch.Tensor, start: int, length: int) -> torch.Tensor:
        """Where a border between cells lies in positions."""
        outside = 1 / 2**self.coarser
        inside = (at - start).clamp(0, length)
        return (at - inside) * outside + inside * self.step

    def to_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("height", "width", "top", "left", "step")}

    def __repr__(self) -> str:
        return f"Levels({self})"
