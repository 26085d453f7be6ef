"""The clock of one call: how far the schedule has come, what is due, and when to stop."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recipes.reader.settings import Settings

TELL_EVERY = 6.0  # seconds
_WORTH_MEASURING = 60.0  # seconds of training that must be left: the end is measured anyway


class Clock:
    """Counts from its making, when everything is compiled and the first batch can be trained on.

    `before`: seconds that earlier calls have trained for. `started`: when this call began.
    """

    def __init__(
        self, settings: Settings, before: float, started: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now, self._before, self._finish = now, before, settings.finish
        self.begun = now()
        self._end = math.inf if settings.seconds is None else started + settings.seconds - settings.reserve
        here = max(1.0, self._end - self.begun)
        self._schedule = before + here if settings.finish else settings.schedule_seconds
        self.total = here if settings.finish else min(here, max(0.0, settings.schedule_seconds - before))
        self._paused = 0.0
        self._every = {"tell": TELL_EVERY, "save": settings.save_every, "measure": settings.measure_every}
        self._last = dict.fromkeys(self._every, self.begun)

    @property
    def elapsed(self) -> float:
        """Seconds of training in this call, pauses not counted."""
        return self._now() - self.begun - self._paused

    @property
    def seconds(self) -> float:
        """Seconds of training over all calls, pauses not counted."""
        return self._before + self.elapsed

    @property
    def progress(self) -> float:
        """Share of the schedule that has passed. One that must end with the call goes on in pauses."""
        return min(1.0, (self.seconds + self._paused * self._finish) / self._schedule)

    @property
    def left(self) -> float:
        """Seconds of training that are left to this call."""
        rest = self._end - self._now()
        return rest if self._finish else min(rest, self._schedule - self.seconds)

    def due(self, what: str) -> bool:
        """Whether it is time to `tell`, `save` or `measure`; counts from the last time it was."""
        now = self._now()
        if now - self._last[what] <= self._every[what] or (what == "measure" and self.left <= _WORTH_MEASURING):
            return False
        self._last[what] = now
        return True

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What happens meanwhile is no training, and does not bring the next measurement nearer."""
        stopped = self._now()
        yield
        took = self._now() - stopped
        self._paused += took
        self._last["measure"] += took
