"""Frames from anywhere: a file, a camera, pictures in a list, an array or a tensor. Files and cameras need the extra `video`.

Notable:
- a frame keeps its number and its own time: nothing assumes a steady rate;
- phone videos are turned upright, any pixel format becomes 8-bit RGB;
- a file that ends early or is damaged gives what can be read of it, and `Reader.notes` says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from arr_coc.errors import ArrCocError, ImageError, VideoError, first_line
from arr_coc.types.image import ImageLike, read_picture

Footage: TypeAlias = "str | os.PathLike[str] | Iterable[ImageLike] | np.ndarray | torch.Tensor"

CAMERA = "camera:"  # and its number, or the device's name
CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}"), "win32": ("dshow", "video={}")}
FPS = 25.0  # of frames that carry no time
LATE = 0.2  # seconds that may be missing at the end of a file that does not count its frames
MICROSECONDS = 1_000_000  # libav's clock


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a clip."""

    number: int  # from 0, in the clip as it came
    time: float  # seconds from the clip's start
    pixels: np.ndarray  # uint8 [H, W, 3], upright
    dropped: int = 0  # frames before it that nobody had time for


class Reader(Iterator[Frame]):
    """Frames one after another; nothing is read before it is asked for, and nothing kept."""

    def __init__(self, source: Footage, fps: float | None = None) -> None:
        """`fps`: frames a second of a source that does not say; a file's and a camera's own times are kept."""
        self.notes: list[str] = []
        self.count: int | None = None  # of frames, where it is known beforehand
        self.rate = FPS if fps is None else rate_of(fps)
        self.live = isinstance(source, str) and source.startswith(CAMERA)
        self._container: Any = None
        if isinstance(source, str | os.PathLike):
            self._frames = self._decode(os.fspath(source))
        elif isinstance(source, np.ndarray | torch.Tensor) and source.ndim != 4:
            raise VideoError(f"expected frames [T, H, W, 3] (torch: [T, 3, H, W]), got the shape {list(source.shape)}")
        elif isinstance(source, Iterable):
            self.count = len(source) if isinstance(source, Sized) else None
            if self.count == 0:
                raise VideoError("expected at least one frame, got none")
            self._frames = self._given(iter(source))
        else:
            raise VideoError(f"expected a clip's file, a camera or frames, got {type(source).__name__}")

    def __next__(self) -> Frame:
        return next(self._frames)

    def close(self) -> None:
        """Let the file or the camera go."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _given(self, pictures: Iterator[Any]) -> Iterator[Frame]:
        number = -1
        for number, picture in enumerate(pictures):
            try:
                yield Frame(number, number / self.rate, as_rgb(picture))
            except ImageError as error:
                raise ImageError(f"frame {number + 1}: {error}") from None
        if number < 0:
            raise VideoError("expected at least one frame, got none")

    def _decode(self, name: str) -> Iterator[Frame]:
        """Opened at once, so that a wrong name is told before anything else happens; read when asked."""
        av = libav()
        self._container = _opened(av, name)
        streams = self._container.streams.video
        if not streams:
            self.close()
            raise VideoError(f"{name!r} has no video in it")
        stream = streams[0]
        stream.thread_type = "AUTO"
        self.count = stream.frames or None
        self.rate = float(stream.average_rate or self.rate)
        return self._stream(av, name, stream)

    def _stream(self, av: Any, name: str, stream: Any) -> Iterator[Frame]:
        number, start, time, lasts = 0, None, 0.0, 0.0
        ahead = 0.0  # a clock that is set back, as where two recordings were joined, goes on from where it was
        decoded = self._container.decode(stream)
        while True:
            try:
                picture = next(decoded)
            except StopIteration:
                break
            except (av.FFmpegError, EOFError) as error:
                if number == 0:
                    raise VideoError(f"no frame of {name!r} can be read ({_said(error)})") from None
                self.notes.append(f"damaged after frame {number}: what came before was read ({_said(error)})")
                break
            own = time + 1 / self.rate if picture.time is None and number else (picture.time or 0.0) + ahead
            if number and own < time:
                ahead += time + 1 / self.rate - own
                own = time + 1 / self.rate
            start = own if start is None else start
            time = own
            lasts = float(picture.duration * picture.time_base) if picture.duration and picture.time_base else 0.0
            yield Frame(number, own - start, _upright(picture))
            number += 1
        if number == 0:
            raise VideoError(f"no frame of {name!r} can be read: it is empty or cut off")
        if self.count is not None and number < self.count and not self.notes:
            self.notes.append(f"it ends early: {number} of the {self.count} frames that it promises were there")
        promised = self._promised()
        reached = time - (start or 0.0)
        end = max(time, reached) + lasts  # Matroska counts from 0, whenever the first frame comes
        if self.count is None and not self.notes and promised - end > max(LATE, 3 / self.rate):
            self.notes.append(f"it ends early: after {reached:.2f} of the {promised:.2f} seconds that it promises")
        self.close()

    def _promised(self) -> float:
        """How many seconds a file says that its video lasts; 0 where it does not, or where that may be its sound."""
        if self.live or self._container is None or len(self._container.streams) > 1:
            return 0.0
        return float(self._container.duration or 0) / MICROSECONDS


def as_rgb(picture: ImageLike) -> np.ndarray:
    """Any picture as uint8 `[H, W, 3]`."""
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        if 0 in picture.shape:
            raise ImageError(f"expected a picture with pixels, got the shape {list(picture.shape)}")
        return picture
    pixels = read_picture(picture, max_side=None).pixels
    return pixels.mul(255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()


def rate_of(fps: float) -> float:
    """A number of frames a second, or one sentence."""
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise VideoError(f"expected a number of frames a second above 0, got {fps!r}")
    return float(fps)


def sampled(frames: Iterable[Frame], fps: float) -> Iterator[Frame]:
    """Of a clip's frames the first at or after each moment of a steady clock of `fps` ticks a second."""
    fps, due = rate_of(fps), 0.0
    for frame in frames:
        if frame.time + 1e-6 >= due:
            yield frame
            due = max(due + 1 / fps, (int(frame.time * fps + 1e-6) + 1) / fps)


def _upright(picture: Any) -> np.ndarray:
    """As the camera was held: the file says by how much its pictures are to be turned."""
    pixels: np.ndarray = picture.to_ndarray(format="rgb24")
    quarters = round(getattr(picture, "rotation", 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters else pixels


def _opened(av: Any, name: str) -> Any:
    options: dict[str, Any] = {}
    target = name
    if name.startswith(CAMERA):
        import sys

        form, place = CAMERAS.get(sys.platform, CAMERAS["linux"])
        which = name.removeprefix(CAMERA)
        options["format"], target = form, place.format(which) if which.isdigit() else which
    elif not name:
        raise VideoError("expected the name of a clip's file, got an empty string")
    elif "://" not in name:
        path = Path(name)
        if path.is_dir():
            raise VideoError(f"{name!r} is a folder, expected a clip's file")
        if not path.exists():
            raise VideoError(f"there is no file {name!r}")
        if path.stat().st_size == 0:
            raise VideoError(f"{name!r} is empty (0 bytes)")
    try:
        return av.open(target, **options)
    except (av.FFmpegError, OSError, ValueError) as error:
        what = "camera" if name.startswith(CAMERA) else "clip"
        raise VideoError(f"{name!r} cannot be opened as a {what} ({_said(error)})") from None


def _said(error: Exception) -> str:
    """What libav says about an error, without its number and the file's name."""
    return getattr(error, "strerror", None) or first_line(error)


def libav() -> Any:
    try:
        import av
    except ImportError:
        raise ArrCocError("reading and writing clips needs the extra video: pip install 'arr-coc[video]'") from None
    # What is wrong with a file is said by us, in one sentence. Listening to libav's own words would wait for Python in the
    # threads that decode, while Python waits for them: a damaged file would be read for ever.
    av.logging.set_level(None)
    return av
