"""`arr_coc.watch`: one allocation for each frame of a clip or camera, as the frames come.

    frame -> scene change? -> memory: reuse, recompute where it changed -> realize -> allocation

Memory does not grow with the clip: the frame before, one anchor and one keyframe are kept.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import cv2
import numpy as np
import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import Encoder
from arr_coc.errors import ArrCocError, VideoError, whole_number
from arr_coc.frames.reader import Frame, Reader, VideoSource, check_fps, sample_at
from arr_coc.frames.scene import SceneDetector
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Budget, limit
from arr_coc.types.gaze import Gaze, check_gaze
from arr_coc.types.question import check_question
from arr_coc.video.memory import Memory, MemorySettings, Reuse
from arr_coc.vlm.api import realize

CELL = 28  # px of a cell's side if no grid is given
QUEUE = 2  # frames of a camera that wait for the consumer
JOIN_TIMEOUT = 5.0  # seconds that `close` waits for a frame that is being read
Drop: TypeAlias = Literal["auto", "never", "oldest"]
Spend: TypeAlias = Literal["every", "new"]


@dataclass(frozen=True, eq=False)
class WatchedFrame:
    """One frame, its allocation, and what it cost."""

    number: int  # in the source
    time: float  # seconds from its start
    pixels: np.ndarray = field(repr=False)  # uint8 [H, W, 3]
    allocation: Allocation
    reuse: Reuse
    scene: str = ""  # "cut" or "fade" on the first frame of a new scene
    dropped: int = 0  # frames skipped before it because the consumer was too slow
    ms: float = 0.0  # total time

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        allocation = self.allocation.to_dict()
        return {
            "frame": self.number,
            "time": round(self.time, 6),
            "scene": self.scene,
            "dropped": self.dropped,
            "reused": {"texture": round(self.reuse.texture, 4), "features": round(self.reuse.features, 4)},
            "why": self.reuse.why,
            "moved": round(self.reuse.moved, 6),
            "ms": round(self.ms, 2),
            **{name: value for name, value in allocation.items() if name not in ("row", "kind", "selector")},
        }


class LatestFrames(Iterator[Frame]):
    """Reads a live source in a thread and drops the oldest waiting frames when the consumer is too slow.

    Each frame says how many were dropped before it. Numbers and times stay those of the source.
    """

    def __init__(self, source: Iterator[Frame], size: int = QUEUE) -> None:
        if whole_number(size) is None:
            raise VideoError(f"expected room for at least 1 waiting frame, got {size!r}")
        self._source = source
        self._queue: deque[Frame] = deque(maxlen=size)  # a full deque drops its oldest frame
        self._dropped = 0  # since the last frame that was returned
        self._done = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for frame in self._source:
                with self._changed:
                    if self._done:
                        return
                    self._dropped += len(self._queue) == self._queue.maxlen
                    self._queue.append(frame)
                    self._changed.notify()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def __next__(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._done)
            if self._queue:
                frame = replace(self._queue.popleft(), dropped=self._dropped)
                self._dropped = 0
                return frame
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration

    def close(self) -> bool:
        """Stop reading; returns whether the thread has ended, so that the source can be closed."""
        with self._changed:
            self._done = True
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join(JOIN_TIMEOUT)
        return not self._thread.is_alive()


class WatchStream(Iterator[WatchedFrame]):
    """Allocate tokens on each frame: `for seen in arr_coc.watch("clip.mp4", "Where is the dog?", using="labels")`.

    Args:
        source: a file, "camera:0", a list of pictures, an array `[T, H, W, 3]`, a tensor `[T, 3, H, W]`, any iterator.
        question: what to look for. `ask` changes it between frames. It may be left out where a gaze is given.
        gaze: where a person looks: (x, y) in pixels of a frame, or a list of such points. Set `stream.gaze` to move it.
        using: embeddings or an encoder's name, to score cells by the question. None: the question is not used.
        budget: cells to keep on each frame, as in `arr_coc.realize`.
        grid: rows and columns of cells. None: cells of about 28 px.
        fps: frames a second of a source without timestamps.
        every: sample the source at this many frames a second. None: all frames.
        drop: "never" waits for the consumer, "oldest" drops frames that it has no time for, "auto" drops for cameras only.
        spend: "every" frame its whole budget, or only for content that is "new" on it.
        memory: how long results are reused.
        realizing: further settings of `arr_coc.realize`.
    """

    def __init__(
        self,
        source: VideoSource,
        question: str = "",
        *,
        gaze: Gaze | None = None,
        using: Embeddings | Encoder | str | Path | None = None,
        budget: Budget = "12.5%",
        grid: tuple[int, int] | None = None,
        fps: float | None = None,
        every: float | None = None,
        drop: Drop = "auto",
        spend: Spend = "every",
        memory: MemorySettings | None = None,
        realizing: Mapping[str, Any] | None = None,
    ) -> None:
        for what, value, known in (("drop", drop, get_args(Drop)), ("spend", spend, get_args(Spend))):
            if value not in known:
                raise ArrCocError(f"expected {what} as one of {', '.join(known)}, got {value!r}")
        if hasattr(using, "adapter"):
            raise ArrCocError(
                "expected embeddings or None for using, got a model: for its answers call vlm.ask(None, ..., video=...)"
            )
        limit(budget, 1000)
        self.embeddings = using if using is None or isinstance(using, Embeddings) else Embeddings(using)
        self.budget, self.grid, self.spend = budget, grid, spend
        self.gaze = None if gaze is None else check_gaze(gaze)
        self.memory = Memory(self.embeddings, memory or MemorySettings())
        self._options = dict(realizing or {})
        self._scenes = SceneDetector()
        self._reader = Reader(source, fps)
        frames: Iterator[Frame] = self._reader if every is None else sample_at(self._reader, check_fps(every))
        self._latest = LatestFrames(frames) if drop == "oldest" or (drop == "auto" and self._reader.live) else None
        self._frames: Iterator[Frame] = frames if self._latest is None else self._latest
        self._ahead: Frame | ArrCocError | None = None  # read ahead to confirm a cut, or the error of doing so
        self._kept: torch.Tensor | None = None  # [rows, columns] content that was kept on an earlier frame
        self.ask(question)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was wrong with the source, as far as it was read."""
        return tuple(self._reader.notes)

    @property
    def count(self) -> int | None:
        """The number of frames, where the source says."""
        return self._reader.count

    @property
    def rate(self) -> float:
        """Frames a second of the source, on average."""
        return self._reader.rate

    def ask(self, question: str) -> None:
        """Change the question from the next frame on: texture and features stay, relevance starts from nothing."""
        self.question = question if self.gaze is not None and question == "" else check_question(question)
        self.memory.reset_question()
        self._kept = None

    def __next__(self) -> WatchedFrame:
        frame = self._take()
        started = time.perf_counter()
        scene = self._scenes.update(_luma(frame), self._peek)
        unusual = scene.blank or (not scene.cut and scene.similarity < self._scenes.threshold)
        texture, reuse = self.memory.update(frame.pixels, scene.kind, passing=unusual)
        height, width = texture.original_size
        grid = self.grid or (max(1, round(height / CELL)), max(1, round(width / CELL)))
        found = realize(texture, self.question, grid, self.budget, self.embeddings, gaze=self.gaze, **self._options)
        if reuse.why != "passing":  # a flash changes neither the relevance nor what counts as new
            size = found.grid.views[0].h, found.grid.views[0].w
            if self.spend == "new":
                found = self._keep_new(found, size)
            if found.relevance is not None:
                self.memory.record_relevance(texture, found.relevance.view(size))
        ms = 1000 * (time.perf_counter() - started)
        return WatchedFrame(frame.number, frame.time, frame.pixels, found, reuse, scene.kind, frame.dropped, ms)

    def _take(self) -> Frame:
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, ArrCocError):
            raise ahead
        return ahead or next(self._frames)

    def _peek(self) -> torch.Tensor | None:
        """The luma of the next frame, read ahead."""
        if self._ahead is None:
            try:
                self._ahead = next(self._frames, None)
            except ArrCocError as error:  # the current frame is good: return it first
                self._ahead = error
        return _luma(self._ahead) if isinstance(self._ahead, Frame) else None

    def _keep_new(self, found: Allocation, size: tuple[int, int]) -> Allocation:
        """The allocation without cells whose content was kept on an earlier frame; at least one cell stays."""
        known = self.memory.warp_map(self._kept, size).flatten()
        new = found.keep[known[found.keep] < 0.5]
        if len(new) == 0 and len(found.keep):
            score = found.keep if found.relevance is None else found.relevance[found.keep]
            new = found.keep[score.argmax()][None]
        self._kept = known.index_fill(0, found.keep, 1.0).view(size)
        return replace(found, keep=new)

    def close(self) -> None:
        """Close the source."""
        if self._latest is None or self._latest.close():  # never while a thread still reads from it
            self._reader.close()

    def __enter__(self) -> WatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


watch = WatchStream  # the public name: `arr_coc.watch`


def _luma(frame: Frame) -> torch.Tensor:
    """A frame's luma `[H, W]` in [0, 1]."""
    return torch.from_numpy(cv2.cvtColor(frame.pixels, cv2.COLOR_RGB2GRAY)).float() / 255
