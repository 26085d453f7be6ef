"""Stream: a clip and a question to one allocation after another, as the frames come.

    frame -> a new scene? -> memory: carry over, look again where it changed -> realize -> allocation

Nothing grows with the clip: the frame before, one anchor and one keyframe are all that is held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import cv2
import numpy as np
import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import Encoder
from arr_coc.errors import ArrCocError, VideoError
from arr_coc.frames.reader import Footage, Frame, Reader, rate_of, sampled
from arr_coc.frames.scene import Scenes, Seen
from arr_coc.texture import TextureArray
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Budget, limit
from arr_coc.video.latest_frames import Hurry
from arr_coc.video.memory import Memory, Reuse, Settings
from arr_coc.vlm.realize import realize

CELL = 28  # px of a cell where nobody names a grid
Drop: TypeAlias = Literal["auto", "never", "oldest"]
Spend: TypeAlias = Literal["every", "new"]


@dataclass(frozen=True, eq=False)
class Watched:
    """One frame, what matters on it, and what that cost."""

    number: int  # in the clip as it came
    time: float  # seconds from its start
    pixels: np.ndarray = field(repr=False)  # uint8 [H, W, 3]
    allocation: Allocation
    reuse: Reuse
    scene: str = ""  # "cut" or "fade" on the first frame of a new scene
    dropped: int = 0  # frames before it that there was no time for
    ms: float = 0.0  # that all of it took

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "frame": self.number,
            "time": round(self.time, 6),
            "scene": self.scene,
            "dropped": self.dropped,
            "reused": {"texture": round(self.reuse.texture, 4), "features": round(self.reuse.features, 4)},
            "why": self.reuse.why,
            "moved": round(self.reuse.moved, 6),
            "ms": round(self.ms, 2),
            **{
                name: value
                for name, value in self.allocation.to_dict().items()
                if name not in ("row", "kind", "selector")
            },
        }


class Stream(Iterator[Watched]):
    """Watches a clip. `ask` puts another question in the middle; `notes` says what was wrong with the source."""

    def __init__(
        self,
        source: Footage,
        question: str,
        *,
        using: Embeddings | Encoder | str | Path | None = None,
        budget: Budget = "12.5%",
        grid: tuple[int, int] | None = None,
        fps: float | None = None,
        every: float | None = None,
        drop: Drop = "auto",
        spend: Spend = "every",
        memory: Settings = Settings(),  # noqa: B008
        realizing: Mapping[str, Any] | None = None,
    ) -> None:
        """Options.

        source: a file, "camera:0", a list of pictures, an array `[T, H, W, 3]`, a tensor `[T, 3, H, W]`, any iterator.
        using: embeddings or an encoder's name, for what the question has to do with a place; None: the question is not
        used. budget: cells to keep on a frame, as in `arr_coc.realize`. grid: rows and columns of cells. fps: frames a
        second of a source without times. every: take only so many frames a second. drop: "never" waits for the consumer,
        "oldest" drops what there is no time for, "auto" does that for cameras. spend: "every" frame its budget, or only
        what is "new" on it. memory: how long things are trusted. realizing: settings of `arr_coc.realize`.
        """
        for what, value, known in (("drop", drop, get_args(Drop)), ("spend", spend, get_args(Spend))):
            if value not in known:
                raise ArrCocError(f"expected {what} as one of {', '.join(known)}, got {value!r}")
        if hasattr(using, "adapter"):
            raise ArrCocError(
                "a stream asks embeddings or nothing: for a model's answers call vlm.ask(None, ..., video=...)"
            )
        limit(budget, 1000)
        self.embeddings = using if using is None or isinstance(using, Embeddings) else Embeddings(using)
        self.budget, self.grid, self.spend = budget, grid, spend
        self.memory = Memory(self.embeddings, memory)
        self._options = dict(realizing or {})
        self._scenes = Scenes()
        self._reader = Reader(source, fps)
        frames: Iterator[Frame] = self._reader if every is None else sampled(self._reader, rate_of(every))
        self._hurry = Hurry(frames) if drop == "oldest" or (drop == "auto" and self._reader.live) else None
        self._frames: Iterator[Frame] = frames if self._hurry is None else self._hurry
        self._ahead: Frame | None = None  # read already, because the one before it was unusual
        self._broken: ArrCocError | None = None  # what went wrong with it
        self._told: torch.Tensor | None = None  # [rows, columns] what of this frame was kept on an earlier one
        self.ask(question)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was wrong with the source, as far as it was read."""
        return tuple(self._reader.notes)

    @property
    def count(self) -> int | None:
        """How many frames there are, where the source says."""
        return self._reader.count

    @property
    def rate(self) -> float:
        """Frames a second of the source, on average."""
        return self._reader.rate

    def ask(self, question: str) -> None:
        """From the next frame on, another question: texture and features stay, relevance is found anew."""
        if not isinstance(question, str):
            raise ArrCocError(f"expected a question as text, got {type(question).__name__}")
        self.question = question
        self.memory.forget_question()
        self._told = None

    def __next__(self) -> Watched:
        frame = self._take()
        started = time.perf_counter()
        shown = torch.from_numpy(frame.pixels).permute(2, 0, 1)
        seen = self._verdict(shown)
        unusual = seen.blank or (not seen.cut and seen.likeness < self._scenes.unusual)
        texture, reuse = self.memory.see(frame.pixels, seen.kind, passing=unusual)
        found = realize(
            texture, self.question, self.grid or cells_of(texture), self.budget, self.embeddings, **self._options
        )
        rows, columns = found.grid.views[0].h, found.grid.views[0].w
        if (
            self.spend == "new" and reuse.why != "passing"
        ):  # a flash is read as it is, and nothing is new again after it
            found = self._only_new(found, (rows, columns))
        if found.relevance is not None and reuse.why != "passing":
            self.memory.learn(texture, found.relevance.view(rows, columns))
        spent = 1000 * (time.perf_counter() - started)
        scene = seen.kind if seen.cut else ""
        return Watched(frame.number, frame.time, frame.pixels, found, reuse, scene, frame.dropped, spent)

    def _take(self) -> Frame:
        if self._ahead is not None:
            frame, self._ahead = self._ahead, None
            return frame
        if self._broken is not None:
            error, self._broken = self._broken, None
            raise error
        return next(self._frames)

    def _verdict(self, shown: torch.Tensor) -> Seen:
        """Whether a new scene begins; where that is open, the next frame is asked."""
        return self._scenes.see(_unit(shown), self._following)

    def _following(self) -> torch.Tensor | None:
        """The next frame, read ahead."""
        if self._ahead is None and self._broken is None:
            try:
                self._ahead = next(self._frames, None)
            except ArrCocError as error:  # the frame at hand is good: it is handed out first
                self._broken = error
        if self._ahead is None:
            return None
        return _unit(torch.from_numpy(self._ahead.pixels).permute(2, 0, 1))

    def _only_new(self, found: Allocation, size: tuple[int, int]) -> Allocation:
        """Of the kept cells those that show what was not kept on an earlier frame; at least one."""
        told = self.memory.carried(self._told, size)
        new = found.keep[told.flatten()[found.keep] < 0.5]
        if len(new) == 0 and len(found.keep):
            worth = found.keep if found.relevance is None else found.relevance[found.keep]
            new = found.keep[worth.argmax()][None]
        kept = told.flatten().clone()
        kept[found.keep] = 1.0
        self._told = kept.view(size)
        return replace(found, keep=new)

    def close(self) -> None:
        """Let the source go; what was read stays read."""
        if self._hurry is None or self._hurry.close():  # never under the hands of a thread that still reads
            self._reader.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unit(shown: torch.Tensor) -> torch.Tensor:
    """A frame's luma `[H, W]` in [0, 1], from its bytes `[3, H, W]`."""
    gray = cv2.cvtColor(shown.permute(1, 2, 0).numpy(), cv2.COLOR_RGB2GRAY)
    return torch.from_numpy(gray).float() / 255


def cells_of(texture: TextureArray) -> tuple[int, int]:
    """Rows and columns of cells of about 28 pixels of the frame as it came."""
    height, width = texture.original_size
    return max(1, round(height / CELL)), max(1, round(width / CELL))


def watch(source: Footage, question: str, **options: Any) -> Stream:
    """`for seen in arr_coc.watch("clip.mp4", "Where is the dog?", using="labels")`: options are those of `Stream`."""
    if isinstance(source, str | Path) and not str(source):
        raise VideoError("expected the name of a clip's file, got an empty string")
    return Stream(source, question, **options)
