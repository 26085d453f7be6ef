"""The shared loop: the clock's schedule, what is due, stop signals, and what a task is asked to do."""

import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.training.distributed import World
from arr_coc.training.loop import (
    Clock,
    StopSignals,
    Task,
    TrainingCounts,
    cosine_rate,
    run_steps,
    save_checkpoint,
    step_optimizers,
    update_average,
)


class Time:
    """A clock that moves only by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def clock(time: Time, schedule: float = math.inf, **options: Any) -> Clock:
    return Clock(schedule, now=time, every={"log": 6, "save": 60, "validate": 150}, **options)


def test_without_a_limit_a_call_runs_the_whole_schedule() -> None:
    time = Time()
    one = clock(time, 1380)
    assert one.total == one.left() == 1380
    time.now += 690
    assert one.progress() == one.call_progress() == pytest.approx(0.5)
    time.now += 690
    assert one.left() == 0
    assert one.progress() == 1


def test_a_limited_call_stops_in_time_and_the_next_one_resumes() -> None:
    time = Time()
    first = clock(time, 1200, end=1475.0)
    assert first.left() == first.total == 475
    time.now += first.left()
    assert first.left() == 0
    second = clock(time, 1200, before=first.seconds, end=time.now + 1e4)
    assert second.progress() == pytest.approx(475 / 1200)
    assert second.left() == 1200 - 475  # no longer than the schedule


def test_finish_ends_the_schedule_with_the_call_and_counts_pauses() -> None:
    time = Time()
    one = clock(time, 1e6, before=50.0, end=1100.0, finish=True)
    assert one.progress() == pytest.approx(50 / 150)
    with one.pause():
        time.now += 40
    assert one.seconds == 50
    assert one.progress() == pytest.approx(90 / 150)
    time.now += 60
    assert one.progress() == 1
    assert one.left() == 0


def test_a_schedule_of_steps_ends_by_steps_or_by_time() -> None:
    time = Time()
    steps = clock(time, steps=8)
    assert steps.progress(2) == steps.call_progress(2) == 0.25
    assert steps.left(7) == math.inf
    assert steps.left(8) == 0
    both = clock(time, 10, steps=100)
    time.now += 4
    assert both.progress(20) == pytest.approx(0.4)
    assert both.progress(60) == pytest.approx(0.6)
    time.now += 6
    assert both.left(20) == 0


def test_a_pause_is_not_training_time() -> None:
    time = Time()
    one = clock(time, 1000)
    time.now += 200
    assert one.due("validate")
    with one.pause():
        time.now += 140
    assert one.seconds == 200
    assert one.progress() == pytest.approx(0.2)
    time.now += 20
    assert not one.due("validate")  # 160 s since the last one began, 20 since it ended
    time.now += 131
    assert one.due("validate")


def test_what_was_due_begins_a_new_interval() -> None:
    time = Time()
    one = clock(time)
    assert not one.due("save")
    time.now += 61
    assert one.due("save")
    assert not one.due("save")
    assert not Clock(every={}).due("save")  # what is not listed is never due


def test_nothing_is_validated_shortly_before_the_end() -> None:
    time = Time()
    one = clock(time, 200)
    time.now += 151
    assert not one.due("validate")


class Recorded(Task):
    """Writes down what the loop asks for; each step takes 40 seconds."""

    def __init__(self, time: Time, stop: StopSignals, stop_at: int | None = None) -> None:
        self.counts, self.calls = TrainingCounts(), list[str]()
        self.time, self.stop, self.stop_at = time, stop, stop_at

    def step(self, progress: float) -> int:
        self.calls.append(f"step {progress:.2f}")
        self.time.now += 40
        self.stop.requested = self.counts.step == self.stop_at
        return 3

    def save(self) -> None:
        self.calls.append("save")

    def validate(self) -> None:
        self.calls.append("validate")
        self.time.now += 1000

    def log(self, progress: float, clock: Clock) -> None:
        self.calls.append("log")


def test_the_loop_steps_logs_saves_and_validates() -> None:
    time, stop = Time(), StopSignals()
    task, shown = Recorded(time, stop), list[tuple[float, str]]()
    assert run_steps(task, clock(time, steps=5), stop, tick=lambda share, what: shown.append((share, what)))
    steps = [f"step {share:.2f}" for share in (0, 0.2, 0.4, 0.6, 0.8)]
    assert task.calls == [
        steps[0], "log", steps[1], "log", "save", steps[2], "log", steps[3], "log", "save", "validate", steps[4], "log",
    ]  # fmt: skip
    assert (task.counts.step, task.counts.seconds, task.counts.images) == (5, 200, 15)
    assert shown[-1] == (1.0, "step 5")


def test_the_loop_stops_at_a_signal_and_after_max_steps() -> None:
    time, stop = Time(), StopSignals()
    task = Recorded(time, stop, stop_at=1)
    assert not run_steps(task, clock(time, steps=5), stop)
    assert (task.counts.step, task.counts.images) == (2, 6)
    task.stop_at, stop.requested = None, False
    assert run_steps(task, clock(time, steps=5), stop, max_steps=4)
    assert task.counts.step == 4


def test_every_rank_follows_rank_0_and_stops_when_any_rank_does() -> None:
    class Second(World):
        """Rank 1 of 2: rank 0 is at progress 0.5, saves at once, and gets a signal before the third step."""

        def sync(self, decision: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
            if not decision:
                return [], list(counts)
            assert not any(decision[3:])  # only rank 0 decides what is due
            return [1.0, 7.0, 0.5, 0.0, 1.0], [counts[0] + (task.counts.step == 2), counts[1] + 5]

    time, stop = Time(), StopSignals()
    task = Recorded(time, stop)
    assert not run_steps(task, clock(time, steps=1), stop, world=Second(1, 2))
    assert task.calls == ["save", "step 0.50"] * 2  # no log, and its own schedule has no say
    assert (task.counts.seconds, task.counts.images) == (7.0, 5 + 8 + 8)
    assert stop.requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_the_learning_rate_rises_then_falls() -> None:
    rates = [
        cosine_rate(1.0, step, share, warmup_steps=5, last=0.1) for step, share in ((0, 0), (5, 0), (9, 0.5), (9, 2))
    ]
    assert rates == pytest.approx([0.2, 1.0, 0.55, 0.1])


def test_steps_clip_gradients_and_scale_groups() -> None:
    fast, slow = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [fast]}, {"params": [slow], "rate_share": 0.5}], lr=9.0)
    fast.grad, slow.grad = torch.tensor([3.0]), torch.tensor([4.0])
    step_optimizers([optimizer], [fast, slow], lr=0.1, clip=1.0)
    assert fast.item() == pytest.approx(-0.1 * 0.6)
    assert slow.item() == pytest.approx(-0.05 * 0.8)


def test_the_average_follows_fast_at_first() -> None:
    model, average = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    for step, moved in ((0, 0.9), (10**6, 0.1)):
        with torch.no_grad():
            model.weight.fill_(1.0)
            average.weight.fill_(0.0)
        update_average(average, model, 0.9, step)
        assert average.weight.item() == pytest.approx(moved)


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(path, {"step": lambda: 2})
    assert torch.load(path) == {"step": 1}


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing file")]
)
def test_a_full_disk_is_one_sentence_and_keeps_the_last_checkpoint(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.pt"
    save_checkpoint(path, {"step": 1})

    def fail(state: object, target: Path) -> None:
        target.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(ArrCocError, match=r"cannot write the checkpoint .*state\.pt.*: "):
        save_checkpoint(path, {"step": 2})
    monkeypatch.undo()
    assert torch.load(path) == {"step": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["state.pt"]
