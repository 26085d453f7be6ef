"""Learning a layer for a frozen model: lessons, steps, checkpoints that a later call goes on from."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from arr_coc.errors import ArrCocError, DataError, LayerError, first_line
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.image_novelty import told, usual
from arr_coc.layer.model import ArrCocLayer
from arr_coc.layer.question_novelty import padded
from arr_coc.training.distributed import Team
from arr_coc.training.examples import Lesson
from arr_coc.training.journal import Journal
from arr_coc.training.look_cache import Looks
from arr_coc.training.metrics import measured
from arr_coc.training.model_losses import model_losses
from arr_coc.training.settings import Settings
from arr_coc.training.steps import Batch, Draws, box_losses
from arr_coc.training.stopping import Stopping
from arr_coc.vlm.model import VLM

TELL_EVERY, SAVE_EVERY, MEASURE_EVERY = 6.0, 60.0, 120.0  # seconds
CHECKPOINT = "checkpoint.pt"
TOGETHER = 256  # questions


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
        if not all(bool(weights.isfinite().all()) for weights in self.layer.parameters()):
            raise LayerError(
                f"learning went astray before step {self.step}, and what was saved before is kept: try a lower learning rate (--lr)"
            )
        parts = {name: getattr(self, name).state_dict() for name in ("layer", "average", "optimizer")}
        spare = path.with_suffix(".unfinished")
        said = {"shape": self.layer.config.to_dict(), "settings": asdict(settings), "counts": (self.step, self.seconds)}
        torch.save(parts | said, spare)
        os.replace(spare, path)  # a call killed while saving must not lose the last good one

    def load(self, path: Path, settings: Settings) -> None:
        """Go on from a checkpoint; only how long to learn may have changed since."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)  # step counts have to stay there
            before = Settings(**state["settings"])
        except Exception as error:  # broken files are reported in many ways
            raise LayerError(
                f"cannot go on from {str(path)!r} ({first_line(error)}): start anew with --fresh"
            ) from None
        if LayerConfig.from_dict(state["shape"]) != self.layer.config:
            raise LayerError(
                f"{str(path)!r} is of another model or shape: name another folder, or start anew with --fresh"
            )
        if replace(before, steps=settings.steps, minutes=settings.minutes) != settings:
            changed = [name for name, value in asdict(settings).items() if value != getattr(before, name)]
            changed = [name for name in changed if name not in ("steps", "minutes")]
            raise LayerError(
                f"{str(path)!r} has learned with another {' and '.join(changed)}: go on as before, name another folder, or "
                "start anew with --fresh"
            )
        for name in ("layer", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seconds = state["counts"]

    def update(self, rate: float, keep: float, team: Team) -> None:
        """One step of the optimiser, and the moving average after it."""
        if team.size > 1:
            for parameter in self.layer.parameters():
                if parameter.grad is None:  # this batch had no use for it, but another process's may
                    parameter.grad = torch.zeros_like(parameter)
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
    """Channels of any size, each with mean 0 and spread 1 over the lessons; and what these pictures are like."""
    count, total, squares = 0, torch.zeros(len(layer.mean)).double(), torch.zeros(len(layer.mean)).double()
    for view in (view for one in lessons for view in one.views):
        values = view.channels.double().transpose(0, 1).flatten(1)  # [C, t h w]
        count, total, squares = count + values.shape[1], total + values.sum(1), squares + values.square().sum(1)
    mean = total / count
    spread = (squares / count - mean.square()).clamp(min=0).sqrt()
    layer.mean.copy_(mean[:, None, None])
    mean, inverse = usual([told(one.views[0].channels, layer.config.channels) for one in lessons])
    layer.usual.copy_(mean)
    layer.unusual.copy_(inverse)
    # A channel that nobody supplied stays 0.
    layer.spread.copy_(torch.where(spread > 1e-4, spread, 1.0)[:, None, None])


def learn(
    vlm: VLM, config: LayerConfig, lessons: Sequence[Lesson], kept_back: Sequence[Lesson], out: Path,
    settings: Settings = Settings(), *, journal: Journal, looks: Looks | None = None, team: Team = Team(),  # noqa: B008
    tick: Callable[[float, str], None] = lambda progress, what: None,
) -> Learned:  # fmt: skip
    """Learn until the schedule ends, or something asks to stop; goes on from `out`'s checkpoint.

    A schedule of steps goes on exactly: stopped and gone on with, it ends with the same weights. By the clock it cannot.
    """
    if not lessons:
        raise DataError("expected lessons to learn from, got none")
    device = vlm.device
    run = Run(config, settings, device)
    standardise(run.layer, lessons)
    standardise(run.average, lessons)
    path = out / CHECKPOINT
    if path.exists():
        run.load(path, settings)
    # The channels' mean and spread, too: each process has other lessons.
    team.share([*run.layer.state_dict().values(), *run.average.state_dict().values()])
    draws, looks = Draws(lessons, settings, team.rank), Looks(vlm) if looks is None else looks
    journal.open(run.step)
    first, taught = run.step, False
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
            losses = _losses(looks, run, draws.at(run.step, device), settings, team.rank)
            rate = settings.rate(run.step, progress)
            sum(losses.values()).backward()  # type: ignore[union-attr]
            run.update(rate, settings.average, team)
            taught = taught or "nothing" not in losses
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
    _, (teaching,) = team.agree((), (float(taught),))
    if run.step > first == 0 and not teaching:
        raise ArrCocError(
            f"nothing was learned in {run.step} steps from {' and '.join(settings.learn)}: the model gave no right answer whose "
            "attention could teach; learn from boxes or answers"
        )
    found: dict[str, float] = {}
    if team.leads:
        run.save(path, settings)
        run.average.remember(heard(run.average, lessons, device))
        run.average.save_pretrained(out)
        found = measured(run.average, kept_back, device)
        said = {"step": run.step, "seconds": round(run.seconds, 1), "recall": found, "settings": asdict(settings)}
        journal.note(said)
    return Learned(run.average, run.step, run.seconds, found, progress >= 1)


@torch.inference_mode()
def heard(layer: ArrCocLayer, lessons: Sequence[Lesson], device: torch.device) -> torch.Tensor:
    """The questions that were learned from, `[Q, d]` as the layer hears them: those with evidence, where there are any."""
    every = [one for lesson in lessons for one in lesson.asked]
    words = [one.words for one in every if one.groups] or [one.words for one in every]
    blocks = (padded(words[start : start + TOGETHER]) for start in range(0, len(words), TOGETHER))
    return torch.cat([layer.hear(some.to(device), there.to(device)).cpu() for some, there in blocks])


def _losses(looks: Looks, run: Run, batch: Batch, settings: Settings, rank: int) -> dict[str, torch.Tensor]:
    judged = batch.judged(run.layer)
    losses = box_losses(batch, judged) if "boxes" in settings.learn else {}
    losses |= model_losses(looks, batch, judged, settings, settings.chance("ask", run.step, rank))
    return losses or {"nothing": 0 * judged.relevance.sum()}


def _measure(run: Run, kept_back: Sequence[Lesson], device: torch.device, journal: Journal) -> float:
    """Measure on the way; returns the seconds it took, which are not seconds of learning."""
    started = time.monotonic()
    found = measured(run.average, kept_back, device)
    journal.note({"step": run.step, "seconds": round(run.seconds, 1), "recall": found})
    journal.draw({f"evidence recall/{name}": value for name, value in found.items()}, run.step)
    if found:
        print("  " + "  ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)
    return time.monotonic() - started
