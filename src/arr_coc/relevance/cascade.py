"""The cascade: encode the whole image coarsely, and only the promising parts in full resolution.

    one encoder pass -> clusters scored by their best member -> the best ten or so, near an edge -> the windows over them

An encoder in native mode encodes a large image in windows. The cascade encodes only the windows whose centres hold the
question's best clusters. A cell whose windows are all encoded has the same score as without the cascade; other cells get a
score predicted from the coarse pass. Windows are cached in the texture, so the next question is_worthwhile only for new ones. The
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

LARGE = 4096  # cells from which a grid is worth a cascade
KEPT = 10  # clusters, at least
ROOM = 2.0  # and as many as hold this many times the cells that are to be kept
NEAR = 2.0  # cells of the encoder; nothing farther from an edge is looked at closely
UNKNOWN = 0.25  # of the cells: what a budget by mass is taken for before anything is scored


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
    """What a cascade needs and does not have here; empty if it can be used."""
    if embeddings is None or embeddings.mode != "native" or not isinstance(embeddings.encoder, WindowedEncoder):
        return "embeddings in native mode (arr_coc.Embeddings(..., mode='native')), which see a picture in windows"
    if len(grid.views) != 1 or grid.views[0].t != 1 or grid.views[0].area != WHOLE:
        return "one grid over a whole picture"
    if embeddings.encoder.plan(texture.pixels) is None:
        return f"a picture of several windows, longer than {embeddings.encoder.side} px"
    return ""


def is_worthwhile(embeddings: Embeddings | None, texture: TextureArray, grid: Cells) -> bool:
    """Whether a first question may be faster with a cascade: a large grid on an image of several windows."""
    return grid.n >= LARGE and not unsupported_reason(embeddings, texture, grid)


class CascadeScorer:
    """Similarity of the question to each candidate, `[M]`, coarse to fine. `coverage` lists what was encoded closely."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings
        self.coverage: list[CascadeCoverage] = []

    def __call__(self, selection: SelectionInput) -> torch.Tensor:
        return coarse_to_fine(self.embeddings, self.coverage.append, selection)


def coarse_to_fine(
    embeddings: Embeddings, report: Callable[[CascadeCoverage], None], selection: SelectionInput
) -> torch.Tensor:
    """Similarity of the question to each candidate `[M]`. `report` gets how much was encoded closely."""
    texture, (view,) = selection.texture, selection.grid.views
    if why := unsupported_reason(embeddings, texture, selection.grid):
        raise ArrCocError(f"expected {why}, for a cascade")
    count = (
        selection.k
        if selection.k is not None
        else AUTO_MAX
        if selection.mass is None
        else round(UNKNOWN * selection.grid.n)
    )
    coarse = copy.copy(embeddings)
    coarse.mode = "fast"
    question = embeddings.query([selection.question.text])[0]
    seen = coarse.field(texture)
    scores = torch.tensordot(
        question.to(seen.features.device), seen.features, dims=1
    )  # [h, w] of the encoder's one pass
    best = best_clusters(texture, scores, ROOM * count / view.n)
    windows = texture.once(f"windows of {embeddings.identity}", lambda: Windows(embeddings, texture, seen))
    numbers = sorted(set(windows.sees_best[windows.near(best)].tolist()))
    made = windows.field(numbers)
    report(CascadeCoverage(len(best), len(clusters(texture).share), len(numbers), len(windows.plan)))
    close, far = (torch.tensordot(question.to(one.features.device), one.view(view), dims=1) for one in (made, seen))
    closely = pool(windows.closely.float(), (view.h, view.w), "nearest") > 0
    return torch.where(closely, close, expected(far, close, closely)).flatten().cpu()[selection.candidates]


def best_clusters(texture: TextureArray, scores: torch.Tensor, room: float, least: int = KEPT) -> torch.Tensor:
    """The clusters `[C]` whose best member scores best on a coarse map `[h, w]`: `least` of them, or as many as cover `room`.

    A member stands for its cluster, since a bent one's centroid may lie outside; `room` is a share of the picture.
    """
    found = clusters(texture)
    members = pool(scores.float(), (int(found.ids.shape[0]), int(found.ids.shape[1])), "nearest").to(found.ids.device)
    top = torch.full((len(found.share),), -torch.inf, device=found.ids.device)
    top = top.scatter_reduce(0, found.ids.flatten(), members.flatten(), "amax")
    order = top.argsort(descending=True, stable=True)
    covered = found.share[order].cumsum(0)
    return order[: max(least, int((covered < room).sum()) + 1)]


def expected(far: torch.Tensor, close: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    """What a close look would have shown where there was none, `[h, w]`: a line fitted to where there were `both`.

    The coarse pass and the windows have different scales: without this, cells without a window could win.
    """
    if not bool(both.any()):
        return far
    x, y = far[both], close[both]
    spread = (x - x.mean()).square().sum()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / spread if bool(spread > 0) else torch.zeros_like(spread)
    return y.mean() + slope.clamp(min=0) * (far - x.mean())


class Windows:
    """The windows of one image, each encoded on first use."""

    def __init__(self, embeddings: Embeddings, texture: TextureArray, coarse: Field) -> None:
        encoder = embeddings.encoder
        assert isinstance(encoder, WindowedEncoder)
        planned = encoder.plan(texture.pixels)
        assert planned is not None
        self.encoder, self.plan, self.texture = encoder, planned, texture
        self.projection, self.coarse = embeddings.projection, coarse
        self.seen: dict[int, torch.Tensor] = {}  # number -> [D, rows, columns]
        self.weights = planned.weights().to(texture.device)
        rows, columns = planned.window
        everywhere = torch.zeros(len(planned), *planned.grid, device=texture.device)
        for number, (top, left) in enumerate(planned):
            everywhere[number, top : top + rows, left : left + columns] = self.weights[number]
        self.sees_best = everywhere.argmax(0)  # [rows, columns] the window that counts most in each cell

    def near(self, chosen: torch.Tensor) -> torch.Tensor:
        """The encoder's cells `[rows, columns]` that lie in the chosen clusters and not far from any edge."""
        inside = torch.isin(clusters(self.texture).ids, chosen).float()
        inside = pool(pool(inside, self.texture.size, "nearest"), self.plan.grid, "max") > 0
        height, width = self.texture.size
        side = (height / self.plan.grid[0] * width / self.plan.grid[1]) ** 0.5
        distance = self.texture.grid(*self.plan.grid, ["distance"])[0].float() * (height**2 + width**2) ** 0.5 / 2
        return inside & (distance <= NEAR * side)

    def field(self, numbers: list[int]) -> Field:
        """Features by windows where one of these, or of those looked through before, sees best; elsewhere of the one pass."""
        self._look(numbers)
        rows, columns = self.plan.window
        blended = torch.zeros(self.encoder.width, *self.plan.grid, device=self.texture.device)
        for number, (top, left) in enumerate(self.plan):
            if number in self.seen:
                blended[:, top : top + rows, left : left + columns] += self.seen[number] * self.weights[number]
        closely = self.projection.compress(l2_normalize(blended, dim=0))
        rest = l2_normalize(self.coarse.grid(*self.plan.grid), dim=0)
        return Field(torch.where(self.closely, closely, rest.to(closely.device)), self.texture.size)

    @property
    def closely(self) -> torch.Tensor:
        """The encoder's cells `[rows, columns]` that a window has seen which sees them best."""
        return torch.isin(self.sees_best, torch.tensor(sorted(self.seen), device=self.sees_best.device))

    def _look(self, numbers: list[int]) -> None:
        fresh = [number for number in numbers if number not in self.seen]
        if not fresh:
            return
        cell = self.encoder.cell
        whole = resize(self.texture.pixels, (self.plan.grid[0] * cell, self.plan.grid[1] * cell))
        with torch.no_grad():
            for number, features in zip(fresh, self.encoder.encode_windows(whole, self.plan, fresh), strict=True):
                self.seen[number] = features
