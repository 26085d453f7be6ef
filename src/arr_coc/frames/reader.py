"""Frames from a file, a camera, a list of pictures, an array or a tensor. Files and cameras need the extra `video`.

Notable:
- a frame keeps its number and its own timestamp: no constant rate is assumed;
- rotated phone videos are turned upright, and any pixel format becomes 8-bit RGB;
- a truncated or damaged file gives all frames that can be decoded, and `Reader.notes` says what is wrong.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from arr_coc.errors import ArrCocError, ImageError, VideoError, first_line
from arr_coc.files import check_readable
from arr_coc.types.image import ImageLike, read_picture

VideoSource: TypeAlias = "str | os.PathLike[str] | Iterable[ImageLike] | np.ndarray | torch.Tensor"

CAMERA = "camera:"  # prefix of a camera's number or device name
CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}"), "win32": ("dshow", "video={}")}
FPS = 25.0  # of frames without timestamps
LATE = 0.2  # seconds that may be missing at the end of a file without a frame count
MICROSECONDS = 1_000_000  # libav's clock


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a video."""

    number: int  # from 0, in the source
    time: float  # seconds from the start
    pixels: np.ndarray  # uint8 [H, W, 3], upright
    dropped: int = 0  # frames skipped before it because the consumer was too slow


class Reader(Iterator[Frame]):
    """Frames in order. Each is decoded when it is asked for; none is kept."""

    def __init__(self, source: VideoSource, fps: float | None = None) -> None:
        """`fps`: frames a second of a source without timestamps. Files and cameras have their own."""
        self.notes: list[str] = []
        self.count: int | None = None  # number of frames, where it is known in advance
        self.rate = FPS if fps is None else check_fps(fps)
        self.live = isinstance(source, str) and source.startswith(CAMERA)
        self._container: Any = None
        if isinstance(source, str | os.PathLike):
            self._frames = self._open(os.fspath(source))
        elif isinstance(source, np.ndarray | torch.Tensor) and source.ndim != 4:
            raise VideoError(f"expected frames [T, H, W, 3] (torch: [T, 3, H, W]), got the shape {list(source.shape)}")
        elif isinstance(source, Iterable):
            self.count = len(source) if isinstance(source, Sized) else None
            if self.count == 0:
                raise VideoError("expected at least one frame, got none")
            self._frames = self._convert(iter(source))
        else:
            raise VideoError(f"expected a clip's file, a camera or frames, got {type(source).__name__}")

    def __next__(self) -> Frame:
        return next(self._frames)

    def close(self) -> None:
        """Close the file or the camera."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _convert(self, pictures: Iterator[Any]) -> Iterator[Frame]:
        number = -1
        for number, picture in enumerate(pictures):
            try:
                yield Frame(number, number / self.rate, to_rgb(picture))
            except ImageError as error:
                raise ImageError(f"frame {number + 1}: {error}") from None
        if number < 0:
            raise VideoError("expected at least one frame, got none")

    def _open(self, name: str) -> Iterator[Frame]:
        """Open the file at once, so that a wrong name fails in the constructor; decode lazily."""
        av = import_av()
        self._container = _open_container(av, name)
        streams = self._container.streams.video
        if not streams:
            self.close()
            raise VideoError(f"{name!r} has no video in it")
        stream = streams[0]
        stream.thread_type = "AUTO"
        self.count = stream.frames or None
        self.rate = float(stream.average_rate or self.rate)
        return self._decode(av, name, stream)

    def _decode(self, av: Any, name: str, stream: Any) -> Iterator[Frame]:
        number, start, time, duration = 0, None, 0.0, 0.0
        offset = 0.0  # added where the clock is set back, as in two recordings joined into one file
        decoded = self._container.decode(stream)
        while True:
            try:
                picture = next(decoded)
            except StopIteration:
                break
            except (av.FFmpegError, EOFError) as error:
                if number == 0:
                    raise VideoError(f"no frame of {name!r} can be read ({_reason(error)})") from None
                self.notes.append(f"damaged after frame {number}: what came before was read ({_reason(error)})")
                break
            now = time + 1 / self.rate if picture.time is None and number else (picture.time or 0.0) + offset
            if number and now < time:
                offset += time + 1 / self.rate - now
                now = time + 1 / self.rate
            start = now if start is None else start
            time = now
            duration = float(picture.duration * picture.time_base) if picture.duration and picture.time_base else 0.0
            yield Frame(number, now - start, _upright(picture))
            number += 1
        if number == 0:
            raise VideoError(f"no frame of {name!r} can be read: it is empty or cut off")
        if not self.notes:
            self._check_complete(number, time, time - (start or 0.0), duration)
        self.close()

    def _check_complete(self, number: int, time: float, elapsed: float, duration: float) -> None:
        """Add a note if the file has fewer frames or seconds than its header says."""
        if self.count is not None:
            if number < self.count:
                self.notes.append(f"it ends early: {number} of the {self.count} frames in its header were there")
            return
        if self.live or self._container is None or len(self._container.streams) > 1:
            return  # the header's duration may be that of the sound
        expected = float(self._container.duration or 0) / MICROSECONDS
        end = max(time, elapsed) + duration  # Matroska counts from 0, even if the first frame comes later
        if expected - end > max(LATE, 3 / self.rate):
            self.notes.append(f"it ends early: after {elapsed:.2f} of the {expected:.2f} seconds in its header")


def to_rgb(picture: ImageLike) -> np.ndarray:
    """Any picture as uint8 `[H, W, 3]`."""
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        if 0 in picture.shape:
            raise ImageError(f"expected a picture with pixels, got the shape {list(picture.shape)}")
        return picture
    pixels = read_picture(picture, max_side=None).pixels
    return pixels.mul(255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()


def check_fps(fps: float) -> float:
    """A valid number of frames a second, or a `VideoError`."""
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise VideoError(f"expected a number of frames a second above 0, got {fps!r}")
    return float(fps)


def sample_at(frames: Iterable[Frame], fps: float) -> Iterator[Frame]:
    """The first frame at or after each tick of a clock with `fps` ticks a second."""
    fps, due = check_fps(fps), 0.0
    for frame in frames:
        if frame.time + 1e-6 >= due:
            yield frame
            due = max(due + 1 / fps, (int(frame.time * fps + 1e-6) + 1) / fps)


def _upright(picture: Any) -> np.ndarray:
    """The pixels, rotated as the file's display matrix says."""
    pixels: np.ndarray = picture.to_ndarray(format="rgb24")
    quarters = round(getattr(picture, "rotation", 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters else pixels


def _open_container(av: Any, name: str) -> Any:
    options: dict[str, Any] = {}
    target = name
    if name.startswith(CAMERA):
        options["format"], pattern = CAMERAS.get(sys.platform, CAMERAS["linux"])
        device = name.removeprefix(CAMERA)
        target = pattern.format(device) if device.isdigit() else device
    elif "://" not in name:
        check_readable(name, "a clip's file", VideoError, limit=sys.maxsize)
    try:
        return av.open(target, **options)
    except (av.FFmpegError, OSError, ValueError) as error:
        what = "camera" if name.startswith(CAMERA) else "clip"
        raise VideoError(f"{name!r} cannot be opened as a {what} ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """libav's message, without its number and the file's name."""
    return getattr(error, "strerror", None) or first_line(error)


def import_av() -> Any:
    try:
        import av
    except ImportError:
        raise ArrCocError("reading and writing clips needs the extra video: pip install 'arr-coc[video]'") from None
    # libav's log callback takes the GIL in the decoding threads, while Python waits for them: on a damaged file it deadlocks.
    av.logging.set_level(None)
    return av
