"""Confidence of an answer: the probabilities of its tokens, calibrated where the model's folder has a calibration.

`TokenRecorder` reads each token's probability while the model's own `generate` runs; no token changes. The confidence is the
mean probability of the answer's tokens, its end token included, unless a calibration turns it into the probability that the
answer is right: a logistic regression over a few features of the answer (`features`), stored as `confidence.json` in the
model's folder. It needs a selector that says how sure it is of its choice (`allocation.confidence`).
`benchmarks/doubt.py` fits and measures the calibration of the shipped reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.adapters.base import Adapter
from arr_coc.errors import ModelError, PromptError
from arr_coc.files import replacing
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer, Attempt
from arr_coc.types.budget import Budget

FILE = "confidence.json"
CALIBRATED, TOKEN_PROBABILITY = "calibrated", "mean token probability"  # where a confidence is from
FEATURES = ("surprise", "worst", "length", "doubt")
SMALLEST = 1e-6  # probabilities below it count as this
WIDER = (2, 4)  # times the cells, one after the other, where an answer is not sure; then all
LOG_SCALE = 0.01  # surprises well below it do not differ


class TokenRecorder:
    """The probability of every generated token. One step's logits are kept at a time, not those of all steps.

    The probabilities are those after the processors of the generation's configuration (such as a repetition penalty), and
    before the temperature and the top-k of sampling.
    """

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None  # [B, V] log-probabilities of the token that comes next
        self._found: list[torch.Tensor] = []  # [B] each
        self._length: int | None = None  # of the sequences at the last step
        self._plain = True  # one more token at each step

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> None:
        if self._last is not None and self._length is not None:
            self._plain = self._plain and ids.shape == (len(self._last), self._length + 1)
            if self._plain:
                self._found.append(self._last.gather(1, ids[:, -1:])[:, 0])
        self._length = ids.shape[1]
        self._last = scores.float().log_softmax(-1)

    def probabilities(self, sequences: torch.Tensor) -> torch.Tensor | None:
        """`[B, T]` of the finished sequences; None where tokens did not come one by one (beams, assisted generation)."""
        if self._last is None or self._length is None or not self._plain:
            return None
        if sequences.shape != (len(self._last), self._length + 1):
            return None
        last = self._last.gather(1, sequences[:, -1:].to(self._last.device))[:, 0]
        return torch.stack([*self._found, last], 1).exp().cpu()


def features(probabilities: torch.Tensor, allocations: Sequence[Allocation]) -> dict[str, float]:
    """Features of an answer, from its tokens' probabilities `[T]`, the end token included, and its allocations."""
    surprise = -probabilities.double().clamp(min=SMALLEST).log()
    sure = [one.confidence or 0.0 for one in allocations]
    return {
        "surprise": math.log(LOG_SCALE + float(surprise.sum())),  # of the whole answer
        "worst": math.log(LOG_SCALE + float(surprise.max())),  # of its least probable token
        "length": math.log(len(surprise)),
        "doubt": 1 - min(sure, default=1.0),  # about the choice of the cells
    }


@dataclass(frozen=True)
class Calibration:
    """A logistic regression over `features`: the probability that the answer is right."""

    weights: Mapping[str, float]
    bias: float
    fitted_on: str = ""  # in words

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weights) - set(FEATURES)):
            raise ModelError(f"expected weights for {', '.join(FEATURES)} in a calibration, got {unknown[0]!r}")
        for value in (self.bias, *self.weights.values()):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ModelError(f"expected finite numbers in a calibration, got {value!r}")

    def __call__(self, found: Mapping[str, float]) -> float:
        logit = self.bias + sum(weight * found[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))

    def save(self, folder: Path) -> None:
        with replacing(folder / FILE) as path:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def find(cls, folder: Path | None) -> Calibration | None:
        """The calibration in a model's folder; None if it has none."""
        path = None if folder is None else folder / FILE
        if path is None or not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return cls(stored["weights"], stored["bias"], str(stored.get("fitted_on", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"expected a calibration with weights and bias in {str(path)!r}, got {error!r}") from None


def confidence(
    probabilities: torch.Tensor | None, allocations: Sequence[Allocation], calibration: Calibration | None
) -> tuple[float | None, str]:
    """The confidence in an answer, in [0, 1], and where it is from; None without its tokens' probabilities `[T]`."""
    if probabilities is None or not len(probabilities):
        return None, ""
    if calibration is None or any(one.confidence is None for one in allocations):
        return float(probabilities.double().mean().clamp(0, 1)), TOKEN_PROBABILITY
    return calibration(features(probabilities, allocations)), CALIBRATED


# Looking again: `ask(..., sure=...)`.


def check_sure(sure: float, adapter: Adapter, options: Mapping[str, Any]) -> None:
    """Raise for a threshold that is no probability, and for generation without token probabilities."""
    if isinstance(sure, bool) or not isinstance(sure, int | float) or not 0 <= sure <= 1:
        raise PromptError(f"expected sure as a probability between 0 and 1, got {sure!r}")
    plain = {"num_beams": 1, "num_return_sequences": 1, "assistant_model": None, "prompt_lookup_num_tokens": None}
    for name, value in plain.items():
        if (given := adapter.generation_option(options, name)) is not None and given != value:
            raise PromptError(
                f"expected one plain sequence with sure, which needs its probabilities, got {name}={given!r}"
            )


def is_sure(answer: Answer, sure: float) -> bool:
    """Whether the confidence is enough, that in the choice of the cells included. An unknown one is not."""
    found = [answer.confidence]
    if answer.confidence_source != CALIBRATED:  # a calibrated confidence includes the doubt about the choice
        found += [one.confidence for one in answer.allocations if one.confidence is not None]
    return all(one is not None and one >= sure for one in found)


def is_enough(attempts: Sequence[Answer], sure: float) -> bool:
    """Whether to stop: the last attempt is sure, or it read more cells than the one before and says the same.

    Then more cells would hardly change it: the doubt is about the reading, not about what was read.
    """
    return is_sure(attempts[-1], sure) or (len(attempts) > 1 and attempts[-1].text == attempts[-2].text)


def wider_budgets(answer: Answer, shared: bool) -> Iterator[Budget | list[Budget]]:
    """What to read where an answer is not sure: twice its cells, four times, then all. Nothing if it read all."""
    images: dict[tuple[str, int], list[Allocation]] = {}  # views of one image share its budget
    for number, one in enumerate(answer.allocations):
        images.setdefault(("visual", number) if one.view is None else ("image", one.view.image), []).append(one)
    kept, cells = ([sum(getattr(a, size) for a in some) for some in images.values()] for size in ("k", "n"))
    if kept == cells:
        return
    for times in WIDER:
        more = [min(n, times * max(1, k)) for k, n in zip(kept, cells, strict=True)]
        if more == cells:
            break
        yield sum(more) if shared else list(more)
    yield "all"


def surest(attempts: Sequence[Answer]) -> Answer:
    """The attempt with the highest confidence, which lists all of them and has the time of all of them."""
    best = max(attempts, key=lambda one: one.confidence or 0.0)
    timings: dict[str, float] = {}
    for one in attempts:
        for stage, milliseconds in one.timings.items():
            timings[stage] = timings.get(stage, 0.0) + milliseconds
    tried = tuple(Attempt(one.text, one.confidence, one.tokens["kept"]) for one in attempts)
    return replace(best, timings=timings, tried=tried)
