"""The second phase: the model itself gets used to the few cells that a trained layer keeps.

    the layer, frozen -> its best cells, as many as chance says -> the loss of the answer read from them alone -> the model

Only the language model learns, by its last layers or by LoRA (`adapting.py`): its word embeddings and its encoder stay, so
that the layer goes on understanding them. What is left is a stock model.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from arr_coc.adapters.loading import model_folder
from arr_coc.errors import ArrCocError, ModelError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import identity
from arr_coc.training.answer_loss import answer_loss
from arr_coc.training.distributed import Team
from arr_coc.training.examples import Asked, Lesson, answered
from arr_coc.training.gates import hard_top
from arr_coc.training.look_cache import Looks
from arr_coc.training.settings import LEAST, MOST, Settings
from arr_coc.training.steps import collate
from arr_coc.training.stopping import Stopping
from arr_coc.training.trainable import last, last_layers, lora, peft_package
from arr_coc.vlm.model import VLM

KINDS = {"layers": 2e-5, "lora": 2e-4}  # and the highest learning rate of each
MEASURED, SHARE = 32, 0.125  # questions that are read before and after, and from how many of the cells
FILES = (".json", ".jinja", ".model", ".txt")  # what a processor is made of
WRITTEN = ("config.json", "generation_config.json", "layer.json")  # by the model and by the layer


@dataclass(frozen=True)
class Adaptation:
    """What of the model learns, and for how long."""

    kind: str  # layers or lora
    size: int  # how many of the last layers, or the rank
    steps: int = 200
    questions: int = 4  # to a step

    @classmethod
    def of(cls, said: str, steps: int = 200) -> Adaptation:
        """From "layers:2" or "lora:8"."""
        kind, _, size = said.partition(":")
        if kind not in KINDS or not size.isdecimal() or int(size) < 1:
            raise ArrCocError(f"expected to adapt layers:N (the last N) or lora:R (of rank R), got {said!r}")
        if steps < 1:
            raise ArrCocError(f"expected steps of adapting from 1 on, got {steps}")
        return cls(kind, int(size), steps)

    def check(self, vlm: VLM) -> None:
        """Complain before the work about what the model or the machine does not have."""
        if self.kind == "layers":
            last(vlm, self.size)
        else:
            peft_package()

    def inside(self, vlm: VLM) -> AbstractContextManager[list[torch.nn.Parameter]]:
        return last_layers(vlm, self.size) if self.kind == "layers" else lora(vlm, self.size)

    def rate(self, step: int) -> float:
        """Learning rate: a short linear start, then a cosine to 0."""
        start = min(1.0, (step + 1) / max(1, self.steps // 20))
        return KINDS[self.kind] * start * 0.5 * (1 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class Accustomed:
    """How it went: the mean loss of answers, before and after, on pictures that were kept back."""

    steps: int
    losses: dict[str, float]
    finished: bool


class Masters:
    """The optimiser's own copies of the parameters, in float32: what one step changes is lost in half precision."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.own = list(parameters)
        self.fine = [torch.nn.Parameter(weights.detach().float()) for weights in self.own]
        self.optimizer = torch.optim.AdamW(self.fine, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, rate: float, team: Team) -> None:
        for weights, fine in zip(self.own, self.fine, strict=True):
            fine.grad = torch.zeros_like(fine) if weights.grad is None else weights.grad.float()
            weights.grad = None
        team.average_gradients(self.fine)
        torch.nn.utils.clip_grad_norm_(self.fine, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            for weights, fine in zip(self.own, self.fine, strict=True):
                weights.copy_(fine)


def accustom(
    vlm: VLM, layer: ArrCocLayer, lessons: Sequence[Lesson], kept_back: Sequence[Lesson], adaptation: Adaptation,
    settings: Settings = Settings(), *, looks: Looks | None = None, team: Team = Team(),  # noqa: B008
    tick: Callable[[float, str], None] = lambda progress, what: None,
) -> Accustomed:  # fmt: skip
    """Train a part of the model on what the layer keeps. After an interruption the model is of no use."""
    if vlm.model.get_input_embeddings().weight.dtype == torch.float16:
        raise ModelError("expected a model in bfloat16 or float32 to adapt, got float16: load it with dtype='bfloat16'")
    asked = [(lesson, one) for lesson in lessons for one in lesson.asked if answered(one.sample)]
    _, (idle,) = team.agree((), (float(not asked),))
    if idle:
        raise ArrCocError("expected questions with answers for every process to adapt with, found none")
    looks, done, stop = Looks(vlm) if looks is None else looks, 0, 0.0
    before = _measured(looks, layer, kept_back) if team.leads else None
    torch.manual_seed(settings.seed)  # LoRA's matrices begin at random
    with Stopping() as stopping, adaptation.inside(vlm) as parameters:
        team.share(parameters)
        masters = Masters(parameters)
        for step in range(adaptation.steps):
            (stop,), _ = team.agree((float(stopping.asked),), ())
            if stop:
                break
            chance = settings.chance("adapt", step, team.rank)
            for lesson, one in chance.choices(asked, k=adaptation.questions):
                keep = best(layer, lesson, one, chance.uniform(LEAST, MOST))
                lost = _lost(looks, lesson, one, keep, frozen=False)
                (lost / adaptation.questions).backward()
            masters.step(adaptation.rate(step), team)
            done += 1
            tick(done / adaptation.steps, f"adapted for {done} steps")
    after = _measured(looks, layer, kept_back) if team.leads and not stop else None
    losses = {name: value for name, value in (("before", before), ("after", after)) if value is not None}
    return Accustomed(done, losses, not stop)


@torch.no_grad()
def best(layer: ArrCocLayer, lesson: Lesson, one: Asked, share: float) -> torch.Tensor:
    """Which cells `[N]` of an encoded picture a layer would keep."""
    device = layer.mean.device
    views = [view.to(device) for view in lesson.views]
    logits = collate([views], [lesson], [(0, one)], device).judged(layer).relevance[0].cpu()
    return hard_top(logits, max(1, round(share * len(logits))))


def _lost(looks: Looks, lesson: Lesson, one: Asked, keep: torch.Tensor, frozen: bool) -> torch.Tensor:
    sample = one.sample
    return answer_loss(looks.vlm, looks.at(lesson.image), sample.question, sample.answers[0], keep=keep, frozen=frozen)


@torch.no_grad()
def _measured(looks: Looks, layer: ArrCocLayer, lessons: Sequence[Lesson]) -> float | None:
    """The mean loss of some answers, each read from the same few cells; None where nobody knows any."""
    asked = [(lesson, one) for lesson in lessons for one in lesson.asked if answered(one.sample)]
    some = random.Random(0).sample(asked, min(MEASURED, len(asked)))
    found = [
        float(_lost(looks, lesson, one, best(layer, lesson, one, SHARE), frozen=True)) for lesson, one in some
    ]  # fmt: skip
    return sum(found) / len(found) if found else None


def write(vlm: VLM, name: str | Path, layer: ArrCocLayer, folder: Path) -> None:
    """An adapted model as a stock folder, with the processor of the model `name` and the layer beside it."""
    vlm.model.save_pretrained(folder)
    for file in sorted(model_folder(name).iterdir()):
        if file.suffix in FILES and file.name not in WRITTEN and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    layer.config = replace(layer.config, model=identity(vlm.adapter))
    layer.save_pretrained(folder)
