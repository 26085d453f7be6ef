"""Compressed features as something to read anywhere on the picture: by cell, by pyramid level, by point.

The encoder's grid is coarse, the texture's is not. Between them lie two linear steps: a map is enlarged to the texture's
pixels, and these are averaged over a cell. Both are one small matrix for each axis here, so that reading costs nothing, and
what is read equals what the texture's embedding channels show, to rounding.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from arr_coc.errors import ArrCocError, whole_number
from arr_coc.texture import sampler
from arr_coc.texture.pyramid import level_count, level_size
from arr_coc.types.grid import WHOLE, Grid
from arr_coc.types.picture import check_grid
from arr_coc.types.tensors import Numbers

KEPT = 16  # grids and levels that are remembered

Area = tuple[float, float, float, float]


class Field:
    """Features `[k, h, w]` over a picture of `size` (height, width) pixels."""

    def __init__(self, features: torch.Tensor, size: tuple[int, int]) -> None:
        self.features = features
        self.size = size
        self._kept: dict[tuple[int, int, Area], torch.Tensor] = {}

    @property
    def levels(self) -> int:
        """How many pyramid levels there are, down to 1x1."""
        return level_count(self.size)

    def own(self) -> torch.Tensor:
        """On the encoder's own cells: `[k, h * w]`."""
        return self.features.flatten(1)

    def grid(self, height: int, width: int) -> torch.Tensor:
        """The exact average over each cell of a grid: `[k, height, width]`."""
        return self._averaged(*check_grid(height, width), WHOLE)

    def view(self, view: Grid) -> torch.Tensor:
        """The average over each cell of one frame of a model's grid, which may cover a part of the picture: `[k, h, w]`."""
        return self._averaged(view.h, view.w, view.area)

    def level(self, level: int) -> torch.Tensor:
        """A pyramid level: `[k, H_l, W_l]`."""
        number = whole_number(level, least=0)
        if number is None or number >= self.levels:
            raise ArrCocError(f"expected a level from 0 to {self.levels - 1}, got {level!r}")
        return self._averaged(*level_size(self.size, number), WHOLE)

    def sample(self, xy: Numbers, level: Numbers = 0.0) -> torch.Tensor:
        """At points `[N, 2]` (x, y in [0, 1]), trilinear in (x, y, level): `[N, k]`."""
        points, levels = sampler.check_points(xy, level, self.features.device)
        top = self.levels - 1
        return sampler.trilinear(lambda number: list(self.level(number)), points, levels, top).float()

    def _averaged(self, height: int, width: int, area: Area) -> torch.Tensor:
        key = (height, width, area)
        found = self._kept.get(key)
        if found is None:
            rows, columns = self.features.shape[1:]
            larger = rows >= self.size[0] and columns >= self.size[1]  # as for any map that is supplied to a texture
            left, top, right, bottom = area
            down = _weights(rows, self.size[0], height, top, bottom, larger).to(self.features.device)
            across = _weights(columns, self.size[1], width, left, right, larger).to(self.features.device)
            found = down @ (self.features @ across.T)
            while len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[key] = found
        return found


@lru_cache(maxsize=256)
def _weights(cells: int, pixels: int, wanted: int, start: float, stop: float, larger: bool) -> torch.Tensor:
    """`[wanted, cells]`: how much each of the encoder's cells counts in each wanted cell, along one axis.

    The wanted cells divide the part from `start` to `stop` of the axis evenly; beyond the picture there is nothing.
    """
    to_pixels = _shares(cells, pixels, 0.0, 1.0) if larger else _enlarging(cells, pixels)  # [pixels, cells]
    return (_shares(pixels, wanted, start, stop) @ to_pixels).float()


def _shares(many: int, few: int, start: float, stop: float) -> torch.Tensor:
    """`[few, many]`: each of `many` equal pieces' share of that part of a cell that lies on them; 0 beside them."""
    edges = (start + torch.arange(few + 1, dtype=torch.float64) * (stop - start) / few) * many
    piece = torch.arange(many, dtype=torch.float64)
    shared = (torch.minimum(edges[1:, None], piece + 1) - torch.maximum(edges[:-1, None], piece)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True).clamp(min=1e-9)


def _enlarging(cells: int, pixels: int) -> torch.Tensor:
    """`[pixels, cells]`: linear interpolation between the cells' centres, the outermost repeated."""
    at = ((torch.arange(pixels, dtype=torch.float64) + 0.5) * cells / pixels - 0.5).clamp(0, cells - 1)
    below = at.floor().long()
    above = (below + 1).clamp(max=cells - 1)
    weights = torch.zeros(pixels, cells, dtype=torch.float64)
    rows = torch.arange(pixels)
    weights.index_put_((rows, below), 1 - (at - below), accumulate=True)
    weights.index_put_((rows, above), at - below, accumulate=True)
    return weights
