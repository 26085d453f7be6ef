"""Balancing: the ways of knowing weighed against each other.

| tension | near 0 | near 1 |
|---|---|---|
| particularize | the question couples with nothing in particular | with few cells: keep those and compress the rest |
| exploit | explore whatever carries information | trust what the question couples with |
| focus | spread over the picture | stay with what is most relevant |

`exploit` sets the weights; the other two tell what came of it. Weights do not sum to 1: two ways of knowing may both be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from arr_coc.layer.inference import Judgement
from arr_coc.relevance.knowing import Known, unit
from arr_coc.relevance.strategy import Strategy

PEAKED = 4  # the power that relevance is raised to: no order changes, but what stands out stands out
WAYS = ("information", "salience", "coupling", "text")  # what can be weighed
SUPPLIED = 0.3  # the weight of what a caller supplies: memory, attention, gaze


@dataclass(frozen=True, eq=False)
class Balanced:
    """Relevance `[M]` from 0 to 1, and how it came about."""

    relevance: torch.Tensor
    weights: dict[str, float]
    tensions: dict[str, float]


def tensions(known: Known, strategy: Strategy) -> dict[str, float]:
    """Where between their poles the three tensions stand, from 0 to 1."""
    particular = 0.0 if known.coupling is None else 1 - _evenness(known.coupling)
    exploit = 0.0 if known.coupling is None else strategy.coupling
    return {"particularize": particular, "exploit": exploit, "focus": exploit * particular}


def weigh(known: Known, strategy: Strategy) -> Balanced:
    """The default: the question first, as far as its coupling is to be trusted; information, and writing, for the rest."""
    found = tensions(known, strategy)
    weights = _weights(known, strategy, found["exploit"])
    return Balanced(_sum(known, weights), weights, found)


def by_hand(
    known: Known, strategy: Strategy, found: Balanced, exploit: float | None, weights: Mapping[str, float]
) -> Balanced:
    """What was found, with a tension and weights that somebody sets: the weights follow the tension where none is given."""
    told = dict(found.tensions)
    mine = dict(found.weights)
    if exploit is not None:
        told |= {"exploit": exploit, "focus": exploit * told["particularize"]}
        mine = _weights(known, strategy, exploit)
    mine |= weights
    return Balanced(_sum(known, mine), mine, told)


def learned(known: Known, strategy: Strategy, judgement: Judgement) -> tuple[Known, Balanced]:
    """What a trained layer's own policy makes of its own scores; and those scores in place of the untrained ones."""
    scores = judgement.scores
    own = replace(known, information=scores["information"], salience=scores["salience"], coupling=scores["coupling"])
    total = judgement.relevance
    for values in known.supplied.values():
        total = total + SUPPLIED * values
    return own, Balanced(total.clamp(0, 1), dict(judgement.weights), tensions(own, strategy))


def oppose(known: Known, strategy: Strategy) -> Balanced:
    """The fixed formulas: every cell's coupling decides whether it is compressed or particularized."""
    coupling = known.coupling if known.coupling is not None else torch.zeros_like(known.information)
    compress = 0.5 + 0.5 * (1 - coupling)
    focus, diversify = coupling * known.salience, known.information * known.information
    return Balanced(unit(compress * focus + (1 - compress) * diversify), {}, tensions(known, strategy))


def _weights(known: Known, strategy: Strategy, exploit: float) -> dict[str, float]:
    explore = 1 - exploit
    return {
        "coupling": exploit,
        "information": 0.1 + 0.9 * explore,
        "salience": 0.1 * strategy.salience * (1 - known.writing),
        "text": (0.2 + 0.8 * explore) * min(1.0, 4 * known.writing),
    }


def _sum(known: Known, weights: Mapping[str, float]) -> torch.Tensor:
    """Relevance `[M]` as the weighted sum of all ways; one without a weight does not count."""
    ways = {"information": known.information, "salience": known.salience, "text": known.text}
    if known.coupling is not None:
        ways["coupling"] = known.coupling
    total = sum((weights.get(name, 0.0) * values for name, values in ways.items()), torch.zeros_like(known.information))
    for values in known.supplied.values():
        total = total + SUPPLIED * values
    return unit(total) ** PEAKED


def _evenness(values: torch.Tensor) -> float:
    """Entropy of the values above their median over that of equal ones: 1 where nothing stands out."""
    above = (values.double() - values.double().median()).clamp(min=0) if len(values) else values.double()
    if len(values) < 2 or not bool(above.sum() > 0):
        return 1.0
    chances = above / above.sum()
    return float(-(chances * chances.clamp(min=1e-300).log()).sum()) / math.log(len(values))
