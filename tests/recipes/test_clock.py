"""The clock of a call: the schedule's share, what is due, and the end."""

import math

import pytest

from recipes.reader.clock import Clock
from recipes.reader.settings import SCHEDULE_SECONDS, Settings


class Time:
    """A clock on the wall that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_without_a_limit_a_call_runs_the_whole_schedule() -> None:
    time = Time()
    clock = Clock(Settings(), 0.0, started=900.0, now=time)
    assert clock.total == clock.left == SCHEDULE_SECONDS
    time.now += SCHEDULE_SECONDS / 2
    assert clock.progress == pytest.approx(0.5)
    time.now += SCHEDULE_SECONDS / 2
    assert clock.left == 0
    assert clock.progress == 1


def test_a_limited_call_stops_in_time_and_the_next_goes_on() -> None:
    time = Time()
    first = Clock(Settings(seconds=600, schedule_seconds=1200, reserve=25), 0.0, started=900.0, now=time)
    assert first.left == first.total == 600 - 100 - 25
    time.now += first.left
    assert first.left == 0
    second = Clock(Settings(seconds=1e4, schedule_seconds=1200), first.seconds, started=time.now, now=time)
    assert second.progress == pytest.approx(475 / 1200)
    assert second.left == 1200 - 475  # no longer than the schedule


def test_finish_ends_the_schedule_with_the_call_whatever_is_measured_meanwhile() -> None:
    time = Time()
    clock = Clock(Settings(seconds=100, schedule_seconds=1e6, finish=True, reserve=0), 50.0, started=time.now, now=time)
    assert clock.progress == pytest.approx(50 / 150)
    with clock.pause():
        time.now += 40
    assert clock.seconds == 50
    assert clock.progress == pytest.approx(90 / 150)
    time.now += 60
    assert clock.progress == 1
    assert clock.left == 0
    with pytest.raises(ValueError, match="finish"):
        Settings(finish=True)


def test_a_pause_is_no_training() -> None:
    time = Time()
    clock = Clock(Settings(schedule_seconds=1000, measure_every=150), 0.0, started=time.now, now=time)
    time.now += 200
    assert clock.due("measure")
    with clock.pause():
        time.now += 140
    assert clock.seconds == 200
    assert clock.progress == pytest.approx(0.2)
    time.now += 20
    assert not clock.due("measure")  # 160 s since the last one began, 20 since it ended
    time.now += 131
    assert clock.due("measure")


def test_what_was_due_is_not_due_again_at_once() -> None:
    time = Time()
    clock = Clock(Settings(save_every=60), 0.0, started=time.now, now=time)
    assert not clock.due("save")
    time.now += 61
    assert clock.due("save")
    assert not clock.due("save")
    assert math.isfinite(clock.left)


def test_shortly_before_the_end_nothing_is_measured() -> None:
    time = Time()
    clock = Clock(Settings(schedule_seconds=200, measure_every=150), 0.0, started=time.now, now=time)
    time.now += 151
    assert not clock.due("measure")
