"""Clips for a model: a few frames of a film, and how they are put together.

Qwen models see two frames as one: a patch is two frames deep. Where these differ, both are blurred into one token, and print
becomes unreadable. So frames of a clip that moves are shown twice each, a patch holds one moment, and time runs as before;
where next to nothing moves, two different frames share a patch and half of the tokens are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import cv2
import numpy as np
import torch

from arr_coc.errors import PromptError, VideoError, whole_number
from arr_coc.frames import flow as flows
from arr_coc.frames import gate as gating
from arr_coc.frames.reader import Footage, Frame, Reader, rate_of, sampled

Pairs: TypeAlias = Literal["auto", "still", "moving"]

MOST = 32  # frames, unless told
FPS = 2.0  # frames a second that a model is shown, unless told
QUIET = 0.004  # of the luma: more noise than this and frames are rather shown by themselves
ALIKE = 0.05  # of the windows that may differ between two frames that share a patch


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames uint8 `[H, W, 3]` of one size, evenly spaced as far as the film allows, and what was done to it."""

    frames: list[np.ndarray]
    times: list[float]  # seconds, of each
    fps: float  # frames a second that these stand for
    notes: tuple[str, ...] = ()


def clip(
    source: Footage, fps: float, *, most: int = MOST, group: int = 1, pairs: Pairs = "auto", given: float | None = None
) -> Clip:
    """Of any source `fps` frames a second, `most` at most, ready for a model that sees `group` of them as one.

    pairs: "moving" shows every frame `group` times, "still" as it is, "auto" looks. given: frames a second of a source
    that does not say; without it, all of its frames are taken.
    """
    if pairs not in get_args(Pairs):
        raise VideoError(f"expected pairs as one of {', '.join(get_args(Pairs))}, got {pairs!r}")
    if whole_number(most) is None:
        raise VideoError(f"expected at least 1 frame, got {most!r}")
    with Reader(source, fps if given is None else given) as reader:
        wanted = sampled(reader, fps)
        taken = list(islice(wanted, most)) if reader.live else thinned(wanted, most)  # a camera never ends
        notes = list(reader.notes)
    frames = [frame.pixels for frame in taken]
    times = [frame.time for frame in taken]
    if len({frame.shape for frame in frames}) > 1:
        height, width = frames[0].shape[:2]
        frames = [_fitted(frame, (height, width)) for frame in frames]
        notes.append(f"its size changes: all frames were brought to the first one's, {width}x{height}")
    rate = _rate(times, fps)
    if group > 1 and (pairs == "moving" or (pairs == "auto" and moves(frames, group))):
        frames = [frame for frame in frames for _ in range(group)]
        times = [time for time in times for _ in range(group)]
        rate *= group
    return Clip(frames, times, rate, tuple(notes))


def thinned(frames: Any, most: int) -> list[Frame]:
    """At most `most` of the frames, evenly spaced, without holding more than twice as many at a time."""
    kept: list[Frame] = []
    step = 1
    for number, frame in enumerate(frames):
        if number % step == 0:
            kept.append(frame)
            if len(kept) >= 2 * most:
                kept, step = kept[::2], 2 * step
    if len(kept) <= most:
        return kept
    return [kept[round(place)] for place in np.linspace(0, len(kept) - 1, most)]


def moves(frames: Sequence[np.ndarray], group: int) -> bool:
    """Whether frames that a model would see as one differ by more than noise."""
    for start in range(0, len(frames) - 1, group):
        small = [gating.calmed(flows.small(_unit(frame))) for frame in frames[start : start + group]]
        for other in small[1:]:
            change = gating.pooled((other - gating.relit(small[0], other)).abs())
            noise = min(float(change.median()), QUIET)  # a page that moves changes a little everywhere
            if float((change > gating.FLOOR / 3 + gating.NOISE * noise).float().mean()) > ALIKE:
                return True
    return False


def _rate(times: Sequence[float], fps: float) -> float:
    """Frames a second of those that were taken."""
    span = times[-1] - times[0]
    return (len(times) - 1) / span if len(times) > 1 and span > 0 else fps


def _fitted(frame: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if frame.shape[:2] == size:
        return frame
    shrinks = frame.shape[0] >= size[0] and frame.shape[1] >= size[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(frame, (size[1], size[0]), interpolation=how)


def _unit(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame).permute(2, 0, 1).float() / 255


def filmed(
    video: Footage | None, videos: Any, fps: float | None, frames: int | None, together: int
) -> tuple[Any, float | None]:
    """A film as a clip for a model that sees `together` frames as one, with its rate; videos that are frames as they came."""
    if video is None:
        if frames is not None:
            raise PromptError("expected frames= beside video=: of a list of frames all are shown")
        return videos, fps
    if videos is not None:
        raise PromptError("expected video= (a clip to take frames from) or videos= (frames), got both")
    made = clip(video, shown_rate(fps), most=MOST if frames is None else frames, group=together)
    return made, made.fps


def shown_rate(fps: float | None) -> float:
    """How many frames a second a model is shown."""
    try:
        return FPS if fps is None else rate_of(fps)
    except VideoError as error:
        raise PromptError(f"fps: {error}") from None
