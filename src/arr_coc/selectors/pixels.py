"""Channels and scores of cells on any grid: tiles, overviews and video frames included."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arr_coc.selectors.base import SelectionInput
from arr_coc.texture import TextureArray, TextureBatch
from arr_coc.types.grid import WHOLE, Grid


def textures(selection: SelectionInput) -> list[TextureArray]:
    """The image's texture, or one texture per frame of a video."""
    if selection.kind == "image" or selection.source is None:
        return [selection.texture]
    made = selection.source.texture(selection.watch)
    return list(made) if isinstance(made, TextureBatch) else [made]


def by_cell(selection: SelectionInput, score: Callable[[TextureArray, Grid], torch.Tensor]) -> torch.Tensor:
    """`score(texture, view)` `[..., h, w]` for all candidates: `[..., M]`.

    A grid may have fewer time steps than the video has frames: a step is the mean over its frames.
    """
    frames = textures(selection)
    parts = []
    for view in selection.grid.views:
        for moment in range(view.t):
            first = moment * len(frames) // view.t
            mine = frames[first : max((moment + 1) * len(frames) // view.t, first + 1)]
            parts.append(torch.stack([score(texture, view).flatten(-2) for texture in mine]).mean(0))
    return torch.cat(parts, -1).cpu()[..., selection.candidates]


def channel_cells(texture: TextureArray, view: Grid, names: tuple[str, ...]) -> torch.Tensor:
    """Channels pooled to the cells of one frame of `view`, each by its own rule: `[C, h, w]`, float32; on tiles the mean."""
    if view.area == WHOLE:
        return texture.grid(view.h, view.w, names).float()
    return torch.stack([area_mean(texture[name], view) for name in names]).float()  # tiles may exceed the image


def area_mean(plane: torch.Tensor, view: Grid) -> torch.Tensor:
    """The exact area average of a plane `[H, W]` over each cell of one frame of `view`: float64 `[h, w]`."""
    left, top, right, bottom = view.area
    down = _shares(plane.shape[0], view.h, top, bottom).to(plane.device)
    across = _shares(plane.shape[1], view.w, left, right).to(plane.device)
    return down @ (plane.double() @ across.T)


def _shares(pixels: int, cells: int, start: float, stop: float) -> torch.Tensor:
    """`[cells, pixels]`: each pixel's share of the part of a cell that lies on the image; 0 for cells outside."""
    edges = (start + torch.arange(cells + 1, dtype=torch.float64) * (stop - start) / cells) * pixels
    pixel = torch.arange(pixels, dtype=torch.float64)
    shared = (torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True).clamp(min=1e-9)
