"""Settings of layer training, and its batches: pictures of one grid with some questions each."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from arr_coc.errors import ArrCocError
from arr_coc.layer.batching import run_batch
from arr_coc.layer.inference import CellFeatures
from arr_coc.layer.model import ArrCocLayer, LayerOutput
from arr_coc.layer.novelty import pad_questions
from arr_coc.training.examples import ExampleQuestion, TrainingExample
from arr_coc.training.gates import METHODS
from arr_coc.training.loop import cosine_rate

SOURCES = ("boxes", "attention", "answers")
MIN_KEPT, MAX_KEPT = 1 / 16, 1 / 2  # shares of the cells in answer losses: one layer serves every budget


@dataclass(frozen=True)
class LayerTrainingSettings:
    """`learn` lists the sources: boxes around the evidence, the model's own attention, the loss of its answers."""

    learn: tuple[str, ...] = ("boxes",)
    gate: str = "straight-through"  # how the answer loss reaches the scores
    steps: int = 2000
    minutes: float | None = None  # at most; the learning rate then follows the clock
    lr: float = 2e-3
    last_lr: float = 0.02  # share of `lr` at the end
    warmup_steps: int = 50
    weight_decay: float = 0.02
    pictures: int = 8  # to a step
    questions: int = 4  # of each picture, to a step
    answers: int = 1  # questions to a step that run the model
    answer_weight: float = 0.3
    blind: float = 0.35  # share of the views without tokens, as before encoding
    partly: float = 0.2  # share of the views with some tokens
    average: float = 0.995  # decay of the weights' moving average
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

    @property
    def needs_model(self) -> bool:
        """Whether some losses run the model."""
        return bool({"attention", "answers"} & set(self.learn))

    def rng(self, purpose: str, step: int, rank: int) -> random.Random:
        """The random numbers of one step on one rank."""
        return random.Random(f"{purpose} {self.seed}/{rank}/{step}")

    def rate(self, step: int, progress: float) -> float:
        """Learning rate of a step."""
        return cosine_rate(self.lr, step, progress, warmup_steps=self.warmup_steps, last=self.last_lr)


@dataclass(frozen=True, eq=False)
class LayerBatch:
    """Pictures of one shape with `Q` questions, on the layer's device."""

    pictures: list[list[CellFeatures]]
    owner: torch.Tensor  # [Q] the picture of each question
    words: torch.Tensor  # [Q, T, W]
    there: torch.Tensor  # [Q, T]
    questions: list[ExampleQuestion]
    examples: list[TrainingExample]  # of each question

    def predict(self, layer: ArrCocLayer) -> LayerOutput:
        return run_batch(layer, self.pictures, self.owner, self.words, self.there)


class BatchSampler:
    """Random batches; a shape is drawn as often as it has pictures.

    A batch depends only on the seed, the rank and the step, so that a resumed run draws the same ones.
    """

    def __init__(self, examples: Sequence[TrainingExample], settings: LayerTrainingSettings, rank: int = 0) -> None:
        self.settings, self.rank = settings, rank
        self.shapes: dict[object, list[TrainingExample]] = defaultdict(list)
        for example in examples:
            self.shapes[example.shape].append(example)
        self.keys = list(self.shapes)
        self.counts = [len(self.shapes[key]) for key in self.keys]

    def at(self, step: int, device: torch.device) -> LayerBatch:
        rng = self.settings.rng("draw", step, self.rank)
        alike = self.shapes[rng.choices(self.keys, self.counts)[0]]
        examples = rng.sample(alike, min(self.settings.pictures, len(alike)))
        pictures = [[self._drop_tokens(view, device, rng) for view in example.views] for example in examples]
        questions = [
            (number, question)
            for number, example in enumerate(examples)
            for question in rng.sample(example.questions, min(self.settings.questions, len(example.questions)))
        ]
        return collate(pictures, examples, questions, device)

    def _drop_tokens(self, view: CellFeatures, device: torch.device, rng: random.Random) -> CellFeatures:
        """The view with all, some or none of its tokens, as before and after a glance."""
        drawn, placed = rng.random(), view.to(device)
        if drawn < self.settings.blind:
            return replace(placed, tokens=None)
        if drawn < self.settings.blind + self.settings.partly:
            share, generator = rng.uniform(0.2, 0.7), torch.Generator().manual_seed(rng.getrandbits(31))
            return replace(placed, encoded=(torch.rand(view.shape, generator=generator) < share).to(device))
        return placed


def collate(
    pictures: list[list[CellFeatures]], examples: Sequence[TrainingExample], questions: Sequence[tuple[int, ExampleQuestion]],
    device: torch.device,
) -> LayerBatch:  # fmt: skip
    """A batch of `(picture number, question)` pairs, questions padded to one length."""
    words, there = pad_questions([question.words for _, question in questions])
    owner = torch.tensor([number for number, _ in questions], device=device)
    return LayerBatch(
        pictures, owner, words.to(device), there.to(device), [question for _, question in questions],
        [examples[number] for number, _ in questions],
    )  # fmt: skip
