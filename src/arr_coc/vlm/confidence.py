"""Confidence of an answer, and whether it is refused: token probabilities, the picture and the layers, calibrated.

The confidence is the mean probability of the answer's tokens, its end token included, unless the model's folder has a
calibration (`confidence.json`): logistic regressions over a few features of the answer and of what it is about. It needs a selector that
says how sure it is of its choice (`allocation.confidence`). A calibration may also know when nothing in the picture answers
the question (`Refusal`). `benchmarks/doubt.py` fits and measures the calibration of the shipped reader.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arr_coc.errors import ModelError, PromptError
from arr_coc.files import replacing
from arr_coc.layer.inference import LayerPredictor
from arr_coc.relevance.knowing import TEXT_THRESHOLD, background_share
from arr_coc.relevance.strategy import void
from arr_coc.selectors.base import SelectionInput
from arr_coc.selectors.scoring import pool_channels, score_cells
from arr_coc.types.allocation import Allocation
from arr_coc.types.levels import Levels
from arr_coc.types.question import KINDS
from arr_coc.types.question import probabilities as kind_probabilities

FILE = "confidence.json"
CALIBRATED, TOKEN_PROBABILITY = "calibrated", "mean token probability"  # where a confidence is from
BOUNDED = "bounded: cells of different sizes are not calibrated"
MOST_SURE = 0.93  # of such an answer: about as many of the surest ones are right (benchmarks/large_pages.py report)
SMALLEST = 1e-6  # probabilities below it count as this
LOG_SCALE = 0.01  # surprises well below it do not differ
LOGIT_LIMIT = 6.0  # log-odds of the layer's statements beyond it count as this
FAMILIAR = 1.0  # novelty of a question up to which it is worded like one of the layer's training questions
MOST_NOVEL = 3.0  # novelty of a question above it counts as this
PAGE_SCALE = 0.003  # page likeness well below it does not differ


# What is known about an answer, as numbers: `facts`. All of them exist after an answer, apart from the universal layer's.


def answer_facts(probabilities: torch.Tensor, allocations: Sequence[Allocation]) -> dict[str, float]:
    """Of its tokens' probabilities `[T]`, the end token included, and of its allocations."""
    surprise = -probabilities.double().clamp(min=SMALLEST).log()
    found = {
        "surprise": math.log(LOG_SCALE + float(surprise.sum())),  # of the whole answer
        "worst": math.log(LOG_SCALE + float(surprise.max())),  # of its least probable token
        "length": math.log(len(surprise)),
    }
    sure = [one.confidence for one in allocations]
    known = [one for one in sure if one is not None]
    if len(known) == len(sure):
        found["doubt"] = 1 - min(known, default=1.0)  # about the choice of the cells
    if any(isinstance(one.grid, Levels) and one.grid.coarser for one in allocations):
        found["mixed"] = 1.0  # cells of different sizes, which no calibration was fitted on
    return found


def word_facts(selection: SelectionInput, answer: str) -> dict[str, float]:
    """Of the words: whether the answer is of the kind that was asked for, and how far the question is from those that were taught."""
    asked, layer = selection.question, selection.layer
    chances = dict(zip(KINDS, kind_probabilities(asked.text).tolist(), strict=True))
    found = {"misfit": float(not fits(asked.text, answer)), "beyond": 1 - chances["read"] - chances["find"]}
    novelty = layer.question_novelty(asked) if isinstance(layer, LayerPredictor) else None
    return found if novelty is None else {**found, "novel": min(MOST_NOVEL, novelty)}


def picture_facts(selections: Sequence[SelectionInput]) -> dict[str, float]:
    """Of the pictures of one question: how much there is to read, of the one with the most."""
    return max((_page_facts(one) for one in selections), key=lambda found: found["page"], default={})


def _page_facts(selection: SelectionInput) -> dict[str, float]:
    (texture,) = selection.textures
    text = score_cells(selection, lambda texture, view: pool_channels(texture, view, ("text",))[0].cpu())
    share = float((text > TEXT_THRESHOLD).float().mean()) if len(text) else 0.0
    page = share * background_share(texture)  # as `CellScores.is_page` has it
    empty = texture.once("void", partial(void, texture)) != ""
    ink = float(text.max()) if len(text) else 0.0
    return {"page": math.log(PAGE_SCALE + page), "text": math.sqrt(share), "ink": ink, "void": float(empty)}


def layer_facts(selections: Sequence[SelectionInput]) -> dict[str, float]:
    """What the universal layer says about one question, of the picture where it finds most; empty without that layer."""
    found = [one.universal(one).logits[:2] for one in selections if one.universal is not None]
    if not found:
        return {}
    best = min(found, key=lambda logits: logits[1])
    return {
        name: max(-LOGIT_LIMIT, min(LOGIT_LIMIT, logit)) for name, logit in zip(("found", "absent"), best, strict=True)
    }


def _log_odds(value: float) -> float:
    value = min(1 - SMALLEST, max(SMALLEST, value))
    return max(-LOGIT_LIMIT, min(LOGIT_LIMIT, math.log(value / (1 - value))))


_YES_OR_NO = re.compile(
    r"^\W*(please\W+)?(is|are|was|were|am|isn't|aren't|does|did|do(?! you (see|know|have) the)|has|have|had"
    r"|(can|could|will|would)(?! you (please )?(tell|give|read|look|show|find|say|name|write|extract)))\b",
    re.IGNORECASE,
)
_AS_ASKED = (  # a pattern of questions, and one that their answers have to contain
    (_YES_OR_NO, re.compile(r"^(yes|no)\b", re.IGNORECASE)),
    (
        re.compile(
            r"\bhow (many|much)\b|\bwhen\b"
            r"|\b(total|price|sum|amount|date|number|time|rate|plate|phone|iban|temperature|percentage)\W*$",
            re.IGNORECASE,
        ),
        re.compile(r"\d|\bnone\b"),
    ),
    (re.compile(r"^\W*(who|where)\b", re.IGNORECASE), re.compile(r"[^\W\d_]{2}")),
)


def fits(question: str, answer: str) -> bool:
    """Whether an answer is of the kind that was asked for: yes or no, a number, a name.

    >>> fits("Is there a cat?", "SERI KEMBANGAN"), fits("Is there a cat?", "no"), fits("Can you tell me the date?", "1 May")
    (False, True, True)
    >>> fits("How much is it?", "BAKERY"), fits("Who sold it?", "12.50"), fits("What is the company?", "7-ELEVEN")
    (False, False, True)
    """
    return all(said.search(answer) for asked, said in _AS_ASKED if asked.search(question))


# What follows from the facts.

ANSWER_FEATURES = ("surprise", "worst", "length", "doubt", "own", "start")
WORD_FEATURES = ("misfit", "beyond", "novel")
PICTURE_FEATURES = ("page", "text", "ink", "void")
LAYER_FEATURES = ("found", "absent")
FEATURES = (*ANSWER_FEATURES, *WORD_FEATURES, *PICTURE_FEATURES, *LAYER_FEATURES)
ABSENT = "odds"  # feature of a calibration: the log-odds of its refusal
REFUSE = ("auto", "off")
REASONS = {
    "own": "the model itself says that it is not there",
    "picture": "there is no document and nothing to read in the picture",
    "words": "the answer is not of the kind that was asked for",
    "layer": "the layer finds nothing in the picture that the question is about",
    "answer": "the probabilities of the answer's tokens speak against it",
}
_GROUPS = {"picture": PICTURE_FEATURES, "words": WORD_FEATURES, "layer": LAYER_FEATURES, "answer": ANSWER_FEATURES}


def _checked(weights: Mapping[str, float], bias: float) -> None:
    if unknown := sorted(set(weights) - {*FEATURES, ABSENT}):
        raise ModelError(f"expected weights for {', '.join(FEATURES)} in a calibration, got {unknown[0]!r}")
    for value in (bias, *weights.values()):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"expected finite numbers in a calibration, got {value!r}")


def _logistic(weights: Mapping[str, float], bias: float, facts: Mapping[str, float]) -> float:
    logit = bias + sum(weight * facts[name] for name, weight in weights.items())
    return _sigmoid(logit)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


@dataclass(frozen=True)
class Refusal:
    """When nothing in the picture answers the question: a network of one hidden layer, and from which probability on it is refused."""

    features: tuple[str, ...]
    hidden: tuple[tuple[float, ...], ...]  # [H][features] weights of each hidden unit
    shift: tuple[float, ...]  # [H]
    out: tuple[float, ...]  # [H]
    bias: float
    usual: Mapping[str, float]  # the mean of each feature over answers that are in the picture: of those not known, too
    threshold: float = 0.5
    clear: tuple[float, float] = (0.0, 1.0)  # probabilities outside of which the universal layer is not asked
    sure: tuple[float, float, float] = (
        1.0,
        0.0,
        0.0,
    )  # of a refusal: weights of its log-odds and of `own`, and a constant
    says: tuple[str, ...] = ()  # the model's own words for it
    text: str = "not in the picture"  # in place of the answer

    def __post_init__(self) -> None:
        for unit in self.hidden:
            _checked(dict(zip(self.features, unit, strict=True)), 0.0)
        _checked(self.usual, self.bias)
        if missing := sorted(set(self.features) - set(self.usual)):
            raise ModelError(f"expected the usual value of each feature of a refusal, got none for {missing[0]!r}")
        if not isinstance(self.threshold, int | float) or not 0 < self.threshold < 1:
            raise ModelError(f"expected the threshold of a refusal between 0 and 1, got {self.threshold!r}")
        sizes = [len(part) for part in (self.hidden, self.shift, self.out, self.clear, self.sure)]
        if sizes != [sizes[0]] * 3 + [2, 3]:
            raise ModelError(f"expected as many hidden, shift and out, 2 clear and 3 sure in a refusal, got {sizes}")

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Refusal:
        """From what `dataclasses.asdict` gives, after JSON."""
        lists = {name: tuple(stored[name]) for name in ("features", "shift", "out", "clear", "sure", "says")}
        return cls(**{**stored, **lists, "hidden": tuple(map(tuple, stored["hidden"]))})

    def is_own(self, text: str) -> bool:
        """Whether the model itself says that it is not in the picture."""
        return text.strip().strip(".").lower() in self.says

    def odds(self, facts: Mapping[str, float]) -> float:
        """Log-odds that nothing in the picture answers the question; at most `LOGIT_LIMIT` from 0."""
        known = {**self.usual, **facts}
        values = [known[name] for name in self.features]
        units = (
            math.tanh(shift + sum(map(operator.mul, weights, values)))
            for weights, shift in zip(self.hidden, self.shift, strict=True)
        )
        return max(-LOGIT_LIMIT, min(LOGIT_LIMIT, self.bias + sum(map(operator.mul, self.out, units))))

    def absent(self, facts: Mapping[str, float]) -> float:
        """The probability that nothing in the picture answers the question."""
        return _sigmoid(self.odds(facts))

    def is_clear(self, facts: Mapping[str, float]) -> bool:
        """Whether the decision is clear without the universal layer, which costs more than everything else here.

        That something is there is clear only for a question worded like those that the model's own layer was trained on.
        """
        low, high = self.clear
        absent = self.absent(facts)
        return absent >= high or (absent <= low and facts.get("novel", MOST_NOVEL) <= FAMILIAR)

    def confidence(self, facts: Mapping[str, float]) -> float:
        """The probability that a refusal is right."""
        scale, own, bias = self.sure
        return _sigmoid(scale * self.odds(facts) + own * facts.get("own", 0.0) + bias)

    def reason(self, facts: Mapping[str, float]) -> str:
        """What speaks for a refusal, in words: features that suffice, or those without which it would be least likely."""
        if facts.get("own"):
            return REASONS["own"]
        without: dict[str, float] = {}
        for group, names in _GROUPS.items():
            if self.absent({name: value for name, value in facts.items() if name in names}) >= self.threshold:
                return REASONS[group]
            without[group] = self.odds({**facts, **{name: self.usual[name] for name in names if name in self.usual}})
        return REASONS[min(without, key=lambda group: without[group])]


@dataclass(frozen=True)
class Calibration:
    """A logistic regression over the facts: the probability that the answer is right. And, where it is known, the refusal."""

    weights: Mapping[str, float]
    bias: float
    fitted_on: str = ""  # in words
    refusal: Refusal | None = None

    def __post_init__(self) -> None:
        _checked(self.weights, self.bias)

    def __call__(self, facts: Mapping[str, float]) -> float:
        usual = {} if self.refusal is None else {**self.refusal.usual, ABSENT: self.refusal.odds(facts)}
        return _logistic(self.weights, self.bias, {**usual, **facts})

    def save(self, folder: Path) -> None:
        with replacing(folder / FILE) as path:
            lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(self).items())
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def find(cls, folder: Path | None) -> Calibration | None:
        """The calibration in a model's folder; None if it has none."""
        path = None if folder is None else folder / FILE
        if path is None or not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            refusal = stored.get("refusal")
            made = None if refusal is None else Refusal.from_dict(refusal)
            return cls(stored["weights"], stored["bias"], str(stored.get("fitted_on", "")), made)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"expected a calibration with weights and bias in {str(path)!r}, got {error!r}") from None


@dataclass(frozen=True)
class Verdict:
    """What is said about one answer."""

    confidence: float | None  # that it is right, or that it is rightly refused
    source: str = ""
    refused: str = ""  # why; empty if the answer stands
    facts: Mapping[str, float] = field(default_factory=dict)


def check_refuse(refuse: str) -> None:
    if refuse not in REFUSE:
        raise PromptError(f"expected refuse as one of {', '.join(REFUSE)}, got {refuse!r}")


def judge(
    text: str,
    probabilities: torch.Tensor | None,
    allocations: Sequence[Allocation],
    calibration: Calibration | None,
    about: Callable[[], Sequence[SelectionInput]] | None = None,
    start: float | None = None,
    refuse: str = "auto",
) -> Verdict:
    """The confidence in an answer, and whether nothing in the picture answers the question.

    `probabilities` `[T]`: of its tokens. `about`: what a selector would get, for each picture of the question; None where the
    pictures are not known. `start`: the probability that the model's own refusal began.
    """
    if probabilities is None or not len(probabilities):
        return Verdict(None)
    refusal = None if calibration is None else calibration.refusal
    facts = answer_facts(probabilities, allocations)
    if refusal is not None:
        facts["own"] = float(refusal.is_own(text))
        if start is not None:
            facts["start"] = _log_odds(start)
        selections = [] if about is None else list(about())
        if selections and all(one.source is not None and one.kind == "image" for one in selections):
            facts |= word_facts(selections[0], text) | picture_facts(selections)
            if not refusal.is_clear(facts):
                facts |= layer_facts(selections)
    return conclude(facts, calibration, refuse, float(probabilities.double().mean().clamp(0, 1)))


def conclude(facts: Mapping[str, float], calibration: Calibration | None, refuse: str, mean: float) -> Verdict:
    """The verdict on the facts. `mean`: the mean token probability, for a model or a selector that is not calibrated.

    Where an image was read in cells of different sizes, no calibration holds, and nearly certain tokens are wrong more often
    than they say. The confidence is then at most `MOST_SURE`, and its source says so.
    """
    if facts.get("mixed"):
        found = conclude(
            {name: value for name, value in facts.items() if name not in ("mixed", "doubt")}, calibration, refuse, mean
        )
        sure = None if found.confidence is None else min(found.confidence, MOST_SURE)
        return replace(found, confidence=sure, source=BOUNDED, facts=facts)
    refusal = None if calibration is None else calibration.refusal
    if refusal is not None and "page" in facts:
        absent = refusal.absent(facts)
        if (facts["own"] or absent >= refusal.threshold) and refuse != "off":
            return Verdict(refusal.confidence(facts), CALIBRATED, refusal.reason(facts), facts)
    if calibration is None or "doubt" not in facts:
        return Verdict(mean, TOKEN_PROBABILITY, "", facts)
    return Verdict(calibration(facts), CALIBRATED, "", facts)
