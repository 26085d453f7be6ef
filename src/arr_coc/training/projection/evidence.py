"""Do scores find what a question is about? Evidence recall and the pointing game, for any ways of scoring beside each other.

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
from arr_coc.evaluation import metrics, statistics
from arr_coc.evaluation.data import Data
from arr_coc.types.grid import Grid

SHARE = 1 / 8
CENTRE, CHANCE = "centre", "random"

Scores = dict[str, list[float]]  # by picture
Scorer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # features [N, D] and questions [Q, D] to scores [Q, N]


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

    def __or__(self, other: Evidence) -> Evidence:
        """That of the pictures of both."""
        return Evidence(self.recalls | other.recalls, self.points | other.points)


def plain_cosine(features: torch.Tensor, questions: torch.Tensor) -> torch.Tensor:
    """The encoder's own: nothing is centred, nothing compressed."""
    return questions @ features.T


def compressed(projection: Projection) -> Scorer:
    """In a projection's few dimensions."""
    return lambda features, questions: projection.scores(projection.compress(features), questions)


def evidence(
    encoder: Encoder,
    scorers: Mapping[str, Scorer],
    data: Data,
    *,
    mode: Mode = "fast",
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Evidence]:
    """Ways of scoring beside each other, the centre and chance, on the encoder's own cells and the questions with boxes."""
    found = {name: Evidence() for name in (*scorers, CENTRE, CHANCE)}
    for picture in data.pictures:
        tick()
        asked = [sample for sample in picture.samples if sample.evidence]
        if not asked:
            continue
        features = encoder.dense(picture.still, mode).features.float().cpu()  # [D, h, w]
        texts = encoder.text([sample.question for sample in asked]).cpu()
        view = Grid(1, int(features.shape[1]), int(features.shape[2]))
        worth = {name: scorer(features.flatten(1).T, texts) for name, scorer in scorers.items()}  # [Q, N] each
        worth[CENTRE] = _central(view.h, view.w, picture.size).expand(len(asked), -1)
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
    """Minus the distance in pixels from the picture's centre: `[rows * columns]`."""
    y = ((torch.arange(rows) + 0.5) / rows - 0.5) * size[1]
    x = ((torch.arange(columns) + 0.5) / columns - 0.5) * size[0]
    return -(y[:, None].square() + x[None, :].square()).sqrt().flatten()


def _note(scores: Scores, picture: str, value: float | None) -> None:
    if value is not None:
        scores.setdefault(picture, []).append(value)
