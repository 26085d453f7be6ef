"""A picture's compressed features as planes of a texture, and the samples that are read from them at its cells.

Notable:
- one plane `[h, w]` for each dimension, frame and view, on the cells' own grid: a cell's centre is a plane's pixel centre,
  so what is sampled there is what was stored, to the rounding of doubles;
- anywhere else the sample lies between those of its neighbours, as in any texture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arr_coc.errors import ChannelError
from arr_coc.texture import TextureArray, sampler
from arr_coc.texture.layout import EMBEDDING_NAMES
from arr_coc.types.grid import Cells
from arr_coc.types.tensors import Numbers


@dataclass(frozen=True, eq=False)
class EmbeddingPlanes:
    """k dimensions of a picture or video on the grid of its cells; zero where nothing was encoded."""

    grid: Cells
    planes: tuple[torch.Tensor, ...]  # [k, h, w] for each frame of each view, in the order of the cells

    @classmethod
    def of(cls, grid: Cells, cells: torch.Tensor, rows: torch.Tensor) -> EmbeddingPlanes:
        """From the features `[M, k]` of some cells `[M]`."""
        whole = rows.new_zeros(grid.n, rows.shape[1]).index_copy(0, cells.to(rows.device), rows)
        planes, start = [], 0
        for view in grid.views:
            for _ in range(view.t):
                stop = start + view.h * view.w
                planes.append(whole[start:stop].T.reshape(-1, view.h, view.w).contiguous())
                start = stop
        return cls(grid, tuple(planes))

    @property
    def dims(self) -> int:
        return len(self.planes[0])

    def at(self, cells: torch.Tensor) -> torch.Tensor:
        """Samples at the centres of cells `[M]`: float32 `[M, k]`."""
        read = self.planes[0].new_zeros(len(cells), self.dims)
        start = number = 0
        for view in self.grid.views:
            for _ in range(view.t):
                stop = start + view.h * view.w
                here = ((cells >= start) & (cells < stop)).nonzero()[:, 0]
                inside = cells[here] - start
                # In double precision a centre is a centre: a neighbour's share of it is about 1e-15.
                x, y = (inside % view.w + 0.5).double() / view.w, (inside // view.w + 0.5).double() / view.h
                if len(here):
                    read = read.index_copy(
                        0, here.to(read.device), self.sample(torch.stack([x, y], dim=-1), number).to(read)
                    )
                start, number = stop, number + 1
        return read

    def sample(self, xy: Numbers, frame: int = 0) -> torch.Tensor:
        """At points `[N, 2]` (x, y in [0, 1]) of one frame, bilinear: float32 `[N, k]`."""
        planes = self.planes[frame]
        points, levels = sampler.check_points(xy, 0.0, planes.device)
        return sampler.trilinear(lambda _: list(planes), points, levels, 0).float()

    def texture(self, frame: int = 0) -> TextureArray:
        """One frame as a texture array with the channels embedding_00, embedding_01 and so on."""
        if self.dims > len(EMBEDDING_NAMES):
            raise ChannelError(
                f"a texture array has {len(EMBEDDING_NAMES)} embedding channels, these are {self.dims}: "
                "use planes and sample as they are"
            )
        return TextureArray.from_planes(dict(zip(EMBEDDING_NAMES, self.planes[frame], strict=False)))
