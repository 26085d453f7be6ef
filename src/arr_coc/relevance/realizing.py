"""Realizing relevance: the whole path on one screen.

    texture -> knowing -> balancing -> attending

Which cells of a picture matter for this question? Score every cell three ways (knowing), weigh the ways against each other
(balancing), and keep as many cells as the budget allows (attending), unless the scores are not to be trusted (strategy).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from arr_coc.embedding.encoder import STOP_WORDS, subject
from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.relevance import attending, balancing, coupling, spreading, strategy
from arr_coc.relevance.coupling import Coupled
from arr_coc.relevance.knowing import Known, know
from arr_coc.selectors.base import Choice, Sight
from arr_coc.selectors.ranking import laid_out, on_grid
from arr_coc.selectors.uniform import Uniform

COUPLINGS = ("auto", "layer", "scout", "embeddings", "tokens", "none")
CASCADES = ("auto", "on", "off")
MOMENTS = ("auto", "surest", "together")
BALANCES = {"weigh": balancing.weigh, "oppose": balancing.oppose}


@dataclass(frozen=True)
class Settings:
    """What can be chosen; the defaults are what the measurements recommend."""

    coupling: str = "auto"  # auto, layer, scout, embeddings, tokens or none
    balance: str = "weigh"  # or oppose: fixed formulas
    learned: bool = True  # use the layer that was trained for the model, where there is one
    diverse: bool = True  # near-copies wait until nothing else is left; a layer has seen to that itself

    moments: str = "auto"  # of a video, on one budget: surest (one after another), together (the best of all), or as the question is
    cascade: str = "off"  # look closely only where it may matter: off, on, or auto on large grids (see `cascade.py`)

    exploit: float | None = None  # the tension, from 0 to 1, set by hand; None: as it is found
    weights: Mapping[str, float] = field(default_factory=dict)  # those of the ways of knowing that are set by hand

    def __post_init__(self) -> None:
        for what, value, known in (
            ("coupling", self.coupling, COUPLINGS), ("balance", self.balance, BALANCES), ("cascade", self.cascade, CASCADES),
            ("moments", self.moments, MOMENTS),
        ):  # fmt: skip
            if value not in known:
                raise ArrCocError(f"expected {what} as one of {', '.join(known)}, got {value!r}")
        if self.exploit is not None and not 0 <= self.exploit <= 1:
            raise ArrCocError(f"expected exploit from 0 to 1, got {self.exploit!r}")
        for way, weight in self.weights.items():
            if way not in balancing.WAYS or not 0 <= weight < math.inf:
                raise ArrCocError(
                    f"expected weights from 0 on of {', '.join(balancing.WAYS)}, got {way!r} with {weight!r}"
                )


def realized(sight: Sight, settings: Settings = Settings()) -> Choice:  # noqa: B008
    """The cells of a sight that matter for its question."""
    known = know(sight)
    coupled = couple(sight if settings.learned else replace(sight, learned=None), known, settings.coupling)
    if coupled is not None:
        known = replace(known, coupling=coupled.values, coupled_by=coupled.by, trust=coupled.trust)
    clear = names_something(sight.words.text) or (coupled is not None and coupled.familiar)
    plan = strategy.decide(sight, known, clear)
    judgement = None if coupled is None or plan.coupling == 0 else coupled.judgement
    if judgement is not None:
        known, balanced = balancing.learned(known, plan, judgement)
    else:
        balanced = BALANCES[settings.balance](known, plan)
    by_hand = bool(settings.weights) or settings.exploit is not None
    if by_hand:
        balanced = balancing.by_hand(known, plan, balanced, settings.exploit, settings.weights)
    k = attending.how_many(balanced.relevance, sight.k, sight.mass)
    if plan.even:
        keep = Uniform().select(replace(sight, k=k))
    elif plan.in_turn:
        keep = sight.candidates[spreading.in_turn(balanced.relevance, k, spreading.things(sight))]
    else:
        worth, tokens = balanced.relevance, sight.tokens if settings.diverse and judgement is None else None
        if judgement is not None and sight.tokens is not None and not by_hand:  # chances, of what will be read
            worth = attending.lines_first(worth, known.text, sight.grid, sight.candidates)
        keep = sight.candidates[attending.most_relevant(worth, k, tokens)]
    return Choice(
        keep,
        relevance=on_grid(sight, balanced.relevance),
        scores={name: laid_out(sight, values) for name, values in known.scores().items()},
        tensions={
            "trust": known.trust,
            **balanced.tensions,
            **{f"weight of {name}": value for name, value in balanced.weights.items()},
        },
        strategy=f"{plan.name}: {plan.why}{f' (coupling by {known.coupled_by})' if known.coupled_by else ''}",
    )


def couple(sight: Sight, known: Known, how: str) -> Coupled | None:
    """What the cells have to do with the question, by the best that is at hand; None where nothing is."""
    if not sight.words.text.strip() or how == "none":
        return None
    strange = False  # to a layer that was trained with pages, say
    if how in ("auto", "layer") and sight.learned is not None:
        judged = coupling.by_layer(sight)
        if how == "layer" or (judged.trust >= coupling.ENOUGH and not judged.new):
            return judged
        if judged.trust >= coupling.ENOUGH:
            return coupling.by_both(sight, judged, known.information + known.text)
        strange = judged.strange
    elif how == "layer":
        raise SelectorError(
            "expected a learned layer for coupling 'layer', and this model has none: arr-coc train makes one"
        )
    if how == "auto":
        page = known.written and not strange
        how = "scout" if sight.send is not None and (page or sight.couple is None) else "embeddings"
        if how == "embeddings" and sight.couple is None:
            return None
    if how == "scout":
        return coupling.by_scout(sight, known.information + known.text)
    return coupling.by_embeddings(sight) if how == "embeddings" else coupling.by_tokens(sight)


def names_something(question: str) -> bool:
    """Whether a question has words that are about anything."""
    return any(word not in STOP_WORDS for word in subject(question).split())
