"""Oracle: the cells that contain the answer, as an upper bound for selectors."""

from __future__ import annotations

from dataclasses import replace

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.controls import Uniform
from arr_coc.selectors.scoring import top_k
from arr_coc.types.grid import Evidence, by_moment, moments_of


class Oracle(Selector):
    """The evidence first, then evenly spaced cells: an upper bound, not a method.

    `evidence` is a list of groups of boxes (x0, y0, x1, y1) in the image's pixels: all boxes of a group are needed, any one
    group suffices. A fifth number is the frame of a video of `frames` frames; a box without it is valid in every frame, and
    any frame suffices. The group with the largest part among the candidates is chosen, then the one with the fewest cells.
    If the budget is smaller, its most covered cells are kept. Needs: the evidence, and `size` (width, height) where the
    image itself is not available.
    """

    name = "oracle"
    sets_budget = False

    def __init__(
        self, evidence: Evidence | None = None, size: tuple[int, int] | None = None, frames: int | None = None
    ) -> None:
        if not evidence:
            raise SelectorError("selector 'oracle' needs to know where the answer is: pass Oracle(evidence)")
        for group in evidence:
            if not group or any(len(box) not in (4, 5) or not (box[0] <= box[2] and box[1] <= box[3]) for box in group):
                raise SelectorError(f"expected evidence as groups of boxes [x0, y0, x1, y1], got {group!r}")
        self.evidence, self.size, self.frames = evidence, size, frames

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """How much of each candidate is evidence, 0 to 1: `[M]`."""
        return self._coverage(selection)[selection.candidates]

    def select(self, selection: SelectionInput) -> Choice:
        coverage, count = self._coverage(selection), selection.count
        here = coverage[selection.candidates]
        evidence = selection.candidates[top_k(here, min(count, int((here > 0).sum())))]
        rest = selection.candidates[~torch.isin(selection.candidates, evidence)]
        even = Uniform().select(replace(selection, candidates=rest, k=count - len(evidence)))
        keep = torch.cat([evidence, even]).sort().values
        strategy = f"{len(evidence)} cells of evidence, {len(even)} evenly spaced"
        return Choice(keep, relevance=coverage, strategy=strategy)

    def _coverage(self, selection: SelectionInput) -> torch.Tensor:
        """The share of each cell that the chosen group's boxes cover: `[N]`."""
        grid = selection.grid
        size = self.size or selection.textures[0].original_size[::-1]
        frames = self.frames or (len(selection.textures) if selection.kind == "video" else 1)
        cells, steps = grid.boxes(torch.arange(grid.n), size).double(), moments_of(grid)
        shares = []
        for group in by_moment(self.evidence, grid, frames):
            boxes = torch.tensor([box for box, _ in group]).double()
            same_step = steps[:, None] == torch.tensor([step for _, step in group])
            shares.append(_overlap(cells, boxes, same_step))

        def cost(share: torch.Tensor) -> tuple[float, int]:
            count = int((share > 0).sum())
            return -int((share[selection.candidates] > 0).sum()) / max(count, 1), count

        return min(shares, key=cost).float()


def _overlap(cells: torch.Tensor, boxes: torch.Tensor, same_step: torch.Tensor) -> torch.Tensor:
    """The share of each cell `[N, 4]` inside any of the boxes `[B, 4]` of its time step `[N, B]`, at most 1: `[N]`."""
    low = torch.maximum(cells[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(cells[:, None, 2:], boxes[None, :, 2:])
    area = (cells[:, 2:] - cells[:, :2]).prod(1)
    return (((high - low).clamp(min=0).prod(-1) * same_step).sum(1) / area).clamp(max=1)
