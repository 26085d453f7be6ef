"""Stopping in good order when something outside, such as `timeout`, asks for it: what was learned is written first."""

import signal
from types import FrameType
from typing import Any


class Stopping:
    """While it is entered, SIGTERM ends nothing and is only noted in `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def __enter__(self) -> "Stopping":
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)


def outlive_first_request() -> None:
    """For worker processes: the first SIGTERM is meant for the whole group and left to the trainer, the next one counts."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(signal.SIGTERM, signal.SIG_DFL))
