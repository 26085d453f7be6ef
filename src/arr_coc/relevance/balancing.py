"""Balancing: the scores weighed against each other.

| tension | near 0 | near 1 |
|---|---|---|
| particularize | the question matches all cells alike | it matches few cells |
| exploit | explore: keep whatever carries information | follow the coupling with the question |
| focus | spread over the image | stay with the most relevant cells |

Without a layer, `exploit` sets the weights. With a layer, the layer sets them, and all three tensions only describe the
result. Weights need not sum to 1: two scores may both be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from arr_coc.relevance.knowing import CellScores, scale_to_max
from arr_coc.relevance.strategy import Strategy
from arr_coc.selectors.base import LayerPrediction

SHARPNESS = 4  # relevance is raised to this power: the order stays, peaks become clearer
SCORES = ("information", "salience", "coupling", "text")  # scores that have a weight
SUPPLIED_WEIGHT = 0.3  # weight of each map of memory and attention


@dataclass(frozen=True, eq=False)
class Balanced:
    """Relevance `[M]` in [0, 1], and the weights and tensions behind it."""

    relevance: torch.Tensor
    weights: dict[str, float]
    tensions: dict[str, float]


def weigh(scores: CellScores, strategy: Strategy) -> Balanced:
    """The default: coupling first, as far as it is trusted; information and text for the rest."""
    found = tensions(scores, strategy)
    weights = _weights(scores, strategy, found["exploit"])
    return Balanced(_weighted_sum(scores, weights), weights, found)


def oppose(scores: CellScores, strategy: Strategy) -> Balanced:
    """Fixed formulas, for comparison: coupling x salience against information squared, mixed by each cell's coupling."""
    coupling = scores.coupling if scores.coupling is not None else torch.zeros_like(scores.information)
    compress = 0.5 + 0.5 * (1 - coupling)
    focus, diversify = coupling * scores.salience, scores.information * scores.information
    relevance = scale_to_max(compress * focus + (1 - compress) * diversify)
    return Balanced(relevance, {}, tensions(scores, strategy))


def use_layer_scores(
    scores: CellScores, strategy: Strategy, prediction: LayerPrediction
) -> tuple[CellScores, Balanced]:
    """The layer's own scores in place of the untrained ones, weighed by its own policy."""
    names = ("information", "salience", "coupling")
    own = replace(scores, **{name: prediction.scores[name] for name in names})  # type: ignore[arg-type]
    total = prediction.relevance + _memory(scores)
    return own, Balanced(total.clamp(0, 1), dict(prediction.weights), tensions(own, strategy))


def override(
    scores: CellScores, strategy: Strategy, found: Balanced, exploit: float | None, weights: Mapping[str, float]
) -> Balanced:
    """`found` with a tension and weights set by the caller. Weights that are not given follow the tension."""
    changed, used = dict(found.tensions), dict(found.weights)
    if exploit is not None:
        changed |= {"exploit": exploit, "focus": exploit * changed["particularize"]}
        used = _weights(scores, strategy, exploit)
    used |= weights
    return Balanced(_weighted_sum(scores, used), used, changed)


def tensions(scores: CellScores, strategy: Strategy) -> dict[str, float]:
    """The three tensions, each in [0, 1]."""
    particular = 0.0 if scores.coupling is None else 1 - _evenness(scores.coupling)
    exploit = 0.0 if scores.coupling is None else strategy.coupling
    return {"particularize": particular, "exploit": exploit, "focus": exploit * particular}


def _weights(scores: CellScores, strategy: Strategy, exploit: float) -> dict[str, float]:
    explore = 1 - exploit
    own = scores.salience_weight  # of another source than the texture, which knows text itself
    salience = 0.1 * (1 - scores.text_share) if own is None else 0.1 + (own - 0.1) * explore
    return {
        "coupling": exploit,
        "information": 0.1 + 0.9 * explore,
        "salience": strategy.salience * salience,
        "text": (0.2 + 0.8 * explore) * min(1.0, 4 * scores.text_share),
    }


def _weighted_sum(scores: CellScores, weights: Mapping[str, float]) -> torch.Tensor:
    """Relevance `[M]` as the weighted sum of all scores. A score without a weight does not count."""
    found = {"information": scores.information, "salience": scores.salience, "text": scores.text}
    if scores.coupling is not None:
        found["coupling"] = scores.coupling
    zero = torch.zeros_like(scores.information)
    total = sum((weights.get(name, 0.0) * values for name, values in found.items()), zero)
    return scale_to_max(total + _memory(scores)) ** SHARPNESS


def _memory(scores: CellScores) -> torch.Tensor:
    """What the supplied maps of memory and attention add to the relevance `[M]`. The gaze divides the budget instead."""
    zero = torch.zeros_like(scores.information)
    return sum((SUPPLIED_WEIGHT * values for name, values in scores.supplied.items() if name != "gaze"), zero)


def _evenness(values: torch.Tensor) -> float:
    """Entropy of the values above their median, relative to a uniform distribution: 1 where nothing stands out."""
    above = (values.double() - values.double().median()).clamp(min=0) if len(values) else values.double()
    if len(values) < 2 or not bool(above.sum() > 0):
        return 1.0
    chances = above / above.sum()
    return float(-(chances * chances.clamp(min=1e-300).log()).sum()) / math.log(len(values))
