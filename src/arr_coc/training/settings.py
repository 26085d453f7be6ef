"""How a layer learns."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from arr_coc.errors import ArrCocError
from arr_coc.training.gates import METHODS

SOURCES = ("boxes", "attention", "answers")
LEAST, MOST = 1 / 16, 1 / 2  # shares of the cells that answers are asked for with: one layer serves every budget


@dataclass(frozen=True)
class Settings:
    """`learn` is what it learns from: boxes around the evidence, the model's own attention, the loss of its answers."""

    learn: tuple[str, ...] = ("boxes",)
    gate: str = "straight-through"  # how the loss of the answers reaches the scores
    steps: int = 2000
    minutes: float | None = None  # at most; the learning rate then follows the clock
    lr: float = 2e-3
    last_lr: float = 0.02  # of the highest
    warmup_steps: int = 50
    weight_decay: float = 0.02
    pictures: int = 8  # to a step
    questions: int = 4  # of each picture, to a step
    answers: int = 1  # questions to a step that go through the model itself
    answer_weight: float = 0.3
    blind: float = 0.35  # share of the pictures that are judged before they are encoded
    partly: float = 0.2  # share of those that are encoded in part
    average: float = 0.995  # of the weights, over steps
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [one for one in self.learn if one not in SOURCES]
        if wrong or not self.learn:
            raise ArrCocError(f"expected to learn from {', '.join(SOURCES)}, got {', '.join(wrong) or 'nothing'}")
        if self.gate not in METHODS:
            raise ArrCocError(f"expected a gate among {', '.join(METHODS)}, got {self.gate!r}")
        for name in ("steps", "pictures", "questions", "answers"):
            if getattr(self, name) < 1:
                raise ArrCocError(f"expected {name} from 1 on, got {getattr(self, name)}")
        if not 0 < self.lr < math.inf or (self.minutes is not None and not self.minutes > 0):
            raise ArrCocError(f"expected a learning rate and minutes above 0, got {self.lr:g} and {self.minutes}")

    def chance(self, what: str, step: int, rank: int) -> random.Random:
        """Where chance comes from at one step, in one of the processes."""
        return random.Random(f"{what} {self.seed}/{rank}/{step}")

    def progress(self, step: int, seconds: float) -> float:
        """How far the schedule has come, from 0 to 1: by steps or by the clock, whichever is ahead."""
        by_clock = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(step / self.steps, by_clock))

    def rate(self, step: int, progress: float) -> float:
        """Learning rate: a linear start, then a cosine."""
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * min(1.0, (step + 1) / self.warmup_steps) * (self.last_lr + (1 - self.last_lr) * cosine)
