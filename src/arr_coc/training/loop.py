"""The training loop that layers, fine-tuning and the recipes share.

A `Task` knows its model: one optimiser step, saving, validation, logging. `run_steps` knows the schedule: progress, time
limits, what is due, and stop signals. Rank 0 decides before every step, so that all ranks take the same steps.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from arr_coc.errors import ArrCocError, first_line
from arr_coc.files import replacing
from arr_coc.training.distributed import World

MIN_LEFT_TO_VALIDATE = 60.0  # seconds: closer to the end only the final validation runs
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Counts(Protocol):
    """What a run has done, over all of its calls."""

    step: int
    seconds: float
    images: int


@dataclass
class TrainingCounts:
    """The plain `Counts`."""

    step: int = 0
    seconds: float = 0.0
    images: int = 0


class Task:
    """What `run_steps` trains. `save` and `validate` run on every rank, `log` on rank 0 only."""

    counts: Counts
    label = ""  # before the step number in the progress bar

    def step(self, progress: float) -> int:
        """One optimiser step at `progress` (0 to 1) of the schedule. Returns the number of images it used."""
        raise NotImplementedError

    def save(self) -> None:
        pass

    def validate(self) -> None:
        pass

    def log(self, progress: float, clock: Clock) -> None:
        pass


class Clock:
    """Time and progress of one call, counted from its construction.

    The schedule ends after `schedule` seconds or `steps` steps, over all calls, whichever comes first. `before`: seconds that
    earlier calls trained. `end`: when this call must stop, by `now`. `finish`: the schedule ends when this call does.
    `every`: seconds between "log", "save" and "validate"; what is not listed is never due.
    """

    def __init__(
        self, schedule: float = math.inf, *, steps: int | None = None, before: float = 0.0, end: float = math.inf,
        finish: bool = False, every: Mapping[str, float], now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._now, self._before, self._end, self._finish = now, before, end, finish
        self._steps = math.inf if steps is None else steps
        self.begun = now()
        available = max(1.0, end - self.begun)
        self._schedule = before + available if finish else schedule
        self.total = available if finish else min(available, max(0.0, schedule - before))
        self._paused = 0.0
        self._every = dict(every)
        self._last = dict.fromkeys(every, self.begun)

    @property
    def elapsed(self) -> float:
        """Seconds of training in this call, without pauses."""
        return self._now() - self.begun - self._paused

    @property
    def seconds(self) -> float:
        """Seconds of training over all calls, without pauses."""
        return self._before + self.elapsed

    def progress(self, step: int = 0) -> float:
        """Share of the schedule that is done. With `finish`, pauses count, too: the schedule must end with the call."""
        by_time = (self.seconds + self._paused * self._finish) / self._schedule
        return min(1.0, max(by_time, step / self._steps))

    def call_progress(self, step: int = 0) -> float:
        """Share of this call that is done, for a progress bar."""
        return min(1.0, max(self.elapsed / max(self.total, 1e-9), step / self._steps))

    def left(self, step: int = 0) -> float:
        """Seconds of training that are left to this call."""
        if step >= self._steps:
            return 0.0
        rest = self._end - self._now()
        return rest if self._finish else min(rest, self._schedule - self.seconds)

    def due(self, what: str) -> bool:
        """Whether it is time to "log", "save" or "validate". If so, the next interval begins."""
        now = self._now()
        if what not in self._every or now - self._last[what] <= self._every[what]:
            return False
        if what == "validate" and self.left() <= MIN_LEFT_TO_VALIDATE:
            return False
        self._last[what] = now
        return True

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time inside is not training time, and does not bring the next validation closer."""
        stopped = self._now()
        yield
        took = self._now() - stopped
        self._paused += took
        if "validate" in self._last:
            self._last["validate"] += took


def run_steps(
    task: Task, clock: Clock, stop: StopSignals, *, world: World = World(), max_steps: int | None = None,  # noqa: B008
    tick: Callable[[float, str], None] = lambda share, what: None,
) -> bool:  # fmt: skip
    """Train until the schedule, this call's time or `max_steps` ends, or a signal asks any rank to stop.

    Returns whether it ended without a stop signal.
    """
    counts, first, new_images = task.counts, task.counts.step, 0
    while True:
        more = clock.left(counts.step) > 0 and (max_steps is None or counts.step < max_steps)
        begun = world.is_main and more and counts.step > first
        due = [begun and clock.due(what) for what in ("validate", "save")]
        decision, (stops, images) = world.sync(
            (more, clock.seconds, clock.progress(counts.step), *due), (stop.requested, new_images)
        )
        go_on, counts.seconds, progress, to_validate, to_save = decision
        counts.images += int(images)
        stop.requested = stop.requested or stops > 0
        if stop.requested or not go_on:
            return not go_on
        if to_save:
            task.save()
        if to_validate:
            with clock.pause():
                task.validate()
                world.barrier()
        new_images = task.step(progress)
        counts.step += 1
        if world.is_main:
            tick(clock.call_progress(counts.step), f"{task.label}step {counts.step}")
            if clock.due("log"):
                task.log(progress, clock)


class StopSignals:
    """While it is entered, SIGTERM and the first ctrl-C only set `requested`."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:  # a second ctrl-C ends at once
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt, so that worker processes are shut down."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ignore_first_signal() -> None:
    """For worker processes: the first signal goes to the whole process group and is left to the trainer."""

    def restore(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        signal.signal(number, restore)


def cosine_rate(lr: float, step: int, progress: float, *, warmup_steps: int, last: float = 0.0) -> float:
    """Learning rate: linear warmup by steps, then a cosine over `progress` from `lr` down to `last * lr`."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return lr * min(1.0, (step + 1) / warmup_steps) * (last + (1 - last) * cosine)


def step_optimizers(
    optimizers: Iterable[torch.optim.Optimizer], parameters: Sequence[nn.Parameter], lr: float, clip: float = 1.0
) -> None:
    """Clip the gradients and step. A parameter group's `rate_share` scales its learning rate."""
    nn.utils.clip_grad_norm_(parameters, clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("rate_share", 1.0)
        optimizer.step()


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """Move the exponential moving average towards the model. The decay rises to `decay` over the first steps."""
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint. A run killed while saving keeps the last complete one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, only_writer=True) as temporary:
            torch.save(state, temporary)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError when the disk is full
        why = getattr(error, "strerror", None) or f"{first_line(error)}; is the disk full?"
        raise ArrCocError(f"cannot write the checkpoint {str(path)!r}: {why}") from None
