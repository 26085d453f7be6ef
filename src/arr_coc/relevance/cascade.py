"""The cascade: encode the whole image coarsely, and only the promising parts in full resolution.

    one encoder pass -> clusters scored by their best member -> the best ten or so, near an edge -> the windows over them

An encoder in native mode encodes a large image in windows. The cascade encodes only the windows whose centres hold the
question's best clusters. A cell whose windows are all encoded has the same score as without the cascade; other cells get a
score predicted from the coarse pass. Windows are cached in the texture, so the next question encodes only new ones. The
cascade is off by default: with several questions about one image, encoding every window once costs no more and misses nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import l2_normalize
from arr_coc.embedding.field import Field
from arr_coc.embedding.windows import WindowedEncoder, resize
from arr_coc.errors import ArrCocError
from arr_coc.relevance.attending import AUTO_MAX
from arr_coc.selectors.base import SelectionInput
from arr_coc.texture import TextureArray
from arr_coc.texture.channels.clusters import clusters
from arr_coc.texture.filters import pool
from arr_coc.types.grid import WHOLE, Cells

MIN_CELLS = 4096  # smallest grid for which a cascade may be faster
MIN_CLUSTERS = 10  # clusters encoded in full resolution, at least
CLUSTER_MARGIN = 2.0  # the clusters hold at least this many times the cells to keep
EDGE_DISTANCE = 2.0  # in encoder cells: parts farther from any edge are not encoded in full resolution
MASS_SHARE = 0.25  # share of the cells assumed for a mass budget, whose count is not known before scoring


@dataclass(frozen=True)
class CascadeCoverage:
    """How much of an image was encoded in full resolution."""

    clusters: int = 0
    of_clusters: int = 0
    windows: int = 0
    of_windows: int = 0

    def __str__(self) -> str:
        return (
            f"coarse to fine: {self.clusters} of {self.of_clusters} clusters and {self.windows} of {self.of_windows} windows "
            "were looked at closely"
        )


def unsupported_reason(embeddings: Embeddings | None, texture: TextureArray, grid: Cells) -> str:
    """What the cascade needs and is missing here; empty if it can be used."""
    if embeddings is None or embeddings.mode != "native" or not isinstance(embeddings.encoder, WindowedEncoder):
        return "embeddings in native mode (arr_coc.Embeddings(..., mode='native')), which see a picture in windows"
    if len(grid.views) != 1 or grid.views[0].t != 1 or grid.views[0].area != WHOLE:
        return "one grid over a whole picture"
    if embeddings.encoder.plan(texture.pixels) is None:
        return f"a picture of several windows, longer than {embeddings.encoder.side} px"
    return ""


def is_worthwhile(embeddings: Embeddings | None, texture: TextureArray, grid: Cells) -> bool:
    """Whether a first question may be faster with a cascade: a large grid on an image of several windows."""
    return grid.n >= MIN_CELLS and not unsupported_reason(embeddings, texture, grid)


class CascadeScorer:
    """Similarity of the question to each candidate, `[M]`. `coverage` lists what was encoded in full resolution."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings
        self.coverage: list[CascadeCoverage] = []

    def __call__(self, selection: SelectionInput) -> torch.Tensor:
        return coarse_to_fine(self.embeddings, self.coverage.append, selection)


def coarse_to_fine(
    embeddings: Embeddings, report: Callable[[CascadeCoverage], None], selection: SelectionInput
) -> torch.Tensor:
    """Similarity of the question to each candidate `[M]`. `report` gets how much was encoded in full resolution."""
    texture, (view,) = selection.texture, selection.grid.views
    if why := unsupported_reason(embeddings, texture, selection.grid):
        raise ArrCocError(f"expected {why}, for a cascade")
    if selection.k is not None:
        count = selection.k
    else:
        count = AUTO_MAX if selection.mass is None else round(MASS_SHARE * selection.grid.n)
    one_pass = copy.copy(embeddings)
    one_pass.mode = "fast"
    question = embeddings.query([selection.question.text])[0]
    coarse = one_pass.field(texture)
    scores = torch.tensordot(question.to(coarse.features.device), coarse.features, dims=1)  # [h, w] of the encoder
    chosen = best_clusters(texture, scores, CLUSTER_MARGIN * count / view.n)
    windows = texture.once(f"windows of {embeddings.identity}", lambda: WindowCache(embeddings, texture, coarse))
    numbers = sorted(set(windows.main_window[windows.near_edges(chosen)].tolist()))
    fine = windows.field(numbers)
    report(CascadeCoverage(len(chosen), len(clusters(texture).share), len(numbers), len(windows.plan)))
    fine_scores, coarse_scores = (
        torch.tensordot(question.to(field.features.device), field.view(view), dims=1) for field in (fine, coarse)
    )
    encoded = pool(windows.encoded.float(), (view.h, view.w), "nearest") > 0
    merged = torch.where(encoded, fine_scores, predict_fine(coarse_scores, fine_scores, encoded))
    return merged.flatten().cpu()[selection.candidates]


def best_clusters(texture: TextureArray, scores: torch.Tensor, share: float, least: int = MIN_CLUSTERS) -> torch.Tensor:
    """The best clusters `[C]` on a coarse score map `[h, w]`: at least `least`, and enough to cover `share` of the image.

    A cluster is scored by its best member. Its centroid may lie outside of it, so the score there means nothing.
    """
    found = clusters(texture)
    members = pool(scores.float(), (int(found.ids.shape[0]), int(found.ids.shape[1])), "nearest").to(found.ids.device)
    best = torch.full((len(found.share),), -torch.inf, device=found.ids.device)
    best = best.scatter_reduce(0, found.ids.flatten(), members.flatten(), "amax")
    order = best.argsort(descending=True, stable=True)
    covered = found.share[order].cumsum(0)
    return order[: max(least, int((covered < share).sum()) + 1)]


def predict_fine(coarse: torch.Tensor, fine: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
    """Fine scores `[h, w]` predicted from coarse ones by a linear fit to the cells that are `encoded` in full resolution.

    The two have different scales: without the fit, cells that no window covers could win.
    """
    if not bool(encoded.any()):
        return coarse
    x, y = coarse[encoded], fine[encoded]
    variation = (x - x.mean()).square().sum()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / variation if bool(variation > 0) else torch.zeros_like(variation)
    return y.mean() + slope.clamp(min=0) * (coarse - x.mean())


class WindowCache:
    """The windows of one image, each encoded on first use."""

    def __init__(self, embeddings: Embeddings, texture: TextureArray, coarse: Field) -> None:
        encoder = embeddings.encoder
        assert isinstance(encoder, WindowedEncoder)
        plan = encoder.plan(texture.pixels)
        assert plan is not None
        self.encoder, self.plan, self.texture = encoder, plan, texture
        self.projection, self.coarse = embeddings.projection, coarse
        self.features: dict[int, torch.Tensor] = {}  # window number -> [D, rows, columns]
        self.weights = plan.weights().to(texture.device)
        rows, columns = plan.window
        weight_maps = torch.zeros(len(plan), *plan.grid, device=texture.device)
        for number, (top, left) in enumerate(plan):
            weight_maps[number, top : top + rows, left : left + columns] = self.weights[number]
        self.main_window = weight_maps.argmax(0)  # [rows, columns] the window with the largest weight in each cell

    def near_edges(self, chosen: torch.Tensor) -> torch.Tensor:
        """The encoder's cells `[rows, columns]` that lie in the chosen clusters and close to an edge."""
        inside = torch.isin(clusters(self.texture).ids, chosen).float()
        inside = pool(pool(inside, self.texture.size, "nearest"), self.plan.grid, "max") > 0
        height, width = self.texture.size
        side = (height / self.plan.grid[0] * width / self.plan.grid[1]) ** 0.5
        distance = self.texture.grid(*self.plan.grid, ["distance"])[0].float() * (height**2 + width**2) ** 0.5 / 2
        return inside & (distance <= EDGE_DISTANCE * side)

    def field(self, numbers: list[int]) -> Field:
        """Encode these windows. Features come from windows where `encoded`, and from the coarse pass elsewhere."""
        self._encode(numbers)
        rows, columns = self.plan.window
        blended = torch.zeros(self.encoder.width, *self.plan.grid, device=self.texture.device)
        for number, (top, left) in enumerate(self.plan):
            if number in self.features:
                blended[:, top : top + rows, left : left + columns] += self.features[number] * self.weights[number]
        fine = self.projection.compress(l2_normalize(blended, dim=0))
        rest = l2_normalize(self.coarse.grid(*self.plan.grid), dim=0)
        return Field(torch.where(self.encoded, fine, rest.to(fine.device)), self.texture.size)

    @property
    def encoded(self) -> torch.Tensor:
        """Mask `[rows, columns]` of the encoder's cells whose main window is encoded."""
        return torch.isin(self.main_window, torch.tensor(sorted(self.features), device=self.main_window.device))

    def _encode(self, numbers: list[int]) -> None:
        missing = [number for number in numbers if number not in self.features]
        if not missing:
            return
        cell = self.encoder.cell
        pixels = resize(self.texture.pixels, (self.plan.grid[0] * cell, self.plan.grid[1] * cell))
        with torch.no_grad():
            for number, features in zip(missing, self.encoder.encode_windows(pixels, self.plan, missing), strict=True):
                self.features[number] = features
