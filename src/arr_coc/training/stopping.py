"""Stopping in good order when something outside, such as `timeout` or ctrl-C, asks for it: what was learned is written first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_REQUESTS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """While it is entered, SIGTERM and a first ctrl-C end nothing and are only noted in `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if number == signal.SIGINT:  # whoever presses it again does not want to wait
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> "Stopping":
        self._before = {number: signal.signal(number, self._note) for number in _REQUESTS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM is like ctrl-C: blocks are left in good order, and worker processes end with them."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def outlive_first_request() -> None:
    """For worker processes: the first request is meant for the whole group and left to the trainer, the next one counts."""

    def pass_over(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)

    for number in _REQUESTS:
        signal.signal(number, pass_over)
