"""Scores of cells: channels pooled to cells, cosine similarity of tokens, and top-k.

Greedy selection is many short steps, each of which depends on the last. numpy on the CPU needs a fraction of torch's time
per call for them. So large products run in torch, on the tokens' own device, and the loops run over numpy arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput
from arr_coc.texture import TextureArray
from arr_coc.types.budget import count_for_mass
from arr_coc.types.grid import WHOLE, Grid

BLOCK = 216  # rows per product: small enough to skip most of the lower triangle, large enough for a fast product
MIN_ROWS, BATCH_PARTS = 32, 4  # rows that `CosineRows` computes at once: 1/4 of those needed, at least 32


def score_cells(selection: SelectionInput, score: Callable[[TextureArray, Grid], torch.Tensor]) -> torch.Tensor:
    """`score(texture, view)` `[..., h, w]` for all candidates: `[..., M]`.

    A grid may have fewer time steps than the video has frames: a step is the mean over its frames.
    """
    parts = [
        torch.stack([score(texture, view).flatten(-2) for texture in frames]).mean(0)
        for view in selection.grid.views
        for frames in frames_by_step(selection.textures, view.t)
    ]
    return torch.cat(parts, -1).cpu()[..., selection.candidates]


def frames_by_step(frames: tuple[TextureArray, ...], steps: int) -> list[tuple[TextureArray, ...]]:
    """The frames of each of a grid's time steps, at least one per step."""
    starts = [step * len(frames) // steps for step in range(steps + 1)]
    return [frames[start : max(stop, start + 1)] for start, stop in itertools.pairwise(starts)]


def pool_channels(texture: TextureArray, view: Grid, names: tuple[str, ...]) -> torch.Tensor:
    """Channels pooled to the cells of one frame of `view`, each by its own rule: `[C, h, w]`, float32; on tiles the mean."""
    if view.area == WHOLE:
        return texture.cells(view.h, view.w, names).float()
    return torch.stack([area_mean(texture[name], view) for name in names]).float()  # tiles may exceed the image


def area_mean(plane: torch.Tensor, view: Grid) -> torch.Tensor:
    """The exact area average of a plane `[H, W]` over each cell of one frame of `view`: float64 `[h, w]`."""
    left, top, right, bottom = view.area
    down = _pixel_shares(plane.shape[0], view.h, top, bottom).to(plane.device)
    across = _pixel_shares(plane.shape[1], view.w, left, right).to(plane.device)
    return down @ (plane.double() @ across.T)


def _pixel_shares(pixels: int, cells: int, start: float, stop: float) -> torch.Tensor:
    """`[cells, pixels]`: each pixel's share of the part of a cell that lies on the image; 0 for cells outside."""
    edges = (start + torch.arange(cells + 1, dtype=torch.float64) * (stop - start) / cells) * pixels
    pixel = torch.arange(pixels, dtype=torch.float64)
    shared = (torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True).clamp(min=1e-9)


def top_k(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest of `values` `[M]`, largest first; ties go to the earlier one."""
    return values.argsort(descending=True, stable=True)[:count]


def unit_range(values: torch.Tensor) -> torch.Tensor:
    """`values` `[M]` scaled to [0, 1]; all 1 where they are equal, so that none counts for less."""
    if len(values) == 0:
        return values
    low, high = torch.aminmax(values)
    return (values - low) / (high - low) if bool(high > low) else torch.ones_like(values)


def scatter_to_grid(selection: SelectionInput, values: torch.Tensor) -> torch.Tensor:
    """The candidates' values `[M]` on the whole grid, `[N]`; 0 for cells that are not candidates."""
    whole = torch.zeros(selection.grid.n)
    whole[selection.candidates] = values.detach().float().cpu()
    return whole


def relevance_map(selection: SelectionInput, values: torch.Tensor) -> torch.Tensor:
    """The candidates' values `[M]` as a relevance `[N]` in [0, 1]; 0 for cells that are not candidates."""
    return scatter_to_grid(selection, unit_range(values.detach().float().cpu()))


def choose_top_k(selection: SelectionInput, values: torch.Tensor, strategy: str) -> Choice:
    """The `k` candidates with the largest values `[M]`, or the fewest that hold its `mass`. The values are the relevance."""
    count = selection.count if selection.mass is None else count_for_mass(values, selection.mass)
    keep = selection.candidates[top_k(values, count).cpu()].sort().values
    return Choice(keep, relevance=relevance_map(selection, values), strategy=strategy)


def encoder_attention(selection: SelectionInput, depth: float) -> torch.Tensor:
    """The attention that each candidate receives at an encoder depth, as a multiple of the mean: `[M]`."""
    if depth not in selection.attention:
        raise SelectorError(
            f"this selector needs the encoder's attention at depth {depth:g}, and it was not recorded: "
            "list the depth in the selector's attention_at"
        )
    return selection.attention[depth].detach().float().cpu() * len(selection.candidates)


def encoder_tokens(selection: SelectionInput) -> torch.Tensor:
    """The candidates' tokens `[M, D]`, as the encoder returned them."""
    if selection.tokens is None:
        raise SelectorError("this selector compares encoder tokens, and nothing is encoded yet")
    return selection.tokens.detach()


def unit_vectors(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens `[M, D]` scaled to length 1, in float32; a zero vector stays zero."""
    tokens = tokens.float()
    return tokens / tokens.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def cosine_matrix(unit: torch.Tensor) -> torch.Tensor:
    """Products of all pairs of unit vectors `[M, D]`: `[M, M]`. Little more than half is computed, the rest is copied."""
    count = len(unit)
    out = unit.new_empty(count, count)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        rows = unit[start:stop] @ unit[start:].T
        out[start:stop, start:] = rows
        out[stop:, start:stop] = rows[:, stop - start :].T
    return out


class CosineRows:
    """Rows of the cosine matrix on demand, for greedy loops that need few of them.

    A missing row is computed in one batch with the rows that are most likely to be needed next.
    """

    def __init__(self, unit: torch.Tensor, count: int) -> None:
        """`count`: how many rows the loop will need."""
        self.unit, self.batch = unit, max(MIN_ROWS, count // BATCH_PARTS)
        self.rows = np.empty((len(unit), len(unit)), np.float32)  # pages that are not written take no memory
        self.known = np.zeros(len(unit), bool)

    def __call__(self, index: int, priority: np.ndarray) -> np.ndarray:
        """Products `[M]` of the vector at `index` with all. `priority` `[M]` is larger for likelier next rows."""
        if not self.known[index]:
            order = np.where(self.known, -np.inf, priority)
            order[index] = np.inf
            size = min(self.batch, int((~self.known).sum()))
            batch = np.argpartition(-order, size - 1)[:size]
            self.rows[batch] = (self.unit[torch.from_numpy(batch).to(self.unit.device)] @ self.unit.T).cpu().numpy()
            self.known[batch] = True
        row: np.ndarray = self.rows[index]
        return row


def question_similarity(selection: SelectionInput) -> torch.Tensor:
    """Cosine of each candidate's token with the mean of the question's word embeddings: `[M]`; 0 without words.

    Both lie in the language model's space.
    """
    tokens = encoder_tokens(selection)
    words = selection.question.embeddings.detach()
    if words.numel() == 0:
        return tokens.new_zeros(len(tokens), dtype=torch.float32)
    if words.shape[-1] != tokens.shape[-1]:
        raise SelectorError(
            f"expected question and tokens in one space, got {words.shape[-1]} and {tokens.shape[-1]} dimensions"
        )
    return unit_vectors(tokens) @ unit_vectors(words.to(tokens.device, torch.float32).mean(0, keepdim=True))[0]
