"""From a texture's cells and a question to kept cells, all on the device: nothing waits for the host.

The same as `arr_coc.realize(texture, question, grid, budget=COUNT, using=embeddings)` with the default settings (`knowing.py`,
`strategy.py`, `balancing.py`, `attending.py`), for a fixed grid and count: every decision that is made there with numbers on the host
is made here with tensors, so that a CUDA graph can hold it. One is not: where a question couples with nothing in particular,
`realize` gives every separate thing its share, and here the cells with most information are kept, as without a question. The question comes as its vector. `tests/kernels/test_deciding.py`
holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from arr_coc.errors import ArrCocError
from arr_coc.relevance.balancing import PEAKED
from arr_coc.relevance.knowing import NEAR, WRITING
from arr_coc.relevance.strategy import EVEN_EDGES, FAINT_EDGES, PALE
from arr_coc.selectors.uniform import even_cells
from arr_coc.texture.kernels.dispatch import chosen, on
from arr_coc.types.grid import Grid

MOST = 1 << 14  # cells that a kernel weighs against each other
CHANNELS = ("edges", "edges_inverted", "highpass", "distance", "saliency", "motion", "eccentricity", "text")


@dataclass(frozen=True, eq=False)
class Scores:
    """What the picture itself tells about its cells; kept for any number of questions."""

    stacked: torch.Tensor  # `[4, M]`, contiguous: information, salience, text, energy


class Deciding:
    """Decisions on `grid` (rows, columns) over a texture of `size`, `count` cells each time."""

    def __init__(
        self, size: tuple[int, int], grid: tuple[int, int], count: int, device: torch.device | str = "cuda"
    ) -> None:
        rows, columns = grid
        if not 1 <= count <= rows * columns:
            raise ArrCocError(f"expected to keep 1 to {rows * columns} cells, got {count}")
        self.count = count
        height, width = size
        side = math.sqrt(width / columns * height / rows)
        self._per_distance = math.hypot(height, width) / 2 / (NEAR * side)
        self._even = even_cells(Grid(1, rows, columns), count).to(device)

    def look(self, cells: torch.Tensor) -> Scores:
        """Cells `[8, h, w]` of `CHANNELS`, each by its rule, to scores."""
        dark, light, detail, distance, stands_out, moves, outside, text = cells.float().flatten(1)
        information = (
            0.4 * _unit(torch.maximum(dark, light))
            + 0.3 * _unit(detail)
            + 0.3 * (1 - (distance * self._per_distance).clamp(max=1))
        )
        salience = (0.6 * _unit(stands_out) + 0.4 * _unit(moves)) * (1 - 0.5 * outside)
        return Scores(torch.stack([information, salience, text, dark + light]))

    def decide(
        self, scores: Scores, features: torch.Tensor | None = None, question: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Kept cells `[count]`, sorted, and the relevance `[M]`.

        features: the picture's compressed features by cell `[k, M]`. question: its vector `[k]`; without, it is not used.
        """
        if scores.stacked.shape[1] <= MOST and chosen("deciding", scores.stacked):
            return self._by_kernel(scores, features, question)
        information, salience, text, energy = scores.stacked
        written = (text > WRITING).float()
        any_written = written.amax() > 0
        spread_out = torch.where(energy.mean() > 0, energy.std() / energy.mean().clamp(min=1e-30), 0.0)
        void = (energy.amax() < FAINT_EDGES) | ((spread_out < EVEN_EDGES) & ~any_written)
        on_writing = (salience * written).sum() / written.sum().clamp(min=1)
        pale = any_written & (on_writing < PALE * salience.mean())
        writing = written.mean()
        if features is None or question is None:
            coupling = torch.zeros_like(information)
        else:
            found = question.float() @ features.float()
            low, high = torch.aminmax(found)
            coupling = torch.where(high > low, (found - low) / (high - low), 0.0)
        exploit = (coupling.amax() > coupling.amin()).float()  # else the question couples with nothing in particular
        explore = 1 - exploit
        total = exploit * coupling + (0.1 + 0.9 * explore) * information
        total = total + 0.1 * (~pale).float() * (1 - writing) * salience
        total = total + (0.2 + 0.8 * explore) * (4 * writing).clamp(max=1) * text
        relevance = _unit(total) ** PEAKED
        order = relevance.argsort(descending=True, stable=True)[: self.count].sort().values
        return torch.where(void, self._even, order), relevance

    def _by_kernel(
        self, scores: Scores, features: torch.Tensor | None, question: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from arr_coc.texture.kernels.ranking import keep

        with on(scores.stacked.device):
            return keep(scores.stacked, self._even, features, question)


def _unit(values: torch.Tensor) -> torch.Tensor:
    """Values from 0 on, with the largest at 1; all 0 where there is nothing."""
    top = values.amax()
    return torch.where(top > 0, values / top, 0.0)
