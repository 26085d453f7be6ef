"""PixelPrune: encode only cells whose pixels do not follow from their neighbours (predictive coding)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import frames_by_step, relevance_map
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid

LEVELS = 255  # steps of the threshold between 0 and 1 that a budget tries


class PixelPrune(Selector):
    """Row by row, drop each cell that equals the neighbour from which it is predicted; encode and read all others.

    "PixelPrune: Pixel-Level Adaptive Visual Token Reduction via Predictive Coding" (2026). From the paper: pruning before the
    encoder; a cell is predicted by its left neighbour, or by the upper one where the upper left neighbour equals the left
    but not the upper one (the edge rule of LOCO-I); cells are equal if no pixel differs by more than `threshold` (0:
    lossless, 1: white against black); a dropped cell is replaced by its prediction in later comparisons, so that errors do
    not add up. Changed: cells are cut from the image itself, at its own resolution, not from the model's resized input;
    each frame and each tile is coded separately. The paper has no budget. Here a budget is an upper limit: if more cells
    are left, the threshold rises to the smallest of 255 steps that leaves few enough, and the cells that were predicted
    worst fill up what remains of the budget. `auto` has no limit. Needs: pixels; ignores the question.
    """

    name = "pixelprune"
    early = True
    glances = True

    def __init__(self, threshold: float = 0.0) -> None:
        if not 0 <= threshold <= 1:
            raise SelectorError(f"expected a threshold from 0 to 1, got {threshold!r}")
        self.threshold = threshold

    def before_encoding(self, selection: SelectionInput) -> Choice:
        if selection.mass is not None:
            raise SelectorError("selector 'pixelprune' has no scores to derive a mass from: give a count or a share")
        frames = [
            cell_pixels(textures, view)
            for view in selection.grid.views
            for textures in frames_by_step(selection.textures, view.t)
        ]
        limit = selection.grid.n if selection.k is None else selection.k
        errors, threshold = fit_threshold(frames, self.threshold, limit)
        count = int((errors > threshold).sum()) if threshold == self.threshold else limit
        chosen = torch.from_numpy(np.argsort(-errors, kind="stable")[: min(count, limit)].copy()).sort().values
        return Choice(
            chosen,
            relevance=relevance_map(selection, torch.from_numpy(np.minimum(errors, 1.0))),
            strategy=f"cells that differ from their prediction by more than {threshold:.3g} (PixelPrune)",
        )


def cell_pixels(textures: Sequence[TextureArray], view: Grid) -> np.ndarray:
    """The pixels of each cell of one time step of `view`: `[h, w, D]`.

    Every cell gets the same number of evenly spaced samples, at least one for each of its pixels, so that none is skipped.
    """
    parts = []
    for texture in textures:
        pixels = texture.pixels.float().cpu()  # [3, H, W]
        left, top, right, bottom = view.area
        rows = _sample_places(pixels.shape[1], view.h, top, bottom)  # [h, S]
        columns = _sample_places(pixels.shape[2], view.w, left, right)
        cut = pixels[:, rows.flatten()][:, :, columns.flatten()].view(3, *rows.shape, *columns.shape)
        parts.append(cut.permute(1, 3, 0, 2, 4).flatten(2))
    return torch.cat(parts, -1).contiguous().numpy()


def _sample_places(length: int, cells: int, start: float, stop: float) -> torch.Tensor:
    """Pixels `[cells, S]` of an axis at the midpoints of S equal parts of each cell; beyond the image its last pixel."""
    size = (stop - start) * length / cells
    samples = max(1, int(np.ceil(size - 1e-6)))
    places = start * length + (torch.arange(cells * samples, dtype=torch.float64) + 0.5) * size / samples
    return (places + 1e-9).long().clamp(0, length - 1).view(cells, samples)


def fit_threshold(frames: Sequence[np.ndarray], threshold: float, limit: int) -> tuple[np.ndarray, float]:
    """The prediction errors `[N]` and the threshold, raised as far as needed to leave at most `limit` cells."""
    errors = _coded(frames, threshold)
    if np.count_nonzero(errors > threshold) <= limit:
        return errors, threshold
    low, high = int(threshold * LEVELS), LEVELS  # too low, and high enough: only the first cell of a frame is left
    while high - low > 1:
        middle = (low + high) // 2
        errors = _coded(frames, middle / LEVELS)
        low, high = (low, middle) if np.count_nonzero(errors > middle / LEVELS) <= limit else (middle, high)
    return _coded(frames, high / LEVELS), high / LEVELS


def _coded(frames: Sequence[np.ndarray], threshold: float) -> np.ndarray:
    """The prediction errors `[N]` of all frames, one after another."""
    return np.concatenate([prediction_errors(frame, threshold).ravel() for frame in frames])


def prediction_errors(cells: np.ndarray, threshold: float) -> np.ndarray:
    """The largest difference of each of `cells` `[h, w, D]` from its prediction: `[h, w]`; infinity for the first cell.

    Cells with an error above `threshold` are kept, the others are replaced by their prediction.
    """
    height, width, _ = cells.shape
    errors = np.full((height, width), np.inf, np.float32)
    known = np.empty((height, width), object)  # each cell as it is rebuilt: itself, or the kept cell that predicted it
    known[0, 0] = cells[0, 0]

    def differ(one: np.ndarray, other: np.ndarray) -> float:
        return 0.0 if one is other else float(np.abs(one - other).max())

    for row in range(height):
        for column in range(width):
            if row == 0 and column == 0:
                continue
            predicted = known[row, column - 1] if column else known[row - 1, 0]
            if row and column:
                corner, above = known[row - 1, column - 1], known[row - 1, column]
                if differ(corner, predicted) <= threshold < differ(corner, above):
                    predicted = above
            errors[row, column] = error = differ(cells[row, column], predicted)
            known[row, column] = cells[row, column] if error > threshold else predicted
    return errors
