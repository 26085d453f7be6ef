"""How good a projection is, compared with the features in full.

- variance: the share of the features' variance around the fitted mean that the reconstruction keeps;
- error: the mean squared length of the reconstruction error of a feature of length 1;
- overlap: the share of a cell's ten nearest cells, over all images, that are also nearest by the reconstruction (by
  Euclidean distance: reconstructions do not have length 1);
- survival: Spearman's correlation between the scores in full and the compressed scores, over an image's cells;
- kept: the Jaccard index of the best eighth of the cells by both scores;
- found: how often the best cell by the compressed score is in the best eighth by the full score;
- largest: the strongest component's share of the variance; if it is large, one direction dominates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from arr_coc.embedding.encoder import Encoder, Mode, l2_normalize
from arr_coc.embedding.projection import Projection
from arr_coc.errors import DataError, ImageError
from arr_coc.evaluation import statistics
from arr_coc.types.image import ImageLike

SHARE = 1 / 8  # of the cells, as a budget would keep
NEIGHBOURS = 10
POOL_CELLS = 4096  # cells among which neighbours are searched
QUERY_CELLS = 512  # cells whose neighbours are searched
MIN_SCORE_RANGE = 1e-6  # scores that differ less over an image do not rank its cells


@dataclass(frozen=True)
class ProjectionQuality:
    """The figures of one projection; None if a figure could not be measured."""

    dims: int
    variance: float
    error: float
    overlap: float | None
    survival: float | None
    survival_ci: tuple[float, float] | None
    kept: float | None
    found: float | None
    largest: float
    pictures: int
    questions: int


@dataclass(frozen=True)
class QualityThresholds:
    """What counts as good enough."""

    variance: float = 0.70
    error: float = 0.30
    overlap: float = 0.50
    survival: float = 0.90
    largest: float = 0.50

    def missed(self, quality: ProjectionQuality) -> list[str]:
        """One text for each threshold that is missed."""
        out = []
        for name in ("variance", "overlap", "survival"):
            value, least = getattr(quality, name), getattr(self, name)
            if value is not None and value < least:
                out.append(f"{name} {value:.3f} is below {least:g}")
        for name in ("error", "largest"):
            value, most = getattr(quality, name), getattr(self, name)
            if value > most:
                out.append(f"{name} {value:.3f} is above {most:g}")
        return out


def compare_projections(
    encoder: Encoder,
    projections: Mapping[str, Projection],
    pictures: Sequence[ImageLike],
    questions: Sequence[str],
    mode: Mode = "fast",
    unreadable: list[tuple[str, str]] | None = None,
) -> dict[str, ProjectionQuality]:
    """The quality of several projections on the same pictures, each encoded once.

    Files that cannot be read are skipped and added to `unreadable` with the reason; without that list they are errors.
    """
    texts = encoder.text(list(questions)).cpu() if questions else torch.zeros(0, encoder.width)
    tallies = {name: _Tally(projection) for name, projection in projections.items()}
    pool: list[torch.Tensor] = []
    for number, picture in enumerate(pictures):
        try:
            features = encoder.dense(picture, mode).features.flatten(1).T.float().cpu()  # [N, D]
        except ImageError as error:
            if unreadable is None:
                raise
            unreadable.append((str(picture), str(error)))
            continue
        some = _evenly_spaced(len(features), max(1, POOL_CELLS // max(1, len(pictures))))
        pool.append(features[some])
        for tally in tallies.values():
            tally.add(str(number), features, texts, some)
    if not pool:
        raise DataError("expected pictures to validate on, and none of them could be read")
    neighbours = _neighbours(torch.cat(pool))
    return {name: tally.quality(neighbours, len(questions)) for name, tally in tallies.items()}


@dataclass(eq=False)
class _Tally:
    """The running sums of one projection."""

    projection: Projection
    error: float = 0.0  # sum of squared lengths
    spread: float = 0.0  # sum of squared distances from the mean
    cells: int = 0
    pool: list[torch.Tensor] = field(default_factory=list)  # one entry per picture
    survival: dict[str, list[float]] = field(default_factory=dict)  # by picture
    kept: list[float] = field(default_factory=list)
    found: list[float] = field(default_factory=list)

    def add(self, picture: str, features: torch.Tensor, texts: torch.Tensor, some: torch.Tensor) -> None:
        """One picture's features `[N, D]`, scored by questions `[Q, D]`; cells `some` join the pool of neighbours."""
        transformed = self.projection.transform(features)
        reconstructed = self.projection.reconstruct(transformed)
        self.error += float((features - reconstructed).square().sum())
        self.spread += float((features - self.projection.image_mean).square().sum())
        self.cells += len(features)
        self.pool.append(reconstructed[some])
        full = self.projection.full_scores(features, texts)  # [Q, N]
        ranks = (full.amax(1) - full.amin(1) > MIN_SCORE_RANGE) & (len(features) > 1)
        if not bool(ranks.any()):
            return
        full, estimate = full[ranks], self.projection.scores(l2_normalize(transformed, dim=1), texts)[ranks]
        self.survival[picture] = spearman(full, estimate).tolist()
        count = max(1, round(SHARE * len(features)))
        best, guess = (
            torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(count, dim=1).indices, True)
            for scores in (full, estimate)
        )
        self.kept += ((best & guess).sum(1) / (best | guess).sum(1)).tolist()
        self.found += best.gather(1, estimate.argmax(1, keepdim=True))[:, 0].double().tolist()

    def quality(self, neighbours: torch.Tensor | None, questions: int) -> ProjectionQuality:
        overlap, own = None, _neighbours(torch.cat(self.pool))
        if neighbours is not None and own is not None:
            overlap = float((neighbours[:, :, None] == own[:, None, :]).any(2).double().mean())
        return ProjectionQuality(
            dims=self.projection.dims,
            variance=1 - self.error / max(self.spread, 1e-30),
            error=self.error / self.cells,
            overlap=overlap,
            survival=_mean([value for values in self.survival.values() for value in values]),
            survival_ci=statistics.interval(self.survival),
            kept=_mean(self.kept),
            found=_mean(self.found),
            largest=float(self.projection.variance.max()),
            pictures=len(self.pool),
            questions=questions,
        )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _evenly_spaced(count: int, wanted: int) -> torch.Tensor:
    """Indices of at most `wanted` of `count` cells."""
    return torch.linspace(0, count - 1, min(count, wanted)).round().long()


def _neighbours(pool: torch.Tensor) -> torch.Tensor | None:
    """The nearest cells `[A, NEIGHBOURS]` of some cells of the pool `[P, D]`, without themselves; None if it is small."""
    if len(pool) <= 2 * NEIGHBOURS:
        return None
    queries = _evenly_spaced(len(pool), QUERY_CELLS)
    distance = torch.cdist(pool[queries].double(), pool.double(), compute_mode="donot_use_mm_for_euclid_dist")
    distance[torch.arange(len(queries)), queries] = torch.inf
    return distance.topk(NEIGHBOURS, dim=1, largest=False).indices


def spearman(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The rank correlation of each row of `[Q, N]`, ties with their mean rank: `[Q]`; 0 if all values are equal."""
    centred = [ranks - ranks.mean(1, keepdim=True) for ranks in (_ranks(a), _ranks(b))]
    product = (centred[0] * centred[1]).sum(1)
    return product / (centred[0].norm(dim=1) * centred[1].norm(dim=1)).clamp(min=1e-12)


def _ranks(rows: torch.Tensor) -> torch.Tensor:
    """Ranks `[Q, N]`, float64; ties get their mean rank."""
    ordered, order = rows.double().sort(dim=1)
    first = torch.searchsorted(ordered, ordered, right=False)
    last = torch.searchsorted(ordered, ordered, right=True) - 1
    return torch.empty_like(ordered).scatter_(1, order, (first + last).double() / 2)
