"""Training a layer for a frozen model: steps, checkpoints that a later call resumes from, and evidence recall."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from arr_coc.errors import ArrCocError, DataError, LayerError, first_line
from arr_coc.evaluation.metrics import recall
from arr_coc.layer.model import ArrCocLayer, LayerConfig
from arr_coc.layer.novelty import fit_images, image_statistics, pad_questions
from arr_coc.training.batches import BatchSampler, LayerTrainingSettings, collate
from arr_coc.training.distributed import World
from arr_coc.training.examples import LookCache, TrainingExample
from arr_coc.training.journal import Journal
from arr_coc.training.loop import (
    Clock,
    StopSignals,
    Task,
    TrainingCounts,
    run_steps,
    save_checkpoint,
    step_optimizers,
    update_average,
)
from arr_coc.training.losses import box_losses, model_losses
from arr_coc.vlm.model import VLM

LOG_EVERY, SAVE_EVERY, VALIDATE_EVERY = 6.0, 60.0, 120.0  # seconds
CHECKPOINT = "checkpoint.pt"
QUESTION_BATCH = 256
GAZES = (0.25, 0.125, 0.0625)  # shares kept after encoding
GLANCES = (0.5, 0.25)  # shares encoded


@dataclass
class LayerTrainingResult:
    """What a call of `train_layer` ended with."""

    layer: ArrCocLayer
    steps: int
    seconds: float
    recall: dict[str, float]  # evidence recall on the validation pictures
    finished: bool
    taken_over: int = 0  # parameters that the layer started from


class LayerTrainer(Task):
    """The layer, its moving average, its optimiser, and one step of them."""

    def __init__(
        self, looks: LookCache, config: LayerConfig, examples: Sequence[TrainingExample],
        validation: Sequence[TrainingExample], out: Path, settings: LayerTrainingSettings, journal: Journal,
        world: World = World(), start: ArrCocLayer | None = None,  # noqa: B008
    ) -> None:  # fmt: skip
        self.looks, self.validation, self.settings = looks, validation, settings
        self.journal, self.world, self.device, self.path = journal, world, looks.vlm.device, out / CHECKPOINT
        torch.manual_seed(settings.seed)
        self.layer = ArrCocLayer(config).to(self.device)
        self.taken_over = 0 if start is None else take_over(self.layer, start)
        fit_statistics(self.layer, examples)
        self.average = copy.deepcopy(self.layer).eval()
        self.optimizer = torch.optim.AdamW(
            self.layer.parameters(), settings.lr, betas=(0.9, 0.98), weight_decay=settings.weight_decay
        )
        self.counts = TrainingCounts()
        self.sampler = BatchSampler(examples, settings, world.rank)
        self.has_learned = False
        self.losses: dict[str, torch.Tensor] = {}

    def step(self, progress: float) -> int:
        step, settings = self.counts.step, self.settings
        batch = self.sampler.at(step, self.device)
        prediction = batch.predict(self.layer)
        losses = box_losses(batch, prediction) if "boxes" in settings.learn else {}
        losses |= model_losses(self.looks, batch, prediction, settings, settings.rng("ask", step, self.world.rank))
        self.has_learned = self.has_learned or bool(losses)
        self.losses = losses or {"nothing": 0 * prediction.relevance.sum()}
        sum(self.losses.values()).backward()  # type: ignore[union-attr]
        self.update(settings.rate(step, progress))
        return len(batch.pictures)

    def update(self, lr: float) -> None:
        """Step on the gradients, and move the average."""
        parameters = list(self.layer.parameters())
        if self.world.size > 1:
            for parameter in parameters:
                if parameter.grad is None:  # unused in this batch, but another rank may have a gradient
                    parameter.grad = torch.zeros_like(parameter)
        self.world.average_gradients(parameters)
        step_optimizers([self.optimizer], parameters, lr)
        self.optimizer.zero_grad()
        update_average(self.average, self.layer, self.settings.average, self.counts.step)

    def save(self) -> None:
        if not self.world.is_main:
            return
        if not all(bool(weights.isfinite().all()) for weights in self.layer.parameters()):
            raise LayerError(
                f"the weights became NaN or infinite before step {self.counts.step}; the last checkpoint is kept: try a lower "
                "learning rate (--lr)"
            )
        state = {name: getattr(self, name).state_dict() for name in ("layer", "average", "optimizer")}
        state |= {"shape": self.layer.config.to_dict(), "settings": asdict(self.settings)}
        save_checkpoint(self.path, state | {"counts": (self.counts.step, self.counts.seconds)})

    def load(self) -> None:
        """Resume from the checkpoint. Only the length of the schedule may have changed."""
        path, settings = str(self.path), self.settings
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)  # step counts must stay on the CPU
            before = LayerTrainingSettings(**state["settings"])
        except Exception as error:  # torch.load raises many types for a broken file
            raise LayerError(f"cannot resume from {path!r} ({first_line(error)}): start again with --fresh") from None
        if LayerConfig.from_dict(state["shape"]) != self.layer.config:
            raise LayerError(f"{path!r} is of another model or shape: name another folder, or start again with --fresh")
        if replace(before, steps=settings.steps, minutes=settings.minutes) != settings:
            changed = [name for name, value in asdict(settings).items() if value != getattr(before, name)]
            names = " and ".join(name for name in changed if name not in ("steps", "minutes"))
            raise LayerError(
                f"{path!r} was trained with another {names}: use the same, name another folder, or start again with --fresh"
            )
        for name in ("layer", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.counts.step, self.counts.seconds = state["counts"]

    def validate(self) -> None:
        if not self.world.is_main:
            return
        found = measure_recall(self.average, self.validation, self.device)
        self.journal.write(self._entry() | {"recall": found})
        self.journal.add_scalars({f"evidence recall/{name}": value for name, value in found.items()}, self.counts.step)
        if found:
            print("  " + "  ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)

    def log(self, progress: float, clock: Clock) -> None:
        values = {name: round(float(loss.detach()), 4) for name, loss in self.losses.items()}
        self.journal.log_step(progress, self._entry() | values, {f"loss/{name}": x for name, x in values.items()})

    def _entry(self) -> dict[str, float]:
        return {"step": self.counts.step, "seconds": round(self.counts.seconds, 1)}

    def finish(self, out: Path, examples: Sequence[TrainingExample]) -> dict[str, float]:
        """Write the checkpoint and the layer's folder; returns the evidence recall."""
        self.save()
        self.average.store_questions(embed_questions(self.average, examples, self.device))
        self.average.save_pretrained(out)
        found = measure_recall(self.average, self.validation, self.device)
        self.journal.write(self._entry() | {"recall": found, "settings": asdict(self.settings)})
        return found


def train_layer(
    vlm: VLM, config: LayerConfig, examples: Sequence[TrainingExample], validation: Sequence[TrainingExample], out: Path,
    settings: LayerTrainingSettings = LayerTrainingSettings(), *, journal: Journal, looks: LookCache | None = None,  # noqa: B008
    world: World = World(), start: ArrCocLayer | None = None,  # noqa: B008
) -> LayerTrainingResult:  # fmt: skip
    """Train until the schedule ends or a signal asks to stop. Resumes from the checkpoint in `out`.

    `start`: a layer, for example the universal one, whose parts of the same shape a new run begins with.

    With a schedule of steps, a stopped and resumed run ends with the same weights as an uninterrupted one. With a schedule
    by the clock it cannot.
    """
    if not examples:
        raise DataError("expected examples to learn from, got none")
    looks = LookCache(vlm) if looks is None else looks
    trainer = LayerTrainer(looks, config, examples, validation, out, settings, journal, world, start)
    if trainer.path.exists():
        trainer.load()
    # With the channel statistics: each rank has other examples.
    world.broadcast([*trainer.layer.state_dict().values(), *trainer.average.state_dict().values()])
    counts, first = trainer.counts, trainer.counts.step
    journal.open(first)
    clock = Clock(
        math.inf if settings.minutes is None else 60 * settings.minutes, steps=settings.steps, before=counts.seconds,
        every={"log": LOG_EVERY, "save": SAVE_EVERY, "validate": VALIDATE_EVERY},
    )  # fmt: skip
    with StopSignals() as stop:
        finished = run_steps(trainer, clock, stop, world=world, tick=journal.tick)
    _, (learning,) = world.sync((), (trainer.has_learned,))
    if counts.step > first == 0 and not learning:
        raise ArrCocError(
            f"nothing was learned in {counts.step} steps from {' and '.join(settings.learn)}: the model gave no right answer "
            "whose attention could be learned; learn from boxes or answers"
        )
    found = trainer.finish(out, examples) if world.is_main else {}
    return LayerTrainingResult(trainer.average, counts.step, counts.seconds, found, finished, trainer.taken_over)


@torch.no_grad()
def take_over(layer: ArrCocLayer, start: ArrCocLayer) -> int:
    """Copy the parameters of `start` that have the same name and shape into `layer`, and return how many numbers that is.

    Parts of another kind are left alone: the universal layer reads bytes and pixels in its own way. Statistics of the training
    images are not copied.
    """
    kinds = {name: type(module) for name, module in start.named_children()}
    ready = {name for name, module in layer.named_children() if kinds.get(name) is type(module)}
    given, taken = dict(start.named_parameters()), 0
    for name, own in layer.named_parameters():
        other = given.get(name)
        top, _, inside = name.partition(".")
        if other is not None and other.shape == own.shape and (not inside or top in ready):
            own.copy_(other)
            taken += own.numel()
    return taken


def fit_statistics(layer: ArrCocLayer, examples: Sequence[TrainingExample]) -> None:
    """Set the channels' mean and spread over the examples, and the statistics that tell unfamiliar pictures."""
    count, total, squares = 0, torch.zeros(len(layer.mean)).double(), torch.zeros(len(layer.mean)).double()
    for view in (view for example in examples for view in example.views):
        values = view.channels.double().transpose(0, 1).flatten(1)  # [C, t h w]
        count, total, squares = count + values.shape[1], total + values.sum(1), squares + values.square().sum(1)
    mean = total / count
    spread = (squares / count - mean.square()).clamp(min=0).sqrt()
    layer.mean.copy_(mean[:, None, None])
    # A channel without values stays 0.
    layer.spread.copy_(torch.where(spread > 1e-4, spread, 1.0)[:, None, None])
    mean, inverse = fit_images(
        [image_statistics(example.views[0].channels, layer.config.channels) for example in examples]
    )
    layer.usual.copy_(mean)
    layer.unusual.copy_(inverse)


@torch.inference_mode()
def embed_questions(layer: ArrCocLayer, examples: Sequence[TrainingExample], device: torch.device) -> torch.Tensor:
    """The layer's embeddings `[Q, d]` of the training questions: those with evidence, if there are any."""
    questions = [question for example in examples for question in example.questions]
    words = [one.words for one in questions if one.groups] or [one.words for one in questions]
    batches = (pad_questions(words[start : start + QUESTION_BATCH]) for start in range(0, len(words), QUESTION_BATCH))
    return torch.cat([layer.question_vectors(some.to(device), there.to(device)).cpu() for some, there in batches])


@torch.inference_mode()
def measure_recall(layer: ArrCocLayer, examples: Sequence[TrainingExample], device: torch.device) -> dict[str, float]:
    """Mean evidence recall over all questions: `gaze 12.5%` with all tokens, `glance 50%` with none."""
    found: dict[str, list[float]] = defaultdict(list)
    for example in examples:
        questions = [(0, question) for question in example.questions if question.groups]
        if not questions:
            continue
        for stage, shares in (("gaze", GAZES), ("glance", GLANCES)):
            views = [view.to(device) for view in example.views]
            views = views if stage == "gaze" else [replace(view, tokens=None) for view in views]
            relevance = collate([views], [example], questions, device).predict(layer).relevance.cpu()
            for logits, (_, question) in zip(relevance, questions, strict=True):
                order = logits.argsort(descending=True, stable=True)
                for share in shares:
                    kept = order[: math.ceil(share * len(order) - 1e-9)]
                    found[f"{stage} {100 * share:g}%"].append(recall(kept, question.groups) or 0.0)
    return {name: sum(values) / len(values) for name, values in found.items()}
