"""The second phase of training: fine-tune the language model on the cells that a trained layer keeps.

    frozen layer -> its top cells, of a random count -> the answer loss from these cells -> gradients of the model

`last_layers` and `lora` are context managers that give the parameters to train and leave a stock model behind:

    with lora(vlm, rank=8) as parameters:
        optimizer = torch.optim.AdamW(parameters)
        answer_loss(vlm, look, question, answer, keep=cells, frozen=False).backward()
        optimizer.step()
    vlm.model.save_pretrained(folder)

Word embeddings and the encoder are not trained, so the layer and cached looks stay valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.adapters.loading import model_folder
from arr_coc.errors import ArrCocError, ModelError, raise_as, whole_number
from arr_coc.files import replacing_files
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import model_identity
from arr_coc.layer.model import CONFIG, SUBFOLDER, WEIGHTS
from arr_coc.training.answer_loss import answer_loss
from arr_coc.training.batches import MAX_KEPT, MIN_KEPT, LayerTrainingSettings, collate
from arr_coc.training.distributed import World
from arr_coc.training.examples import ExampleQuestion, LookCache, TrainingExample, has_answer
from arr_coc.training.gates import hard_top
from arr_coc.training.loop import Clock, StopSignals, Task, TrainingCounts, cosine_rate, run_steps, step_optimizers
from arr_coc.vlm.confidence import FILE as CALIBRATION
from arr_coc.vlm.model import VLM
from arr_coc.vlm.saving import MODEL_FILES, copy_processor

LEARNING_RATES = {"layers": 2e-5, "lora": 2e-4}
LORA_SCALE = 2.0  # alpha / rank
VALIDATION_QUESTIONS, VALIDATION_SHARE = 32, 0.125  # read before and after, from this share of the cells

Pair = tuple[TrainingExample, ExampleQuestion]


@dataclass(frozen=True)
class FinetuneConfig:
    """Which part of the model is trained, and for how long."""

    kind: str  # layers or lora
    size: int  # the number of last layers, or the rank
    steps: int = 200
    questions: int = 4  # to a step

    @classmethod
    def parse(cls, text: str, steps: int = 200) -> FinetuneConfig:
        """From "layers:2" or "lora:8"."""
        kind, _, size = text.partition(":")
        if kind not in LEARNING_RATES or not size.isdecimal() or int(size) < 1:
            raise ArrCocError(f"expected to adapt layers:N (the last N) or lora:R (of rank R), got {text!r}")
        if steps < 1:
            raise ArrCocError(f"expected steps of adapting from 1 on, got {steps}")
        return cls(kind, int(size), steps)

    def check(self, vlm: VLM) -> None:
        """Raise before the work if the model has too few layers or peft is missing."""
        if self.kind == "layers":
            _language_layers(vlm, self.size)
        else:
            _import_peft()

    def trainable(self, vlm: VLM) -> AbstractContextManager[list[torch.nn.Parameter]]:
        return last_layers(vlm, self.size) if self.kind == "layers" else lora(vlm, self.size)

    def rate(self, step: int, progress: float) -> float:
        return cosine_rate(LEARNING_RATES[self.kind], step, progress, warmup_steps=max(1, self.steps // 20))


@dataclass(frozen=True)
class FinetuneResult:
    """The mean answer loss on validation pictures, `before` and `after`."""

    steps: int
    losses: dict[str, float]
    finished: bool


class MasterWeights:
    """Float32 copies of the parameters for the optimiser: small updates would be lost in half precision."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.masters = [torch.nn.Parameter(weights.detach().float()) for weights in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, lr: float, world: World) -> None:
        for weights, master in zip(self.parameters, self.masters, strict=True):
            master.grad = torch.zeros_like(master) if weights.grad is None else weights.grad.float()
            weights.grad = None
        world.average_gradients(self.masters)
        step_optimizers([self.optimizer], self.masters, lr)
        with torch.no_grad():
            for weights, master in zip(self.parameters, self.masters, strict=True):
                weights.copy_(master)


class _Finetuning(Task):
    label = "fine-tuning, "

    def __init__(
        self, looks: LookCache, layer: ArrCocLayer, pairs: Sequence[Pair], config: FinetuneConfig,
        settings: LayerTrainingSettings, world: World, parameters: Sequence[torch.nn.Parameter],
    ) -> None:  # fmt: skip
        self.looks, self.layer, self.pairs, self.config = looks, layer, pairs, config
        self.settings, self.world, self.weights = settings, world, MasterWeights(parameters)
        self.counts = TrainingCounts()

    def step(self, progress: float) -> int:
        config, step = self.config, self.counts.step
        rng = self.settings.rng("adapt", step, self.world.rank)
        for example, question in rng.choices(self.pairs, k=config.questions):
            keep = top_cells(self.layer, example, question, rng.uniform(MIN_KEPT, MAX_KEPT))
            (_loss(self.looks, example, question, keep, frozen=False) / config.questions).backward()
        self.weights.step(config.rate(step, progress), self.world)
        return config.questions


def finetune(
    vlm: VLM, layer: ArrCocLayer, examples: Sequence[TrainingExample], validation: Sequence[TrainingExample],
    config: FinetuneConfig, settings: LayerTrainingSettings = LayerTrainingSettings(), *,  # noqa: B008
    looks: LookCache | None = None, world: World = World(),  # noqa: B008
    tick: Callable[[float, str], None] = lambda share, what: None,
) -> FinetuneResult:  # fmt: skip
    """Train a part of the model on the cells that the layer keeps. After an interruption the model is unusable."""
    if vlm.model.get_input_embeddings().weight.dtype == torch.float16:
        raise ModelError("expected a model in bfloat16 or float32 to adapt, got float16: load it with dtype='bfloat16'")
    pairs = _answered(examples)
    _, (idle,) = world.sync((), (not pairs,))
    if idle:
        raise ArrCocError("expected questions with answers for every process to adapt with, found none")
    looks = LookCache(vlm) if looks is None else looks
    before = _validation_loss(looks, layer, validation) if world.is_main else None
    torch.manual_seed(settings.seed)  # LoRA's matrices start at random
    with StopSignals() as stop, config.trainable(vlm) as parameters:
        world.broadcast(parameters)
        task = _Finetuning(looks, layer, pairs, config, settings, world, parameters)
        finished = run_steps(task, Clock(steps=config.steps, every={}), stop, world=world, tick=tick)
    vlm.calibration = None  # it was fitted to the answers of other weights
    after = _validation_loss(looks, layer, validation) if world.is_main and finished else None
    losses = {name: value for name, value in (("before", before), ("after", after)) if value is not None}
    return FinetuneResult(task.counts.step, losses, finished)


@torch.no_grad()
def top_cells(layer: ArrCocLayer, example: TrainingExample, question: ExampleQuestion, share: float) -> torch.Tensor:
    """Mask `[N]` of the cells that the layer keeps of an encoded picture."""
    device = layer.mean.device
    views = [view.to(device) for view in example.views]
    logits = collate([views], [example], [(0, question)], device).predict(layer).relevance[0].cpu()
    return hard_top(logits, max(1, round(share * len(logits))))


def _answered(examples: Sequence[TrainingExample]) -> list[Pair]:
    return [(example, one) for example in examples for one in example.questions if has_answer(one.sample)]


def _loss(
    looks: LookCache, example: TrainingExample, question: ExampleQuestion, keep: torch.Tensor, frozen: bool
) -> torch.Tensor:
    look, sample = looks.at(example.image), question.sample
    return answer_loss(looks.vlm, look, sample.question, sample.answers[0], keep=keep, frozen=frozen)


@torch.no_grad()
def _validation_loss(looks: LookCache, layer: ArrCocLayer, examples: Sequence[TrainingExample]) -> float | None:
    """The mean loss of some answers, each from the same share of the cells; None without answers."""
    pairs = _answered(examples)
    some = random.Random(0).sample(pairs, min(VALIDATION_QUESTIONS, len(pairs)))
    losses = [float(_loss(looks, *pair, top_cells(layer, *pair, VALIDATION_SHARE), frozen=True)) for pair in some]
    return sum(losses) / len(losses) if losses else None


def save_model(vlm: VLM, name: str | Path, layer: ArrCocLayer, folder: Path) -> None:
    """Write a stock model folder with the processor of the model `name`, and the layer in a subfolder."""
    layer.config = replace(layer.config, model=model_identity(vlm.adapter))
    with raise_as(ModelError, f"cannot write {str(folder)!r}"), replacing_files(folder, MODEL_FILES) as temporary:
        vlm.model.save_pretrained(temporary)
        copy_processor(model_folder(name), temporary)
        layer.save_pretrained(temporary / SUBFOLDER)
    # From an older version, which wrote the layer next to the model; and a calibration, which was fitted to other weights.
    for old in (WEIGHTS, CONFIG, CALIBRATION):
        (folder / old).unlink(missing_ok=True)


@contextmanager
def last_layers(vlm: VLM, count: int) -> Iterator[list[torch.nn.Parameter]]:
    """Inside, only the parameters of the last `count` language layers require gradients."""
    trained = [weights for layer in _language_layers(vlm, count) for weights in layer.parameters()]
    with _restore_requires_grad(vlm.model):
        vlm.model.requires_grad_(False)
        for weights in trained:
            weights.requires_grad_(True)
        try:
            yield trained
        finally:
            for weights in trained:
                weights.grad = None


@contextmanager
def lora(
    vlm: VLM, rank: int = 8, layers: int | None = None, scale: float = LORA_SCALE
) -> Iterator[list[torch.nn.Parameter]]:
    """Inside, every linear map of the last `layers` language layers (None: of all) has a trainable LoRA adapter.

    At the end the adapters are merged into the weights. After an error they are removed, and the model is unchanged.
    """
    if whole_number(rank) is None:
        raise ArrCocError(f"expected a rank of 1 or more, got {rank!r}")
    if vlm.model is not vlm.adapter.model:
        raise ModelError(
            f"expected a plain model to add LoRA to, got a {type(vlm.model).__name__}: wrap the model inside"
        )
    peft = _import_peft()
    modules = (module for layer in _language_layers(vlm, layers) for module in layer.modules())
    linear = {id(module) for module in modules if isinstance(module, torch.nn.Linear)}
    names = [name for name, module in vlm.model.named_modules() if id(module) in linear]
    config = peft.LoraConfig(r=rank, lora_alpha=scale * rank, target_modules=names)
    training = vlm.model.training
    with _restore_requires_grad(vlm.model):
        tuned = peft.get_peft_model(vlm.model, config)
        tuned.train(training)
        try:
            yield [weights for weights in tuned.parameters() if weights.requires_grad]
        except BaseException:
            tuned.unload()
            raise
        tuned.merge_and_unload()


def _language_layers(vlm: VLM, count: int | None) -> list[torch.nn.Module]:
    """The last `count` layers of the language model (None: all)."""
    layers = list(vlm.adapter.text_model.layers)
    if count is None:
        return layers
    if whole_number(count) is None or count > len(layers):
        raise ArrCocError(f"expected 1 to {len(layers)} layers, as many as the language model has, got {count!r}")
    return layers[-count:]


@contextmanager
def _restore_requires_grad(model: torch.nn.Module) -> Iterator[None]:
    before = [(weights, weights.requires_grad) for weights in model.parameters()]
    try:
        yield
    finally:
        for weights, required in before:
            weights.requires_grad_(required)


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(f"LoRA needs the extra 'training' ({error}): pip install \"arr-coc[training]\"") from None
    return peft
