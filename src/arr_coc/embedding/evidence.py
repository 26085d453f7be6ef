"""Do the scores find what a question is about? Evidence recall and the pointing game, in full and compressed.

The best eighth of a picture's cells is kept for each question. Recall is the share of the cells under the answer's boxes
that are among them; the pointing game asks whether the single best cell lies under a box. Beside them stand chance and the
cells nearest the centre, which know neither picture nor question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from arr_coc.embedding.compression import Projection
from arr_coc.embedding.encoder import Encoder, Mode
from arr_coc.embedding.field import Field
from arr_coc.evaluation import metrics, statistics
from arr_coc.evaluation.data import Data
from arr_coc.grid import Grid

SHARE = 1 / 8
FULL, PLAIN, CENTRE, CHANCE = "full", "plain cosine", "centre", "random"

Scores = dict[str, list[float]]  # by picture


@dataclass(eq=False)
class Evidence:
    """One way of scoring: evidence recall at an eighth of the cells, and the pointing game."""

    recalls: Scores = field(default_factory=dict)
    points: Scores = field(default_factory=dict)

    @property
    def recall(self) -> float | None:
        return statistics.mean(self.recalls)

    @property
    def pointing(self) -> float | None:
        return statistics.mean(self.points)

    def to_dict(self) -> dict[str, Any]:
        return {
            "evidence_recall": self.recall,
            "evidence_recall_ci": statistics.interval(self.recalls),
            "pointing": self.pointing,
            "pointing_ci": statistics.interval(self.points),
        }


def evidence(
    encoder: Encoder,
    projections: Mapping[str, Projection],
    data: Data,
    *,
    mode: Mode = "fast",
    grid: tuple[int, int] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Evidence]:
    """Every projection beside the features in full, the centre and chance, on the questions that have boxes.

    In full there are two: "full" is what the (first) projection estimates, "plain cosine" has no mean taken out.

    The cells are the encoder's own, or those of a `grid` (rows, columns).
    """
    found = {name: Evidence() for name in (FULL, PLAIN, *projections, CENTRE, CHANCE)}
    first = next(iter(projections.values()))
    for picture in data.pictures:
        asked = [sample for sample in picture.samples if sample.evidence]
        tick()
        if not asked:
            continue
        features = encoder.dense(picture.image, mode).features.float().cpu()  # [D, h, w]
        texts = encoder.text([sample.question for sample in asked]).cpu()
        size = (picture.size[1], picture.size[0])
        shape = grid or (int(features.shape[1]), int(features.shape[2]))

        def cells(map_: torch.Tensor, on: tuple[int, int] = size, shape: tuple[int, int] = shape) -> torch.Tensor:
            return map_.flatten(1) if map_.shape[1:] == shape else Field(map_, on).grid(*shape).flatten(1)

        whole = cells(features)  # [D, N]
        worth = {FULL: first.full_scores(whole.T, texts), PLAIN: texts @ whole}  # [Q, N] each
        for name, projection in projections.items():
            worth[name] = projection.scores(cells(projection.transform(features)).T, texts)
        worth[CENTRE] = _central(*shape, picture.size).expand(len(asked), -1)
        view = Grid(1, *shape)
        keep = max(1, round(SHARE * view.n))
        for number, sample in enumerate(asked):
            groups = metrics.evidence_cells(sample.evidence, view, picture.size)
            for name, scores in worth.items():
                best = scores[number].topk(keep).indices.sort().values
                _note(found[name].recalls, picture.name, metrics.recall(best, groups))
                _note(found[name].points, picture.name, metrics.pointing(scores[number], groups))
            _note(found[CHANCE].recalls, picture.name, metrics.chance(keep, view.n, groups))
            under = {cell for group in groups for cell in group.tolist()}
            _note(found[CHANCE].points, picture.name, len(under) / view.n if under else None)
    return found


def _central(rows: int, columns: int, size: tuple[int, int]) -> torch.Tensor:
    """Minus the distance in pixels from the picture's centre, `[rows * columns]`; of equals the first is the nearest."""
    y = ((torch.arange(rows) + 0.5) / rows - 0.5) * size[1]
    x = ((torch.arange(columns) + 0.5) / columns - 0.5) * size[0]
    return -(y[:, None].square() + x[None, :].square()).sqrt().flatten()


def _note(scores: Scores, picture: str, value: float | None) -> None:
    if value is not None:
        scores.setdefault(picture, []).append(value)
