"""Controls: selectors that a method has to beat. They use neither the content of the image nor the question."""

from __future__ import annotations

import math

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, Downscale, SelectionInput, Selector
from arr_coc.selectors.scoring import choose_top_k
from arr_coc.types.budget import divide
from arr_coc.types.grid import Cells, Grid


class All(Selector):
    """Keep everything: the dense model. Needs: nothing."""

    name = "all"

    def select(self, selection: SelectionInput) -> torch.Tensor:
        """Every candidate, or the first `k` where the budget is smaller."""
        return selection.candidates if selection.k is None else selection.candidates[: selection.count]

    before_encoding = select


class Random(Selector):
    """Random cells: the control that every selector has to beat. Needs: the seed."""

    name = "random"
    sets_budget = False

    def select(self, selection: SelectionInput) -> torch.Tensor:
        """`k` candidates, the same for the same seed on every machine."""
        generator = torch.Generator().manual_seed(selection.seed)
        order = torch.randperm(len(selection.candidates), generator=generator)
        return selection.candidates[order[: selection.count]].sort().values

    before_encoding = select


class Uniform(Selector):
    """Evenly spaced cells. It is also the fallback where nothing is known. Needs: the grid."""

    name = "uniform"
    sets_budget = False

    def select(self, selection: SelectionInput) -> torch.Tensor:
        """Exactly `k` cells, evenly spaced over the grid in both directions; over the candidates if only some are encoded."""
        count = selection.count
        if len(selection.candidates) < selection.grid.n:
            return selection.candidates[evenly_spaced(len(selection.candidates), count)]
        sizes = [view.n for view in selection.grid.views]
        kept, start = [], 0
        for view, size, share in zip(selection.grid.views, sizes, divide(count, sizes), strict=True):
            kept.append(even_cells(view, share) + start)
            start += size
        return torch.cat(kept)

    before_encoding = select


class Centre(Selector):
    """The cells nearest to the image's centre: the baseline of the centre bias (Tatler, "The central fixation bias in scene
    viewing", 2007). Needs: the grid.
    """

    name = "centre"
    sets_budget = False

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """1 at the centre, 0 in the corners: `[M]`."""
        return 1 - distance_from_centre(selection.grid, selection.candidates)

    def select(self, selection: SelectionInput) -> Choice:
        """The `k` candidates whose midpoints are nearest, whichever tile, overview or frame they belong to."""
        return choose_top_k(selection, self.relevance(selection), "the cells nearest the centre")

    before_encoding = select


class Resize(Selector):
    """Downscale the image until it has about `k` cells, and keep them all.

    The baseline of "Are We Using the Right Benchmark: An Evaluation Framework for Visual Token Compression Methods"
    (2025), where it beats many selection methods. Needs: the image itself.
    """

    name = "resize"
    sets_budget = False
    early = True
    kinds = ("image",)

    def before_encoding(self, selection: SelectionInput) -> Downscale | Choice:
        if selection.kind != "image":
            raise SelectorError(f"selector 'resize' makes images smaller, not videos, got {selection.kind}")
        return Downscale(selection.count) if selection.count else Choice(selection.candidates[:0])


def even_cells(grid: Grid, count: int) -> torch.Tensor:
    """`count` cells of `grid`, as evenly spaced as whole cells allow, sorted.

    >>> even_cells(Grid(1, 4, 4), 4).tolist()
    [5, 7, 13, 15]
    """
    frame = grid.h * grid.w
    shares = divide(count, [frame] * grid.t)
    cells = [_even_frame(grid, share) + step * frame for step, share in enumerate(shares) if share]
    return torch.cat(cells) if cells else torch.zeros(0, dtype=torch.long)


def _even_frame(grid: Grid, count: int) -> torch.Tensor:
    """`count` cells of one frame. Rows are as far apart as the cells in a row: r rows, with r / h close to count / (r w)."""
    rows = min(grid.h, max(math.ceil(count / grid.w), round(math.sqrt(count * grid.h / grid.w))))
    shares = divide(count, [grid.w] * rows)
    places = zip(evenly_spaced(grid.h, rows).tolist(), shares, strict=True)
    return torch.cat([evenly_spaced(grid.w, share) + row * grid.w for row, share in places])


def evenly_spaced(length: int, count: int) -> torch.Tensor:
    """`count` of `length` places: the midpoints of `count` equal parts."""
    return ((torch.arange(count, dtype=torch.float64) + 0.5) * length / max(count, 1)).long()


def distance_from_centre(grid: Cells, cells: torch.Tensor) -> torch.Tensor:
    """Distance of cells `[M]` from the image's centre, in half diagonals: `[M]`.

    The unit is a cell of the finest view, which is square or nearly so. No pixels are needed.
    """
    width, height = max(
        ((view.w / (view.area[2] - view.area[0]), view.h / (view.area[3] - view.area[1])) for view in grid.views),
        key=lambda size: size[0] * size[1],
    )
    # 1,000 units per cell, so that boxes are whole numbers or close to it
    boxes = grid.boxes(cells, (round(width * 1000), round(height * 1000))).double() / 1000
    across, down = boxes[:, 0::2].mean(1) - width / 2, boxes[:, 1::2].mean(1) - height / 2
    # Rounded: the borders of tiles carry rounding errors that would break ties between mirrored cells.
    return (2 * (across.square() + down.square()).sqrt() / (width**2 + height**2) ** 0.5 * 1e5).round() / 1e5
