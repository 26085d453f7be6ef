"""Pictures in several tiles beside an overview (LLaVA-NeXT, LLaVA-OneVision): which cells there are, and where.

The tokens of a picture are the overview's cells, then those of the tiles as one large grid, row by row, with a token for
the line's end after each row. Line ends are no cells: they always stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from arr_coc.types.grid import Cells, Grid, Mosaic

Size = tuple[int, int]


def mosaic(size: Size, best: Size, side: int, cells: int, most: int | None) -> Mosaic:
    """Overview and tiles of a picture of `size` that was fitted into a canvas of `best` pixels (both width, height).

    `side` pixels and `cells` cells make a tile's side. With `most`, a grid of clearly more cells than that many tiles
    have is scaled down. The canvas is padded around the picture: rows and columns of padding only are cut off, but a row
    may be half padding, so the area of the large grid can go a little beyond 0 and 1. The overview is the whole picture,
    squeezed into a square. Pixels at a tile's end that fill no patch count to its last cells.
    """
    full = [pixels // side * cells for pixels in best]  # columns, rows of the canvas
    fitted = _fitted(size, best)
    cut = _padding(size, full)
    edges = []
    for canvas, count, shown, off in zip(best, full, fitted, cut, strict=True):
        pixels, before = canvas / count, (canvas - shown) // 2  # of a cell, and of the padding before the picture
        edges.append([(at * pixels - before) / shown for at in (off, count - off)])
    columns, rows = (count - 2 * off for count, off in zip(full, cut, strict=True))
    if most is not None and (ratio := math.sqrt(rows * columns / (most * cells**2))) > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    (start, end), (top, bottom) = edges
    return Mosaic((Grid(1, cells, cells), Grid(1, rows, columns, (start, top, end, bottom))))


def best_canvas(size: Size, offered: Sequence[Sequence[int]]) -> Size:
    """The canvas (width, height) that a picture of `size` is fitted into, of those `offered` as (height, width)."""
    from transformers.image_processing_utils import select_best_resolution

    height, width = select_best_resolution((size[1], size[0]), list(offered))
    return width, height


def square(size: Size, cells: int) -> Grid:
    """One view of the picture in the middle of a square: the area goes beyond the picture where the square does."""
    side = max(size)
    edges = []
    for length in size:
        before = (side - length) // 2
        edges.append((-before / length, (side - before) / length))
    (left, right), (top, bottom) = edges
    return Grid(1, cells, cells, (left, top, right, bottom))


def token_count(grid: Cells) -> int:
    """Cells and line ends; a single view, or a video, has one line end at its end."""
    return grid.n + (grid.views[1].h if isinstance(grid, Mosaic) else 1)


def cell_tokens(grid: Cells) -> torch.Tensor:
    """Which of a picture's tokens are cells: `[N]`."""
    if not isinstance(grid, Mosaic):
        return torch.arange(grid.n)
    overview, large = grid.views
    rows = torch.arange(large.h)[:, None] * (large.w + 1) + torch.arange(large.w)
    return torch.cat([torch.arange(overview.n), overview.n + rows.flatten()])


def _fitted(size: Size, best: Size) -> Size:
    """Width and height of the picture inside its canvas."""
    across, down = best[0] / size[0], best[1] / size[1]
    if across < down:
        return best[0], min(math.ceil(size[1] * across), best[1])
    return min(math.ceil(size[0] * down), best[0]), best[1]


def _padding(size: Size, full: Sequence[int]) -> Size:
    """Columns at either side, and rows at either end, that are cut off a canvas of `full` cells."""
    columns, rows = full
    if size[0] / size[1] > columns / rows:
        return 0, (rows - int(round(size[1] * (columns / size[0]), 7))) // 2
    return (columns - int(round(size[0] * (rows / size[1]), 7))) // 2, 0
