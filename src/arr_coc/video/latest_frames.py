"""Hurrying: frames come whether or not anybody has time for them; the oldest of those that wait are dropped.

A file waits for its reader. A camera does not: a thread takes its frames, a few wait, and each frame that is handed out says
how many were dropped before it. Numbers and times are the source's own, so that nothing shifts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from arr_coc.errors import VideoError, whole_number
from arr_coc.frames.reader import Frame

WAITING = 2  # frames
PATIENCE = 5.0  # seconds that a frame under way is waited for


class Hurry(Iterator[Frame]):
    """The frames of a source as they come, the newest few waiting."""

    def __init__(self, source: Iterator[Frame], waiting: int = WAITING) -> None:
        if whole_number(waiting) is None:
            raise VideoError(f"expected at least 1 frame that may wait, got {waiting!r}")
        self._source = source
        self._waiting: deque[Frame] = deque()
        self._most = waiting
        self._dropped = 0  # since the last frame that was handed out
        self._over = False
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            for frame in self._source:
                with self._change:
                    if self._over:
                        return
                    if len(self._waiting) == self._most:
                        self._waiting.popleft()
                        self._dropped += 1
                    self._waiting.append(frame)
                    self._change.notify()
        except BaseException as error:
            self._error = error
        finally:
            with self._change:
                self._over = True
                self._change.notify_all()

    def __next__(self) -> Frame:
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._over)
            if self._waiting:
                frame = replace(self._waiting.popleft(), dropped=self._dropped)
                self._dropped = 0
                return frame
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration

    def close(self) -> bool:
        """Take no more frames; whether the source is not being read from any more."""
        with self._change:
            self._over = True
            self._waiting.clear()
            self._change.notify_all()
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()
