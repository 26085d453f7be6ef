"""The training loop: answer loss plus cell loss, a schedule by the clock, a moving average, progress and a log."""

import copy
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.reader import folder
from arr_coc.reader.model import STANDARD, ReaderShape, build
from arr_coc.training import source
from arr_coc.training.augment import augment
from arr_coc.training.batches import NO_TARGET, Batch, collate, make_row
from arr_coc.training.cells import CellHead, cell_accuracy, cell_loss, colour_loss
from arr_coc.training.checkpoint import Run
from arr_coc.training.forward import ReaderForward, take_cells, to_patches
from arr_coc.training.missing import choose_cells
from arr_coc.training.optimizer import optimizers
from arr_coc.training.recipe import STEP_KINDS, StepKind
from arr_coc.training.stopping import Stopping
from arr_coc.training.supply import Supply
from arr_coc.training.validation import Sheet, measure


@dataclass(frozen=True)
class Settings:
    """How long and how to train. The learning rate and the mix follow the share of `schedule_seconds` that has passed."""

    seconds: float  # of this call, from its start to its end
    schedule_seconds: float  # of training over all calls
    finish: bool = False  # bring the schedule to its end within this call
    steps: int | None = None  # stop after so many even if there is time left
    lr: float = 2e-3
    warmup_steps: int = 200
    last_lr: float = 0.02  # of the highest
    cell_weight: float = 1.0
    colour_weight: float = 0.5
    mix_from: float = (
        0.0  # how far the mix of documents has come at the start: more than 0 for a reader that reads already
    )
    average: float = 0.998
    clip: float = 1.0
    save_every: float = 60.0  # seconds
    measure_every: float = 150.0
    reserve: float = 25.0  # seconds kept for the last measurement and for saving
    workers: int = 15
    uses: int = 3
    seed: int = 0  # of the weights
    document_seed: int = 0  # another one draws other documents
    device: str = "cuda"
    compiled: bool = True

    def mixed(self, progress: float) -> float:
        """How far the mix of documents has come."""
        return self.mix_from + (1 - self.mix_from) * progress


@dataclass(frozen=True)
class Losses:
    """Losses of one step, on the device until somebody asks."""

    answer: torch.Tensor
    cell: torch.Tensor
    colour: torch.Tensor
    accuracy: torch.Tensor  # share of characters read right by the cell head


def rate(settings: Settings, step: int, progress: float) -> float:
    """Learning rate: a linear start, then a cosine by the clock."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return (
        settings.lr
        * min(1.0, (step + 1) / settings.warmup_steps)
        * (settings.last_lr + (1 - settings.last_lr) * cosine)
    )


def losses(forward: ReaderForward, head: CellHead, batch: Batch) -> Losses:
    """Forward pass of one batch, with as many cells missing as its kind of step says."""
    kind, device = batch.kind, batch.images.device.type
    with torch.no_grad():
        shown = augment(batch.images, batch.warps)
        cells = choose_cells(shown, batch.evidence, kind.encoded)  # [B, encoded]
        patches = take_cells(to_patches(shown), cells)
        kept = None
        if kind.kept < kind.encoded:
            if kind.encoded != kind.cells:
                raise ValueError(f"step kind {kind.name!r} drops cells both before and after the encoder; choose one")
            kept = choose_cells(shown, batch.evidence, kind.kept)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        visual = forward.encode(patches, cells, batch.grid[0])  # [B, encoded, width]
        read, tinted = head(visual)
        if kept is not None:
            visual, cells_seen = take_cells(visual, kept), kept
        else:
            cells_seen = cells
        logits = forward.logits(visual, cells_seen, batch.grid, batch.tokens, batch.segment, batch.place)
    targets = take_cells(batch.cells, cells).long()
    wanted = F.cross_entropy(
        logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
    )
    weights = batch.weights.flatten()
    return Losses(
        answer=(wanted * weights).sum() / weights.sum().clamp(min=1e-6),
        cell=cell_loss(read, targets, batch.caseless),
        colour=colour_loss(tinted, take_cells(batch.colours, cells)),
        accuracy=cell_accuracy(read.detach(), targets, batch.caseless),
    )


def _start_from(model: Qwen2VLForConditionalGeneration, weights: Path) -> None:
    found = model.load_state_dict(load_file(weights / "model.safetensors"), strict=False)
    wrong = sorted({*found.missing_keys, *found.unexpected_keys} - {"lm_head.weight"})  # tied, so never stored
    if wrong:
        raise ValueError(f"expected {weights} to hold a reader of the trained shape, but these do not fit: {wrong[:4]}")
    model.tie_weights()


class Trainer:
    """One training run, possibly the continuation of an earlier one."""

    def __init__(self, settings: Settings, shape: ReaderShape = STANDARD, weights: Path | None = None):
        """`weights`: a model folder to start from instead of from scratch."""
        torch.manual_seed(settings.seed)
        torch.set_float32_matmul_precision("high")
        self.settings = settings
        model = build(shape)
        if weights is not None:
            _start_from(model, weights)
        model.to(torch.device(settings.device))  # type: ignore[arg-type]  # transformers wraps `to` without its self
        head = CellHead(shape.width).to(settings.device)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        self.run = Run(model, head, average, optimizers(model, head, settings.lr, fused=settings.device == "cuda"))
        self.forward = ReaderForward(model, settings.compiled)
        self.measured = ReaderForward(average)

    def step(self, batch: Batch, progress: float) -> Losses:
        """One step of both optimisers and of the moving average."""
        run, settings = self.run, self.settings
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(settings, run.step, progress) * group.get("rate_share", 1.0)
            optimizer.zero_grad(set_to_none=True)
        found = losses(self.forward, run.head, batch)
        (found.answer + settings.cell_weight * found.cell + settings.colour_weight * found.colour).backward()
        torch.nn.utils.clip_grad_norm_([*run.model.parameters(), *run.head.parameters()], settings.clip)
        for optimizer in run.optimizers:
            optimizer.step()
        run.step += 1
        run.images += len(batch.images)
        keep = min(settings.average, (1 + run.step) / (10 + run.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(run.average.parameters()), list(run.model.parameters()), 1 - keep)
        return found

    def warm_up(self, batch: Batch) -> float:
        """Compile for this kind of batch without learning anything; returns the seconds a compiled pass takes."""
        for _ in range(2):
            self._finish_work()
            started = time.monotonic()
            found = losses(self.forward, self.run.head, batch)
            (found.answer + found.cell + found.colour).backward()
            for optimizer in self.run.optimizers:
                optimizer.zero_grad(set_to_none=True)
            self._finish_work()
        return time.monotonic() - started

    def _finish_work(self) -> None:
        if self.settings.device == "cuda":
            torch.cuda.synchronize()

    def measure(self, sheets: list[Sheet], log: Path) -> dict[str, dict[str, float]]:
        started = time.monotonic()
        report, wrong = measure(self.measured, sheets, self.settings.device)
        _note(log, {"minutes": self.run.seconds / 60, "step": self.run.step, "measured": report})
        for name, row in report.items():
            print(
                f"  {name:42s} exact {row['exact']:.3f}  similarity {row['similarity']:.3f}  of {row['count']}",
                flush=True,
            )
        for question, expected, said in wrong:
            print(f"  {question!r}: expected {expected!r}, got {said!r}", flush=True)
        print(f"  measured in {time.monotonic() - started:.1f} s", flush=True)
        return report


def _note(log: Path, entry: dict[str, Any]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def train(
    trainer: Trainer,
    library: source.Library,
    sheets: list[Sheet],
    out: Path,
    kinds: tuple[StepKind, ...] = STEP_KINDS,
) -> Run:
    """Train until this call's time is used up or SIGTERM comes; goes on from `out/checkpoint.pt` where there is one.

    Writes the checkpoint, the log and the model folder `reader` to `out`.
    """
    with Stopping() as stop:
        return _train(trainer, library, sheets, out, kinds, stop)


def _keep(run: Run, out: Path) -> None:
    run.save(out / "checkpoint.pt")
    folder.write(run.average, out / "reader")


def _train(
    trainer: Trainer,
    library: source.Library,
    sheets: list[Sheet],
    out: Path,
    kinds: tuple[StepKind, ...],
    stop: Stopping,
) -> Run:
    checkpoint, log = out / "checkpoint.pt", out / "log.jsonl"
    settings, run, started = trainer.settings, trainer.run, time.monotonic()
    if checkpoint.is_file():
        run.load(checkpoint, settings.device)
        print(f"going on from step {run.step}, {run.seconds / 60:.1f} minutes", flush=True)
    batches = source.TrainingBatches(library, kinds, seed=settings.document_seed + run.step)
    batches.progress.value = settings.mixed(min(1.0, run.seconds / settings.schedule_seconds))
    supply = Supply(
        source.loader(batches, settings.workers, pin=settings.device == "cuda"),
        settings.device,
        settings.uses,
        background=settings.workers > 0,
    )
    if settings.compiled:
        _compile_all(trainer, library, kinds)
    begun, before = time.monotonic(), run.seconds
    end = started + settings.seconds - settings.reserve
    schedule = before + max(1.0, end - begun) if settings.finish else settings.schedule_seconds
    print(f"ready after {begun - started:.0f} s; training for {end - begun:.0f} s", flush=True)
    paused, told, measured, kept, first_step, first_images = 0.0, begun, begun, begun, run.step, run.images
    while not stop.asked and time.monotonic() < end and (settings.steps is None or run.step < settings.steps):
        run.seconds = before + time.monotonic() - begun - paused
        progress = min(1.0, (run.seconds + paused * settings.finish) / schedule)
        batches.progress.value = settings.mixed(progress)
        found = trainer.step(supply.next(), progress)
        now = time.monotonic()
        if now - told > 6:
            told = now
            elapsed = max(1e-6, now - begun - paused)
            entry = {
                "minutes": round(run.seconds / 60, 3),
                "step": run.step,
                "answer_loss": round(found.answer.item(), 4),
                "cell_loss": round(found.cell.item(), 4),
                "colour_loss": round(found.colour.item(), 4),
                "cell_accuracy": round(found.accuracy.item(), 4),
                "images_per_second": round((run.images - first_images) / elapsed, 1),
                "fresh_share": round(supply.fresh_count / max(1, run.step - first_step), 3),
            }
            _note(log, entry)
            print(f"{progress:4.0%} " + "  ".join(f"{name} {value}" for name, value in entry.items()), flush=True)
        if now - measured > settings.measure_every and end - now > 60:
            batches.pause()
            trainer.measure(sheets, log)
            batches.resume()
            measured = time.monotonic()
            paused += measured - now
        if now - kept > settings.save_every:  # whatever happens later, little is lost
            _keep(run, out)
            kept = now
    _keep(run, out)
    print(f"wrote {out / 'reader'} after {run.seconds / 60:.1f} minutes, {run.images} images", flush=True)
    batches.end()
    supply.stop()
    if not stop.asked:
        trainer.measure(sheets, log)
    return run


def _compile_all(trainer: Trainer, library: source.Library, kinds: tuple[StepKind, ...]) -> None:
    """Make one batch of every kind here and run it, so that nothing is compiled while the clock runs."""
    for kind in kinds:
        rng, grid, started = random.Random(kind.name), kind.grids[0], time.monotonic()
        documents = [library.document(rng, grid, 0.0, False) for _ in range(4)]
        rows = [make_row(rng, document, grid, kind.text, 4) for document in documents]
        took = trainer.warm_up(collate(kind, grid, (rows * kind.batch)[: kind.batch]).to(trainer.settings.device))
        print(
            f"{kind.name!r}: compiled in {time.monotonic() - started:.0f} s, then {took * 1000:.0f} ms for {kind.batch} images",
            flush=True,
        )
