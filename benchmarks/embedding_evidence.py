"""How well scores find the evidence: shared by the benchmarks of embeddings.

The best eighth of a picture's cells is kept for each question. Recall is the share of the cells under the answer's boxes that
are kept; the pointing game asks whether the best cell lies under a box. The baselines are chance and the cells nearest the centre.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from arr_coc.embedding.encoder import Encoder, Mode
from arr_coc.embedding.projection import Projection
from arr_coc.evaluation import metrics, statistics
from arr_coc.evaluation.data import Data
from arr_coc.training.projection.quality import SHARE
from arr_coc.types.grid import Grid

CENTRE, CHANCE = "centre", "random"

ScoresByPicture = dict[str, list[float]]
Scorer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # features [N, D] and questions [Q, D] to scores [Q, N]


@dataclass(eq=False)
class EvidenceScores:
    """Evidence recall at an eighth of the cells and the pointing game, of one scorer."""

    recalls: ScoresByPicture = field(default_factory=dict)
    points: ScoresByPicture = field(default_factory=dict)

    @property
    def recall(self) -> float | None:
        return statistics.mean(self.recalls)

    @property
    def pointing(self) -> float | None:
        return statistics.mean(self.points)

    def add(self, picture: str, recall: float | None, pointing: float | None) -> None:
        for scores, value in ((self.recalls, recall), (self.points, pointing)):
            if value is not None:
                scores.setdefault(picture, []).append(value)

    def to_dict(self) -> dict[str, Any]:
        return {
            "evidence_recall": self.recall,
            "evidence_recall_ci": statistics.interval(self.recalls),
            "pointing": self.pointing,
            "pointing_ci": statistics.interval(self.points),
        }

    def __or__(self, other: EvidenceScores) -> EvidenceScores:
        """The scores on the pictures of both."""
        return EvidenceScores(self.recalls | other.recalls, self.points | other.points)


def plain_cosine(features: torch.Tensor, questions: torch.Tensor) -> torch.Tensor:
    """The encoder's own scores, neither centred nor compressed."""
    return questions @ features.T


def compressed_scorer(projection: Projection) -> Scorer:
    """The scores in a projection's dimensions."""
    return lambda features, questions: projection.scores(projection.compress(features), questions)


def measure_evidence(
    encoder: Encoder,
    scorers: Mapping[str, Scorer],
    data: Data,
    *,
    mode: Mode = "fast",
    progress: Callable[[], None] = lambda: None,
) -> dict[str, EvidenceScores]:
    """Every scorer, the centre and chance, on the encoder's own cells and the questions that have boxes."""
    found = {name: EvidenceScores() for name in (*scorers, CENTRE, CHANCE)}
    for picture in data.pictures:
        progress()
        asked = [sample for sample in picture.samples if sample.evidence]
        if not asked:
            continue
        features = encoder.dense(picture.still, mode).features.float().cpu()  # [D, h, w]
        texts = encoder.text([sample.question for sample in asked]).cpu()
        view = Grid(1, int(features.shape[1]), int(features.shape[2]))
        scores = {name: scorer(features.flatten(1).T, texts) for name, scorer in scorers.items()}  # [Q, N] each
        scores[CENTRE] = _centrality(view.h, view.w, picture.size).expand(len(asked), -1)
        count = max(1, round(SHARE * view.n))
        for number, sample in enumerate(asked):
            groups = metrics.evidence_cells(sample.evidence, view, picture.size)
            for name, rows in scores.items():
                best = rows[number].topk(count).indices.sort().values
                recall, pointing = metrics.recall(best, groups), metrics.pointing(rows[number], groups)
                found[name].add(picture.name, recall, pointing)
            covered = {cell for group in groups for cell in group.tolist()}
            pointing = len(covered) / view.n if covered else None
            found[CHANCE].add(picture.name, metrics.chance(count, view.n, groups), pointing)
    return found


def _centrality(rows: int, columns: int, size: tuple[int, int]) -> torch.Tensor:
    """Minus the distance in pixels from the image's centre: `[rows * columns]`."""
    y = ((torch.arange(rows) + 0.5) / rows - 0.5) * size[1]
    x = ((torch.arange(columns) + 0.5) / columns - 0.5) * size[0]
    return -(y[:, None].square() + x[None, :].square()).sqrt().flatten()
