"""Training the reader: the model with its optimisers and moving average, and a run of the shared loop on it.

Several processes may train together under `torchrun`. Only rank 0 writes, validates and prints.
"""

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.errors import ArrCocError
from arr_coc.training.distributed import World
from arr_coc.training.journal import Journal
from arr_coc.training.loop import Clock, StopSignals, Task, run_steps, save_checkpoint, step_optimizers, update_average
from recipes.reader import folder
from recipes.reader.batches import Batch
from recipes.reader.data import Library, Renderers, example_batch
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import CellHead, Losses, compute_losses
from recipes.reader.model import STANDARD, ReaderShape, build
from recipes.reader.optimizer import make_optimizers
from recipes.reader.recipe import STEP_KINDS, Settings, StepKind
from recipes.reader.validation import Sheet, validate

_RANK_SEED = 1_000_003  # between the seeds of the ranks' augmentation
_TAGS = {  # TensorBoard tags of log entries
    "answer_loss": "loss/answer",
    "cell_loss": "loss/cell",
    "colour_loss": "loss/colour",
    "cell_accuracy": "training/cell accuracy",
    "learning_rate": "training/learning rate",
    "images_per_second": "training/images per second",
    "fresh_share": "training/fresh share",
}


@dataclass
class Run:
    """Everything that changes during training."""

    model: Qwen2VLForConditionalGeneration
    head: CellHead
    average: Qwen2VLForConditionalGeneration  # moving average of the model: this is validated and shipped
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0  # of training, without validation
    images: int = 0

    def save(self, path: Path) -> None:
        state = {name: getattr(self, name).state_dict() for name in ("model", "head", "average")}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        save_checkpoint(path, state | {"counts": (self.step, self.seconds, self.images)})

    def load(self, path: Path, device: str) -> None:
        state = torch.load(path, map_location=device, weights_only=True)
        for name in ("model", "head", "average"):
            getattr(self, name).load_state_dict(state[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.images = state["counts"]


def _load_weights(model: Qwen2VLForConditionalGeneration, weights: Path) -> None:
    found = model.load_state_dict(load_file(weights / "model.safetensors"), strict=False)
    wrong = sorted({*found.missing_keys, *found.unexpected_keys} - {"lm_head.weight"})  # tied, so never stored
    if wrong:
        raise ArrCocError(
            f"expected {weights} to hold a reader of the trained shape, but these do not fit: {wrong[:4]}"
        )
    model.tie_weights()


class ReaderTrainer:
    """The reader with its optimisers and moving average, on one rank."""

    def __init__(
        self, settings: Settings, shape: ReaderShape = STANDARD, weights: Path | None = None, world: World = World()  # noqa: B008
    ) -> None:  # fmt: skip
        """`weights`: a model folder to start from instead of random weights."""
        torch.manual_seed(settings.seed)
        torch.set_float32_matmul_precision("high")
        self.settings, self.world = settings, world
        model = build(shape)
        if weights is not None:
            _load_weights(model, weights)
        model.to(torch.device(settings.device))  # type: ignore[arg-type]  # transformers wraps `to` without its self
        head = CellHead(shape.width).to(settings.device)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        self.run = Run(model, head, average, make_optimizers(model, head, settings.lr, fused=settings.on_gpu))
        self.forward = ReaderForward(model, settings.compiled)
        self.average_forward = ReaderForward(average)
        if world.rank:
            torch.manual_seed(settings.seed + _RANK_SEED * world.rank)

    @property
    def weights(self) -> list[nn.Parameter]:
        """All trained parameters."""
        return [*self.run.model.parameters(), *self.run.head.parameters()]

    def step(self, batch: Batch, progress: float) -> Losses:
        """One step of both optimisers and of the moving average, the same on every rank."""
        found = self.backward(batch)
        self.world.average_gradients(self.weights)
        self.update(progress)
        return found

    def backward(self, batch: Batch) -> Losses:
        """Compute this batch's gradients. Earlier ones are dropped."""
        self._zero_grad()
        settings = self.settings
        found = compute_losses(self.forward, self.run.head, batch, settings.half, settings.encoder)
        (found.answer + settings.cell_weight * found.cell + settings.colour_weight * found.colour).backward()
        return found

    def update(self, progress: float) -> None:
        """Step on the gradients, and move the average. The caller counts the step."""
        run, settings = self.run, self.settings
        step_optimizers(run.optimizers, self.weights, settings.rate(run.step, progress), settings.clip)
        update_average(run.average, run.model, settings.average, run.step + 1)

    def compile_for(self, batch: Batch) -> float:
        """Compile for this kind of batch without training. Returns the seconds of a compiled pass."""
        for _ in range(2):
            self._synchronize()
            started = time.monotonic()
            self.backward(batch)
            self._zero_grad()
            self._synchronize()
        return time.monotonic() - started

    def _zero_grad(self) -> None:
        for optimizer in self.run.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _synchronize(self) -> None:
        if self.settings.on_gpu:
            torch.cuda.synchronize()


class _ReaderTask(Task):
    """One call of training in the folder `out`."""

    def __init__(
        self, trainer: ReaderTrainer, renderers: Renderers, sheets: list[Sheet], out: Path, journal: Journal, stop: StopSignals
    ) -> None:  # fmt: skip
        self.trainer, self.renderers, self.sheets, self.out = trainer, renderers, sheets, out
        self.journal, self.stop = journal, stop
        self.counts, self.world, self.settings = trainer.run, trainer.world, trainer.settings
        self.first_step, self.first_images = trainer.run.step, trainer.run.images
        self.losses: Losses | None = None
        self.rate = 0.0

    def step(self, progress: float) -> int:
        settings, kinds = self.settings, self.renderers.kinds
        self.renderers.set_progress(settings.mix_at(progress))
        supply = self.renderers.supply
        batch = supply.next() if self.world.is_main else None
        (kind,), _ = self.world.sync((kinds.index(batch.kind) if batch else 0,), ())
        batch = batch or supply.next(like=kinds[int(kind)])
        self.rate = settings.rate(self.counts.step, progress)
        self.losses = self.trainer.step(batch, progress)
        return len(batch.images)

    def log(self, progress: float, clock: Clock) -> None:
        """One line of the log. The losses are those of rank 0's batch."""
        found, counts = self.losses, self.counts
        assert found is not None
        entry = {
            "minutes": round(counts.seconds / 60, 3),
            "step": counts.step,
            "answer_loss": round(found.answer.item(), 4),
            "cell_loss": round(found.cell.item(), 4),
            "colour_loss": round(found.colour.item(), 4),
            "cell_accuracy": round(found.accuracy.item(), 4),
            "learning_rate": round(self.rate, 7),
            "images_per_second": round((counts.images - self.first_images) / max(1e-6, clock.elapsed), 1),
            "fresh_share": round(self.renderers.supply.fresh_count / max(1, counts.step - self.first_step), 3),
        }
        self.journal.log_step(progress, entry, {tag: entry[name] for name, tag in _TAGS.items()})

    def validate(self) -> None:
        with self.renderers.paused():  # on every rank: they may share a machine
            if self.world.is_main:
                self._validate()
            self.world.barrier()

    def _validate(self) -> None:
        started = time.monotonic()
        found = validate(self.trainer.average_forward, self.sheets, self.settings.device, lambda: self.stop.requested)
        if found is None:  # stopped
            return
        report, wrong = found
        step = self.counts.step
        self.journal.write({"minutes": self.counts.seconds / 60, "step": step, "measured": report})
        measures = ("exact", "similarity")
        self.journal.add_scalars(
            {f"{measure}/{name}": row[measure] for measure in measures for name, row in report.items()}, step
        )
        for name, row in report.items():
            numbers = f"exact {row['exact']:.3f}  similarity {row['similarity']:.3f}  of {row['count']}"
            print(f"  {name:42s} {numbers}", flush=True)
        for question, expected, text in wrong:
            print(f"  {question!r}: expected {expected!r}, got {text!r}", flush=True)
        print(f"  measured in {time.monotonic() - started:.1f} s", flush=True)

    def save(self) -> None:
        """Write the checkpoint and the model folder. Ranks whose weights differ in the last bit are made equal here."""
        self.world.broadcast(self.trainer.weights)
        if self.world.is_main:
            self.trainer.run.save(self.out / "checkpoint.pt")
            folder.write(self.trainer.run.average, self.out / "reader")


def train(
    trainer: ReaderTrainer, library: Library, sheets: list[Sheet], out: Path, kinds: tuple[StepKind, ...] = STEP_KINDS,
    journal: Journal | None = None,
) -> Run:  # fmt: skip
    """Train until the schedule or this call's time ends, or a signal asks to stop (SIGTERM, ctrl-C).

    Resumes from `out/checkpoint.pt`. Writes the checkpoint, the log and the model folder `reader` to `out`. Ranks other
    than 0 need no sheets.
    """
    started = time.monotonic()
    run, settings, world = trainer.run, trainer.settings, trainer.world
    with StopSignals() as stop, journal or Journal(out) as journal, Renderers(library, kinds, settings) as renderers:
        _resume(trainer, out / "checkpoint.pt")
        if run.seconds >= settings.schedule_seconds and not settings.finish:
            _print(
                world, f"the schedule of {settings.schedule_seconds:.0f} s has ended already; a longer one would go on"
            )
            return run
        if world.is_main:
            journal.open(run.step)
        mix = settings.mix_at(min(1.0, run.seconds / settings.schedule_seconds))
        renderers.start(settings.document_seed + run.step, mix, world.rank)
        if settings.compiled:
            _compile(trainer, (example_batch(library, kind) for kind in kinds), journal, stop)
        world.barrier()
        clock = settings.clock(run.seconds, started)
        _print(world, f"ready after {clock.begun - started:.0f} s; training for {clock.total:.0f} s")
        task = _ReaderTask(trainer, renderers, sheets, out, journal, stop)
        run_steps(task, clock, stop, world=world, max_steps=settings.steps, tick=journal.tick)
        task.save()
        _print(world, f"wrote {out / 'reader'} after {run.seconds / 60:.1f} minutes, {run.images} images")
        if stop.requested:
            _print(world, "stopped early; the same command resumes")
        else:
            task.validate()
        world.barrier()
    return run


def _resume(trainer: ReaderTrainer, checkpoint: Path) -> None:
    """Load the checkpoint if there is one, on all ranks. All must be at the same step."""
    run, world = trainer.run, trainer.world
    if checkpoint.is_file():
        run.load(checkpoint, trainer.settings.device)
        _print(world, f"resuming at step {run.step}, {run.seconds / 60:.1f} minutes")
    (first,), _ = world.sync((run.step,), ())
    _, (different,) = world.sync((), (run.step != first,))
    if different:
        raise ArrCocError(f"rank 0 resumes at step {first:.0f}, others do not: they must all see {checkpoint}")
    world.broadcast(trainer.weights)


def _compile(trainer: ReaderTrainer, batches: Iterable[Batch], journal: Journal, stop: StopSignals) -> None:
    """Run one batch of every kind, so that nothing is compiled while the clock runs."""
    for batch in batches:
        if stop.requested:
            return
        kind = batch.kind
        journal.tick(0.0, f"compiling for {kind.name!r}")
        started = time.monotonic()
        took = trainer.compile_for(batch.to(trainer.settings.device))
        compiled = f"compiled in {time.monotonic() - started:.0f} s"
        _print(trainer.world, f"{kind.name!r}: {compiled}, then {took * 1000:.0f} ms for {kind.batch} images")


def _print(world: World, line: str) -> None:
    if world.is_main:
        print(line, flush=True)
