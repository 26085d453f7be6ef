"""Reading compressed features anywhere on the image: by cell, by pyramid level, by point.

The encoder's grid is coarser than the texture. Two linear steps connect them: the map is interpolated to the texture's
pixels, and pixels are averaged over a cell. Both steps are one small matrix per axis, so reading is cheap, and the
result equals the texture's embedding channels up to rounding.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from arr_coc.errors import ArrCocError, whole_number
from arr_coc.texture import sampler
from arr_coc.texture.filters import level_count, level_size
from arr_coc.types.grid import WHOLE, Grid, check_grid
from arr_coc.types.image import Numbers

CACHED = 16  # grids and levels per field

Area = tuple[float, float, float, float]


class Field:
    """Features `[k, h, w]` over an image of `size` (height, width) pixels."""

    def __init__(self, features: torch.Tensor, size: tuple[int, int]) -> None:
        self.features = features
        self.size = size
        self._cache: dict[tuple[int, int, Area], torch.Tensor] = {}

    @property
    def levels(self) -> int:
        """The number of pyramid levels, down to 1x1."""
        return level_count(self.size)

    def cells(self) -> torch.Tensor:
        """The encoder's own cells: `[k, h * w]`."""
        return self.features.flatten(1)

    def grid(self, height: int, width: int) -> torch.Tensor:
        """The exact average over each cell of a grid: `[k, height, width]`."""
        return self._average(*check_grid(height, width), WHOLE)

    def view(self, view: Grid) -> torch.Tensor:
        """The average over each cell of one frame of a model's grid, which may cover a part of the image: `[k, h, w]`."""
        return self._average(view.h, view.w, view.area)

    def level(self, level: int) -> torch.Tensor:
        """A pyramid level: `[k, H_l, W_l]`."""
        number = whole_number(level, least=0)
        if number is None or number >= self.levels:
            raise ArrCocError(f"expected a level from 0 to {self.levels - 1}, got {level!r}")
        return self._average(*level_size(self.size, number), WHOLE)

    def sample(self, xy: Numbers, level: Numbers = 0.0) -> torch.Tensor:
        """At points `[N, 2]` (x, y in [0, 1]), trilinear in (x, y, level): `[N, k]`."""
        points, levels = sampler.check_points(xy, level, self.features.device)
        return sampler.trilinear(lambda number: list(self.level(number)), points, levels, self.levels - 1).float()

    def _average(self, height: int, width: int, area: Area) -> torch.Tensor:
        key = (height, width, area)
        found = self._cache.get(key)
        if found is None:
            rows, columns = self.features.shape[1:]
            shrink = rows >= self.size[0] and columns >= self.size[1]  # as for maps supplied to a texture
            left, top, right, bottom = area
            down = _weights(rows, self.size[0], height, top, bottom, shrink).to(self.features.device)
            across = _weights(columns, self.size[1], width, left, right, shrink).to(self.features.device)
            found = down @ (self.features @ across.T)
            while len(self._cache) >= CACHED:
                self._cache.pop(next(iter(self._cache)), None)
            self._cache[key] = found
        return found


@lru_cache(maxsize=256)
def _weights(cells: int, pixels: int, targets: int, start: float, stop: float, shrink: bool) -> torch.Tensor:
    """`[targets, cells]`: the weight of each encoder cell in each target cell, along one axis.

    The target cells divide the part from `start` to `stop` of the axis evenly; beyond the image weights are zero.
    """
    to_pixels = _area_weights(cells, pixels, 0.0, 1.0) if shrink else _linear_weights(cells, pixels)  # [pixels, cells]
    return (_area_weights(pixels, targets, start, stop) @ to_pixels).float()


def _area_weights(sources: int, targets: int, start: float, stop: float) -> torch.Tensor:
    """`[targets, sources]`: the share of each target's area that lies on each source."""
    edges = (start + torch.arange(targets + 1, dtype=torch.float64) * (stop - start) / targets) * sources
    source = torch.arange(sources, dtype=torch.float64)
    shared = (torch.minimum(edges[1:, None], source + 1) - torch.maximum(edges[:-1, None], source)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True).clamp(min=1e-9)


def _linear_weights(cells: int, pixels: int) -> torch.Tensor:
    """`[pixels, cells]`: linear interpolation between cell centres, clamped at the border."""
    at = ((torch.arange(pixels, dtype=torch.float64) + 0.5) * cells / pixels - 0.5).clamp(0, cells - 1)
    distance = (at[:, None] - torch.arange(cells, dtype=torch.float64)).abs()
    return (1 - distance).clamp(min=0)
