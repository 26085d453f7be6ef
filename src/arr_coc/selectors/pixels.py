"""What the picture shows inside each cell, on any grid: tiles and overviews see their part, frames their own moment."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arr_coc.selectors.base import Sight
from arr_coc.texture import TextureArray, TextureBatch
from arr_coc.types.grid import Grid


def textures(sight: Sight) -> list[TextureArray]:
    """The picture's texture, or one for each frame of a video as it came."""
    if sight.kind == "image" or sight.picture is None:
        return [sight.texture]
    made: TextureArray | TextureBatch = sight.picture()
    return list(made) if isinstance(made, TextureBatch) else [made]


def by_cell(sight: Sight, score: Callable[[TextureArray, Grid], torch.Tensor]) -> torch.Tensor:
    """`score(texture, view)` `[..., h, w]` for all candidates: `[..., M]`.

    A grid may hold fewer moments than the video has frames: each moment is the mean over its frames.
    """
    frames = textures(sight)
    parts = []
    for view in sight.grid.views:
        for moment in range(view.t):
            first = moment * len(frames) // view.t
            mine = frames[first : max((moment + 1) * len(frames) // view.t, first + 1)]
            parts.append(torch.stack([score(texture, view).flatten(-2) for texture in mine]).mean(0))
    return torch.cat(parts, -1).cpu()[..., sight.candidates]


def area_mean(plane: torch.Tensor, view: Grid) -> torch.Tensor:
    """The exact area average of a plane `[H, W]` over each cell of one frame of `view`: float64 `[h, w]`."""
    left, top, right, bottom = view.area
    down = _shares(plane.shape[0], view.h, top, bottom).to(plane.device)
    across = _shares(plane.shape[1], view.w, left, right).to(plane.device)
    return down @ (plane.double() @ across.T)


def _shares(pixels: int, cells: int, start: float, stop: float) -> torch.Tensor:
    """`[cells, pixels]`: each pixel's share of the part of a cell that lies on the picture; 0 for cells beside it."""
    edges = (start + torch.arange(cells + 1, dtype=torch.float64) * (stop - start) / cells) * pixels
    pixel = torch.arange(pixels, dtype=torch.float64)
    shared = (torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True).clamp(min=1e-9)
