"""What a projection is worth: measured on pictures and questions, beside the features in full.

- variance: the share of the features' variance around the fitted mean that the reconstruction has;
- error: the squared length of what the reconstruction misses of a feature, whose own length is 1;
- overlap: how many of a cell's ten nearest cells, over all pictures, are among its ten nearest by the reconstruction (by
  distance: for features of length 1 that is the order of cosines, and reconstructions have other lengths);
- survival: Spearman's correlation between a picture's cells ranked by a question's scores in full and by the estimates;
- kept: the Jaccard index of the best eighth of the cells by both;
- found: how often the best cell by the estimate is in the best eighth by the score in full;
- largest: the strongest component's share of the variance, large where one direction says nearly everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from arr_coc.embedding.compression import Projection
from arr_coc.embedding.encoder import Encoder, Mode, unit
from arr_coc.errors import DataError, ImageError
from arr_coc.types.image import ImageLike

SHARE = 1 / 8  # of the cells, as a budget would keep
NEIGHBOURS = 10
POOL = 4096  # cells among which neighbours are looked for
ASKING = 512  # cells whose neighbours are looked for
FLAT = 1e-6  # a question whose scores differ less over a picture ranks nothing


@dataclass(frozen=True)
class Thresholds:
    """What counts as good enough; `missed` says what is not."""

    variance: float = 0.70
    error: float = 0.30
    overlap: float = 0.50
    survival: float = 0.90
    largest: float = 0.50

    def missed(self, quality: Quality) -> list[str]:
        """In words, one for each threshold that is missed."""
        said = []
        for name in ("variance", "overlap", "survival"):
            value, least = getattr(quality, name), getattr(self, name)
            if value is not None and value < least:
                said.append(f"{name} {value:.3f} is below {least:g}")
        for name in ("error", "largest"):
            value, most = getattr(quality, name), getattr(self, name)
            if value > most:
                said.append(f"{name} {value:.3f} is above {most:g}")
        return said


@dataclass(frozen=True)
class Quality:
    """The figures of one projection. Those that could not be measured are None."""

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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(eq=False)
class _Tally:
    """What one projection has shown so far."""

    missed: float = 0.0  # squared lengths, summed
    pool: list[torch.Tensor] = field(default_factory=list)
    survival: dict[str, list[float]] = field(default_factory=dict)  # by picture
    kept: list[float] = field(default_factory=list)
    found: list[float] = field(default_factory=list)


def validate(
    encoder: Encoder,
    projection: Projection,
    pictures: Sequence[ImageLike],
    questions: Sequence[str],
    mode: Mode = "fast",
) -> Quality:
    """One projection on pictures and questions."""
    return compare(encoder, {"": projection}, pictures, questions, mode)[""]


def compare(
    encoder: Encoder,
    projections: Mapping[str, Projection],
    pictures: Sequence[ImageLike],
    questions: Sequence[str],
    mode: Mode = "fast",
    unreadable: list[tuple[str, str]] | None = None,
) -> dict[str, Quality]:
    """Several projections on the same pictures, each encoded once.

    Files that cannot be read are left out, and added to `unreadable` with the reason; without such a list they are errors.
    """
    texts = encoder.text(list(questions)).cpu() if questions else torch.zeros(0, encoder.width)
    tallies = {name: _Tally() for name in projections}
    spread = dict.fromkeys(projections, 0.0)
    pool: list[torch.Tensor] = []
    cells = seen = 0
    for number, features in _encoded(encoder, pictures, mode, unreadable):
        seen, cells = seen + 1, cells + len(features)
        some = _spread_out(len(features), max(1, POOL // max(1, len(pictures))))
        pool.append(features[some])
        for name, projection in projections.items():
            tally = tallies[name]
            transformed = projection.transform(features)
            back = projection.reconstruct(transformed)
            tally.missed += float((features - back).square().sum())
            spread[name] += float((features - projection.image_mean).square().sum())
            tally.pool.append(back[some])
            full = projection.full_scores(features, texts)  # [Q, N]
            _compare_rankings(tally, str(number), full, projection.scores(unit(transformed, dim=1), texts))
    if not seen:
        raise DataError("expected pictures to validate on, and none of them could be read")
    near = _neighbours(torch.cat(pool))
    return {
        name: _quality(projection, tallies[name], spread[name], cells, seen, len(questions), near)
        for name, projection in projections.items()
    }


def _encoded(
    encoder: Encoder, pictures: Iterable[ImageLike], mode: Mode, unreadable: list[tuple[str, str]] | None
) -> Iterator[tuple[int, torch.Tensor]]:
    for number, picture in enumerate(pictures):
        try:
            yield number, encoder.dense(picture, mode).features.flatten(1).T.float().cpu()  # [N, D]
        except ImageError as error:
            if unreadable is None:
                raise
            unreadable.append((str(picture), str(error)))


def _spread_out(count: int, wanted: int) -> torch.Tensor:
    """Some of `count` cells, evenly."""
    return torch.linspace(0, count - 1, min(count, wanted)).round().long()


def _compare_rankings(tally: _Tally, picture: str, full: torch.Tensor, estimate: torch.Tensor) -> None:
    """Each question's ranking of the picture's cells by both scores `[Q, N]`."""
    count = full.shape[1]
    ranked = (full.amax(1) - full.amin(1) > FLAT) & torch.tensor(count > 1) if len(full) else torch.zeros(0).bool()
    if not bool(ranked.any()):
        return
    full, estimate = full[ranked], estimate[ranked]
    tally.survival[picture] = spearman(full, estimate).tolist()
    few = max(1, round(SHARE * count))
    best = [scores.topk(few, dim=1).indices for scores in (full, estimate)]
    marks = [torch.zeros_like(full, dtype=torch.bool).scatter_(1, chosen, True) for chosen in best]
    both, either = (marks[0] & marks[1]).sum(1), (marks[0] | marks[1]).sum(1)
    tally.kept += (both / either).tolist()
    tally.found += marks[0].gather(1, estimate.argmax(1, keepdim=True))[:, 0].double().tolist()


def spearman(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The rank correlation of each row of `[Q, N]`, equal values sharing their mean rank: `[Q]`; 0 where all are equal."""
    ranks = [_ranks(rows) for rows in (a, b)]
    around = [rank - rank.mean(1, keepdim=True) for rank in ranks]
    together = (around[0] * around[1]).sum(1)
    return together / (around[0].norm(dim=1) * around[1].norm(dim=1)).clamp(min=1e-12)


def _ranks(rows: torch.Tensor) -> torch.Tensor:
    """Ranks `[Q, N]`, float64; equal values have the mean of theirs."""
    ordered, order = rows.double().sort(dim=1)
    first = torch.searchsorted(ordered, ordered, right=False)
    last = torch.searchsorted(ordered, ordered, right=True) - 1
    return torch.empty_like(ordered).scatter_(1, order, (first + last).double() / 2)


def _neighbours(pool: torch.Tensor) -> torch.Tensor | None:
    """The nearest cells `[A, NEIGHBOURS]` of some of the pool's `[P, D]`, themselves left out; None in too small a pool."""
    if len(pool) <= 2 * NEIGHBOURS:
        return None
    asking = _spread_out(len(pool), ASKING)
    apart = torch.cdist(pool[asking].double(), pool.double(), compute_mode="donot_use_mm_for_euclid_dist")
    apart[torch.arange(len(asking)), asking] = torch.inf
    return apart.topk(NEIGHBOURS, dim=1, largest=False).indices


def _quality(
    projection: Projection, tally: _Tally, spread: float, cells: int, pictures: int, questions: int,
    near: torch.Tensor | None,
) -> Quality:  # fmt: skip
    from arr_coc.evaluation.statistics import interval

    overlap = None
    if near is not None:
        mine = _neighbours(torch.cat(tally.pool))
        assert mine is not None
        overlap = float((near[:, :, None] == mine[:, None, :]).any(2).double().mean())
    ranked = [value for values in tally.survival.values() for value in values]
    bounds = interval(tally.survival)
    return Quality(
        dims=projection.dims,
        variance=1 - tally.missed / max(spread, 1e-30),
        error=tally.missed / cells,
        overlap=overlap,
        survival=sum(ranked) / len(ranked) if ranked else None,
        survival_ci=bounds,
        kept=sum(tally.kept) / len(tally.kept) if tally.kept else None,
        found=sum(tally.found) / len(tally.found) if tally.found else None,
        largest=float(projection.variance.max()),
        pictures=pictures,
        questions=questions,
    )


FIGURES = tuple(one.name for one in fields(Quality) if one.name not in ("pictures", "questions", "survival_ci"))
