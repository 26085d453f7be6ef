"""Realizing relevance: the whole path on one screen.

    texture -> knowing -> balancing -> attending

Which cells of an image matter for this question? Score every cell three ways (knowing), weigh the scores against each other
(balancing), and keep as many cells as the budget allows (attending). `strategy` decides when not to trust the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from arr_coc.errors import ArrCocError
from arr_coc.layer.universal import UNKNOWN_SCRIPT, knows_script
from arr_coc.relevance import attending, strategy
from arr_coc.relevance.coupling import UNIVERSAL, Coupled, couple
from arr_coc.relevance.knowing import CellScores, know, scale_to_max
from arr_coc.relevance.strategy import Strategy
from arr_coc.selectors.base import Choice, LayerPrediction, SelectionInput
from arr_coc.selectors.controls import Uniform
from arr_coc.selectors.scoring import relevance_map, scatter_to_grid
from arr_coc.types.question import KINDS, names_something, question_kind

COUPLINGS = ("auto", "layer", "universal", "probe", "embeddings", "tokens", "none")
SALIENCES = ("texture", "archetypes", "encoder")
TEXTURE_SALIENCE = ("odd", "void", "camouflage")  # rules that rest on the texture's own salience
SALIENCE_WEIGHT = 2.0  # of another source's, where the question does not count (`benchmarks/salience_ablation.py`)
BALANCES = ("weigh", "oppose")
CASCADES = ("auto", "on", "off")
MOMENTS = ("auto", "surest", "together")
ASKED_TO = {kind: kind for kind in KINDS} | {"odd": "find what is odd"}
GAZE_FLOOR = 0.1  # worth of a cell without relevance where a budget of `auto` or a mass is counted under a gaze
SHARPNESS = 4  # relevance is raised to this power: the order stays, peaks become clearer
SCORES = ("information", "salience", "coupling", "text")  # scores that have a weight
SUPPLIED_WEIGHT = 0.3  # weight of each map of memory and attention


@dataclass(frozen=True)
class RelevanceSettings:
    """Options of ARR-COC. The defaults are what the measurements recommend."""

    coupling: str = "auto"  # auto, layer, universal, probe, embeddings, tokens or none
    balance: str = "weigh"  # or oppose: fixed formulas
    learned: bool = True  # use trained layers: the model's own, if there is one, and the universal one
    own_layer: bool = True  # False: of the layers, only the universal one
    probe: bool = True  # run the language model for coupling="auto" where no layer is sure
    salience: str = "texture"  # or archetypes, encoder: see `salience.py`
    diverse: bool = True  # near-duplicates are picked last; a layer takes care of that itself
    moments: str = "auto"  # video: surest (frame by frame), together (the best cells of all), or by the question
    explain: bool = False  # score the cells even where `auto` reads all of them anyway
    cascade: str = "off"  # encode windows only where the question's best clusters are: off, on, or auto on large grids
    exploit: float | None = None  # override the tension, in [0, 1]
    weights: Mapping[str, float] = field(default_factory=dict)  # override weights of the scores

    def __post_init__(self) -> None:
        if self.coupling == "scout":  # the former name
            object.__setattr__(self, "coupling", "probe")
        options = {
            "coupling": COUPLINGS,
            "salience": SALIENCES,
            "balance": BALANCES,
            "cascade": CASCADES,
            "moments": MOMENTS,
        }
        for name, known in options.items():
            if (value := getattr(self, name)) not in known:
                raise ArrCocError(f"expected {name} as one of {', '.join(known)}, got {value!r}")
        if self.exploit is not None and not 0 <= self.exploit <= 1:
            raise ArrCocError(f"expected exploit from 0 to 1, got {self.exploit!r}")
        for name, weight in self.weights.items():
            if name not in SCORES or not 0 <= weight < math.inf:
                names = ", ".join(SCORES)
                raise ArrCocError(f"expected weights of at least 0 for {names}, got {name!r} with {weight!r}")


def realized(selection: SelectionInput, settings: RelevanceSettings = RelevanceSettings()) -> Choice:  # noqa: B008
    """The cells that matter for the question."""
    scores, stands_out = know(selection), ""
    usable = replace(
        selection,
        layer=selection.layer if settings.learned and settings.own_layer else None,
        universal=selection.universal if settings.learned else None,
    )
    coupled = couple(usable, scores, settings.coupling, settings.probe)
    if coupled is not None:
        scores = replace(scores, coupling=coupled.values, coupled_by=coupled.by, trust=coupled.trust)
    familiar = coupled is not None and coupled.question_familiar
    whole = coupled is not None and coupled.about_whole_image
    kind = "describe" if whole else question_kind(selection.question.text)
    clear = names_something(selection.question.text) or familiar or whole
    plan = strategy.decide(selection, scores, clear, "read" if familiar else kind)
    if settings.salience != "texture" and plan.name not in TEXTURE_SALIENCE and selection.source is not None:
        scores, stands_out = replace_salience(selection, scores, settings.salience)
    prediction = None if coupled is None or plan.coupling == 0 else coupled.prediction
    if prediction is not None:
        scores, balanced = use_layer_scores(scores, plan, prediction)
    else:
        balanced = weigh(scores, plan) if settings.balance == "weigh" else oppose(scores, plan)
    overridden = bool(settings.weights) or settings.exploit is not None
    if overridden:
        balanced = override(scores, plan, balanced, settings.exploit, settings.weights)
    gaze = scores.supplied.get("gaze")
    worth = balanced.relevance if gaze is None else gaze.square() * (GAZE_FLOOR + balanced.relevance)
    k = attending.how_many(worth, selection.k, selection.mass)
    if gaze is not None:
        keep = selection.candidates[attending.foveate(balanced.relevance, gaze, k)]
    elif plan.even:
        keep = Uniform().select(replace(selection, k=k))
    elif plan.round_robin:
        keep = selection.candidates[strategy.round_robin(balanced.relevance, k, strategy.components(selection, scores))]
    elif plan.instances:
        keep = selection.candidates[strategy.instances(balanced.relevance, k, strategy.components(selection, scores))]
    else:
        ranking, tokens = balanced.relevance, selection.tokens if settings.diverse and prediction is None else None
        if prediction is not None and not overridden:
            ranking = _favour_lines(selection, scores, ranking)
        keep = selection.candidates[attending.most_relevant(ranking, k, tokens)]
    held = held_share(selection, coupled, keep)
    doubts = stated_doubts(coupled)
    by = f" (coupling by {scores.coupled_by})" if scores.coupled_by else ""
    if usable.universal is not None and scores.coupled_by != "layer" and not knows_script(selection.question.text):
        by += f"; {UNKNOWN_SCRIPT}"
    looked = "" if gaze is None else "; where a person looks decides how much of the budget goes where"
    weights = {f"weight of {name}": value for name, value in balanced.weights.items()}
    return Choice(
        keep,
        relevance=relevance_map(selection, balanced.relevance),
        scores={name: scatter_to_grid(selection, values) for name, values in scores.by_name().items()},
        tensions={
            "trust": scores.trust,
            **doubts,
            **({} if held is None else {"held": held}),
            **balanced.tensions,
            **weights,
        },
        strategy=f"{plan.name}: {plan.why}; asked to {ASKED_TO[kind]}{by}{looked}{stands_out}",
        rule=plan.name,
        coupled_by=scores.coupled_by,
        confidence=strategy.confidence(
            plan, scores.coupled_by, held, scores.trust, len(keep) / max(1, selection.grid.n)
        ),
    )


def replace_salience(selection: SelectionInput, scores: CellScores, source: str) -> tuple[CellScores, str]:
    """The scores with the salience of another source, and words that say so."""
    from arr_coc.relevance.salience import salience_by

    values, words = salience_by(source, selection, scores.salience)
    return replace(scores, salience=values, salience_weight=SALIENCE_WEIGHT), f"; {words}"


def _favour_lines(selection: SelectionInput, scores: CellScores, ranking: torch.Tensor) -> torch.Tensor:
    """A layer's ranking with whole lines of text first. A layer trained for the model knows before encoding what it needs."""
    if scores.coupled_by == UNIVERSAL:
        bonus = attending.UNIVERSAL_LINES
    elif selection.tokens is not None:
        bonus = attending.LINES
    else:
        return ranking
    return attending.favour_lines(ranking, scores.text, selection.grid, selection.candidates, bonus)


def stated_doubts(coupled: Coupled | None) -> dict[str, float]:
    """The universal layer's calibrated probabilities: all evidence is in its best eighth, and what was asked for is not there."""
    found = None if coupled is None or coupled.prediction is None else coupled.prediction
    return {} if found is None or found.found is None else {"found": found.found, "absent": found.absent}


def held_share(selection: SelectionInput, coupled: Coupled | None, keep: torch.Tensor) -> float | None:
    """The share of the source's mass (where it says the answer is) on the kept cells `[K]`; None where it cannot say."""
    if coupled is None or coupled.chances is None:
        return None
    kept = coupled.chances[torch.isin(selection.candidates, keep)].sum()
    return float((kept / coupled.chances.sum().clamp(min=1e-9)).clamp(0, 1))


# Balancing: the scores weighed against each other.


@dataclass(frozen=True, eq=False)
class Balanced:
    """Relevance `[M]` in [0, 1], and the weights and tensions behind it.

    | tension | near 0 | near 1 |
    |---|---|---|
    | particularize | the question matches all cells alike | it matches few cells |
    | exploit | explore: keep whatever carries information | follow the coupling with the question |
    | focus | spread over the image | stay with the most relevant cells |

    Without a layer, `exploit` sets the weights. With a layer, the layer sets them, and all three tensions only describe the
    result. Weights need not sum to 1: two scores may both be right.
    """

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
