"""Keep the cells that hold the answer: what a selector could reach at best."""

from __future__ import annotations

from dataclasses import replace

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.pixels import textures
from arr_coc.selectors.ranking import best
from arr_coc.selectors.uniform import Uniform
from arr_coc.types.grid import Evidence, by_moment, moments_of


class Oracle(Selector):
    """The evidence first, evenly spaced cells after it: an upper bound, not a method.

    `evidence` is a list of groups of boxes (x0, y0, x1, y1) in the picture's pixels: within a group all boxes are needed,
    any one group suffices. A fifth number is the frame of a video of `frames` frames; a box without one is there at every
    moment, of which any suffices. The group is taken of which most is among the candidates, then whose cells are fewest;
    under a budget below that, its most covered cells. Needs: the evidence, and the picture's size (width, height) where the
    picture itself is not at hand.
    """

    name = "oracle"

    def __init__(
        self, evidence: Evidence | None = None, size: tuple[int, int] | None = None, frames: int | None = None
    ) -> None:
        if not evidence:
            raise SelectorError("selector 'oracle' needs to be told where the answer stands: pass Oracle(evidence)")
        for group in evidence:
            if not group or any(len(box) not in (4, 5) or not (box[0] <= box[2] and box[1] <= box[3]) for box in group):
                raise SelectorError(f"expected evidence as groups of boxes [x0, y0, x1, y1], got {group!r}")
        self.evidence, self.size, self.frames = evidence, size, frames

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """How much of each candidate is evidence, 0 to 1: `[M]`."""
        return self._covered(selection)[selection.candidates]

    def select(self, selection: SelectionInput) -> Choice:
        covered, count = self._covered(selection), selection.count
        here = covered[selection.candidates]
        evidence = selection.candidates[best(here, min(count, int((here > 0).sum())))]
        rest = selection.candidates[~torch.isin(selection.candidates, evidence)]
        even = Uniform().select(replace(selection, candidates=rest, k=count - len(evidence)))
        keep = torch.cat([evidence, even]).sort().values
        return Choice(keep, relevance=covered, strategy=f"{len(evidence)} cells of evidence, {len(even)} evenly spaced")

    def _covered(self, selection: SelectionInput) -> torch.Tensor:
        """The share of each cell that the chosen group's boxes cover: `[N]`."""
        size = self.size or textures(selection)[0].original_size[::-1]
        frames = self.frames or (len(textures(selection)) if selection.kind == "video" else 1)
        boxes, moments = selection.grid.boxes(torch.arange(selection.grid.n), size).double(), moments_of(selection.grid)
        shares = []
        for group in by_moment(self.evidence, selection.grid, frames):
            there, when = (
                torch.tensor([box for box, _ in group]).double(),
                torch.tensor([moment for _, moment in group]),
            )
            shares.append(_overlap(boxes, there, moments[:, None] == when))

        def worth(share: torch.Tensor) -> tuple[float, int]:
            cells = int((share > 0).sum())
            return -int((share[selection.candidates] > 0).sum()) / max(cells, 1), cells

        return min(shares, key=worth).float()


def _overlap(cells: torch.Tensor, boxes: torch.Tensor, together: torch.Tensor) -> torch.Tensor:
    """The share of each cell `[N, 4]` inside any of the boxes `[B, 4]` of its moment `[N, B]`, at most 1: `[N]`."""
    low = torch.maximum(cells[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(cells[:, None, 2:], boxes[None, :, 2:])
    area = (cells[:, 2:] - cells[:, :2]).prod(1)
    return (((high - low).clamp(min=0).prod(-1) * together).sum(1) / area).clamp(max=1)
