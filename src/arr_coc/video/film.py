"""A watched clip as a video file: kept cells bright, relevance as a warm colour, and a chart of all frames so far below.

The chart has one column for each frame: bars for the tokens kept, a line for the share of the frame that was reused, and
vertical marks for cuts. It scrolls when the clip has more frames than the chart has columns.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image, ImageDraw

from arr_coc.draw import overlay as view
from arr_coc.errors import VideoError, first_line
from arr_coc.files import temporary_name
from arr_coc.frames.reader import import_av
from arr_coc.types.grid import split_views
from arr_coc.video.stream import WatchedFrame

MIN_WIDTH = 480  # px; smaller clips are enlarged, so that the chart can be read
CHART = 96  # px of its height
INK, BAR, LINE, CUT, GROUND = (232, 232, 236), (95, 168, 255), (126, 217, 87), (255, 92, 92), (18, 20, 26)
DARK = 0.4  # brightness of cells that were not kept
WARM = 0.45  # opacity of the relevance colour
TICK = Fraction(1, 90_000)  # the time base: fine enough for any source's timestamps
CODECS = {  # format and codec of each file ending
    ".mp4": ("mp4", "libx264"), ".mov": ("mov", "libx264"), ".mkv": ("matroska", "libx264"), ".webm": ("webm", "libvpx-vp9"),
}  # fmt: skip


class Chart:
    """Tokens, reuse and cuts of the frames so far, as many as there is room for."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._seen: deque[tuple[int, float, bool, float]] = deque(maxlen=max(1, width - 2 * 10))
        self._most = 1

    def add(self, seen: WatchedFrame) -> None:
        reused = (seen.reuse.texture + seen.reuse.features) / 2
        self._seen.append((seen.allocation.k, reused, bool(seen.scene), seen.time))
        self._most = max(self._most, seen.allocation.k)

    def draw(self) -> Image.Image:
        """The chart as a picture, the newest frame at the right."""
        chart = Image.new("RGB", (self.width, CHART), GROUND)
        pen = ImageDraw.Draw(chart)
        top, bottom, left = 24, CHART - 8, 10
        room = self.width - 2 * left
        wide = max(1, min(12, room // max(1, len(self._seen))))
        points = []
        for place, (kept, reused, cut, _) in enumerate(list(self._seen)[-(room // wide) :]):
            at = left + place * wide
            pen.rectangle([at, bottom - (bottom - top) * kept / self._most, at + max(0, wide - 2), bottom], fill=BAR)
            if cut:
                pen.line([(at, top - 4), (at, bottom)], fill=CUT, width=2)
            points.append((at + wide / 2, bottom - (bottom - top) * reused))
        if len(points) > 1:
            pen.line(points, fill=LINE, width=2)
        kept, reused, _, when = self._seen[-1] if self._seen else (0, 0.0, False, 0.0)
        label = view.font(13)
        x = float(left)
        for text, colour in (
            (f"{when:6.2f} s", INK), (f"{kept} of up to {self._most} tokens", BAR), (f"{reused:.0%} carried over", LINE), ("cut", CUT),
        ):  # fmt: skip
            pen.text((x, 4), text, fill=colour, font=label)
            x += pen.textlength(text, font=label) + 18
        return chart


def overlay(seen: WatchedFrame, width: int) -> Image.Image:
    """A frame, `width` pixels wide: kept cells bright and coloured by relevance, the others dark."""
    height = max(2, round(seen.pixels.shape[0] * width / seen.pixels.shape[1]))
    mode = cv2.INTER_AREA if width <= seen.pixels.shape[1] else cv2.INTER_LINEAR
    frame = cv2.resize(seen.pixels, (width, height), interpolation=mode).astype(np.float32)
    found = seen.allocation
    kept = torch.zeros(found.n).index_fill_(0, found.keep, 1.0)
    score = kept if found.relevance is None else found.relevance.clamp(0, 1) * kept
    light, warm = (
        view.plane(split_views(found.grid, values), (height, width)).numpy()[..., None] for values in (kept, score)
    )
    colour = view.colourise(torch.from_numpy(warm[..., 0]), "ember", 0.0, 1.0).astype(np.float32)
    blended = frame * (DARK + (1 - DARK) * light)
    blended = blended * (1 - WARM * warm) + colour * WARM * warm
    return Image.fromarray(np.clip(blended, 0, 255).astype(np.uint8))


class Film:
    """Writes watched frames to a video file; each frame keeps its timestamp.

    The file appears when it is closed. That also holds after an interrupt or a damaged clip: the frames so far are a film.
    """

    def __init__(self, path: Path, rate: float) -> None:
        self.path, self.rate = path, rate
        self._container: Any = None
        self._stream: Any = None
        self._chart: Chart | None = None
        self._size = (0, 0)
        self._last = -1
        self._temporary = temporary_name(path)

    def add(self, seen: WatchedFrame) -> None:
        """Append a frame; the first one sets the size."""
        if self._chart is None:
            width = max(MIN_WIDTH, seen.pixels.shape[1])
            width += width % 2
            self._chart = Chart(width)
            self._open(width, overlay(seen, width).height)
        self._chart.add(seen)
        shown, room = overlay(seen, self._size[0]), self._size[1] - CHART
        if shown.height > room:  # it is taller than the first
            shown = shown.resize((max(1, round(shown.width * room / shown.height)), room))
        picture = Image.new("RGB", self._size, GROUND)
        picture.paste(shown, (0, 0))
        picture.paste(self._chart.draw(), (0, room))
        frame = import_av().VideoFrame.from_image(picture)
        self._last = max(self._last + 1, round(seen.time / TICK))  # timestamps must increase
        frame.pts, frame.time_base = self._last, TICK
        self._mux(frame)

    def _open(self, width: int, height: int) -> None:
        av = import_av()
        self._size = (width, height + height % 2 + CHART)
        try:
            muxer, codec = CODECS[self.path.suffix.lower()]
            self._container = av.open(str(self._temporary), "w", format=muxer)
            rate = Fraction(self.rate).limit_denominator(1001)
            self._stream = self._container.add_stream(codec, rate=rate)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise VideoError(f"cannot write {str(self.path)!r} ({first_line(error)})") from None
        self._stream.width, self._stream.height = self._size
        self._stream.pix_fmt = "yuv420p"
        self._stream.time_base = self._stream.codec_context.time_base = TICK

    def _mux(self, frame: Any = None) -> None:
        """Write a frame, or with None those that the encoder still holds."""
        try:
            self._container.mux(self._stream.encode(frame))
            if frame is None:
                self._container.close()
        except (import_av().FFmpegError, OSError) as error:  # the disk is full
            self._discard()
            raise VideoError(f"cannot write {str(self.path)!r} ({first_line(error)})") from None

    def _discard(self) -> None:
        with suppress(import_av().FFmpegError, OSError):
            self._container.close()
        self._container = None
        self._temporary.unlink(missing_ok=True)

    def close(self) -> None:
        """Finish the file."""
        if self._container is not None:
            self._mux()
            self._container = None
            self._temporary.replace(self.path)

    def __enter__(self) -> Film:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
