"""Learning a layer for a frozen model: lessons, steps, checkpoints that a later call goes on from."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from arr_coc.errors import LayerError
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.layer import ArrCocLayer
from arr_coc.learning.lessons import Lesson
from arr_coc.learning.measuring import measured
from arr_coc.learning.settings import Settings
from arr_coc.learning.steps import Batch, Draws, box_losses
from arr_coc.learning.tutoring import model_losses
from arr_coc.training.journal import Journal
from arr_coc.training.parallel import Team
from arr_coc.training.stopping import Stopping
from arr_coc.vlm import VLM

TELL_EVERY, SAVE_EVERY, MEASURE_EVERY = 6.0, 60.0, 120.0  # seconds
CHECKPOINT = "checkpoint.pt"


@dataclass
class Learned:
    """A finished call."""

    layer: ArrCocLayer
    steps: int
    seconds: float
    found: dict[str, float]  # evidence recall on the pictures kept back
    finished: bool


class Run:
    """Everything that changes while learning."""

    def __init__(self, config: LayerConfig, settings: Settings, device: torch.device) -> None:
        torch.manual_seed(settings.seed)
        self.layer = ArrCocLayer(config).to(device)
        self.average = copy.deepcopy(self.layer).eval()
        self.optimizer = torch.optim.AdamW(
            self.layer.parameters(), settings.lr, betas=(0.9, 0.98), weight_decay=settings.weight_decay
        )
        self.step, self.seconds = 0, 0.0

    def save(self, path: Path, settings: Settings) -> None:
        parts = {name: getattr(self, name).state_dict() for name in ("layer", "average", "optimizer")}
        spare = path.with_suffix(".unfinished")
        torch.save(parts | {"counts": (self.step, self.seconds), "shape": self.layer.config.to_dict()}, spare)
        os.replace(spare, path)  # a call killed while saving must not lose the last good one

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.layer.mean.device, weights_only=True)
        if LayerConfig.from_dict(state["shape"]) != self.layer.config:
            raise LayerError(
                f"{str(path)!r} is of another model or shape: name another folder, or start anew with --fresh"
            )
        for name in ("layer", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seconds = state["counts"]

    def update(self, rate: float, keep: float, team: Team) -> None:
        """One step of the optimiser, and the moving average after it."""
        team.average_gradients(self.layer.parameters())
        torch.nn.utils.clip_grad_norm_(self.layer.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        keep = min(keep, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.layer.parameters()), 1 - keep)
        self.step += 1


def standardise(layer: ArrCocLayer, lessons: Sequence[Lesson]) -> None:
    """Channels of any size, each with mean 0 and spread 1 over the lessons."""
    values = torch.cat([view.channels.float().transpose(0, 1).flatten(1) for one in lessons for view in one.views], 1)
    layer.mean.copy_(values.mean(1)[:, None, None])
    spread = values.std(1)[:, None, None]
    layer.spread.copy_(torch.where(spread > 1e-4, spread, 1.0))  # a channel that nobody supplied stays 0


def learn(
    vlm: VLM, config: LayerConfig, lessons: Sequence[Lesson], kept_back: Sequence[Lesson], out: Path,
    settings: Settings = Settings(), *, journal: Journal, team: Team = Team(),  # noqa: B008
    tick: Callable[[float, str], None] = lambda progress, what: None,
) -> Learned:  # fmt: skip
    """Learn until the schedule ends, or something asks to stop; goes on from `out`'s checkpoint."""
    device = vlm.device
    run = Run(config, settings, device)
    standardise(run.layer, lessons)
    standardise(run.average, lessons)
    path = out / CHECKPOINT
    if path.exists():
        run.load(path)
    team.share(run.layer.parameters())
    draws = Draws(lessons, settings, settings.seed + 1000 * run.step + team.rank)
    chance = random.Random(settings.seed + run.step + 77 * team.rank)
    journal.open(run.step)
    told = saved = looked = started = time.monotonic()
    before = run.seconds
    with Stopping() as stopping:
        while True:
            now = time.monotonic()
            run.seconds = before + now - started
            progress = settings.progress(run.step, run.seconds)
            (progress, stop), _ = team.agree((progress, float(stopping.asked)), ())
            if progress >= 1 or stop:
                break
            losses = _losses(vlm, run.layer, draws.next(device), settings, chance)
            rate = settings.rate(run.step, progress)
            sum(losses.values()).backward()  # type: ignore[union-attr]
            run.update(rate, settings.average, team)
            if not team.leads:
                continue
            if now - told > TELL_EVERY:
                told = now
                values = {name: round(float(loss.detach()), 4) for name, loss in losses.items()}
                journal.told(progress, {"step": run.step, "seconds": round(run.seconds, 1), **values})
                journal.draw({f"loss/{name}": value for name, value in values.items()}, run.step)
            tick(progress, f"step {run.step}")
            if now - saved > SAVE_EVERY:
                saved = now
                run.save(path, settings)
            if now - looked > MEASURE_EVERY:
                started += _measure(run, kept_back, device, journal)
                looked = time.monotonic()
    if team.leads:
        run.save(path, settings)
        run.average.save_pretrained(out)
    found = measured(run.average, kept_back, device) if team.leads else {}
    journal.note({"step": run.step, "seconds": round(run.seconds, 1), "recall": found, "settings": asdict(settings)})
    return Learned(run.average, run.step, run.seconds, found, progress >= 1)


def _losses(
    vlm: VLM, layer: ArrCocLayer, batch: Batch, settings: Settings, chance: random.Random
) -> dict[str, torch.Tensor]:
    judged = batch.judged(layer)
    losses = box_losses(batch, judged) if "boxes" in settings.learn else {}
    losses |= model_losses(vlm, batch, judged, settings, chance)
    # Whatever a batch does not ask for still has a gradient, of nothing: all processes average all of them.
    return losses or {"nothing": 0 * judged.relevance.sum()}


def _measure(run: Run, kept_back: Sequence[Lesson], device: torch.device, journal: Journal) -> float:
    """Measure on the way; returns the seconds it took, which are not seconds of learning."""
    started = time.monotonic()
    found = measured(run.average, kept_back, device)
    journal.note({"step": run.step, "seconds": round(run.seconds, 1), "recall": found})
    journal.draw({f"evidence recall/{name}": value for name, value in found.items()}, run.step)
    print("  " + "  ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)
    return time.monotonic() - started
