"""Clips for a model: a few frames of a video, sampled evenly and grouped for the model's temporal patches.

A Qwen patch is two frames deep. Two frames that differ are blurred into one token, and print becomes unreadable. So where
frames move, each is repeated and a patch holds one frame. Where almost nothing moves, two frames share a patch, which saves
half of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import cv2
import numpy as np
import torch

from arr_coc.errors import PromptError, VideoError, whole_number
from arr_coc.frames import gate
from arr_coc.frames.flow import small_luma
from arr_coc.frames.reader import Frame, Reader, VideoSource, check_fps, sample_at

Pairs: TypeAlias = Literal["auto", "still", "moving"]

MAX_FRAMES = 32  # default
MODEL_FPS = 2.0  # frames a second that a model sees by default
MAX_PAIR_NOISE = 0.004  # of the luma: with more noise than this, frames do not share a patch
MAX_CHANGED = 0.05  # share of the windows that may differ between two frames of one patch


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames uint8 `[H, W, 3]` of one size, evenly spaced as far as the source allows."""

    frames: list[np.ndarray]
    times: list[float]  # seconds, of each
    fps: float  # frames a second that these stand for
    notes: tuple[str, ...] = ()  # what was wrong with the source, and what was changed


def sample_clip(
    source: VideoSource, fps: float, *, max_frames: int = MAX_FRAMES, group: int = 1, pairs: Pairs = "auto",
    source_fps: float | None = None,
) -> Clip:  # fmt: skip
    """At most `max_frames` frames of any source at `fps`, for a model whose patches are `group` frames deep.

    pairs: "moving" repeats every frame `group` times, "still" repeats none, "auto" decides by the motion.
    source_fps: frames a second of a source that has no times; without it, all of its frames are taken.
    """
    if pairs not in get_args(Pairs):
        raise VideoError(f"expected pairs as one of {', '.join(get_args(Pairs))}, got {pairs!r}")
    if whole_number(max_frames) is None:
        raise VideoError(f"expected at least 1 frame, got {max_frames!r}")
    with Reader(source, fps if source_fps is None else source_fps) as reader:
        sampled = sample_at(reader, fps)
        taken = list(islice(sampled, max_frames)) if reader.live else thin(sampled, max_frames)  # a camera never ends
        notes = list(reader.notes)
    frames = [frame.pixels for frame in taken]
    times = [frame.time for frame in taken]
    if len({frame.shape for frame in frames}) > 1:
        height, width = frames[0].shape[:2]
        frames = [_resize(frame, (height, width)) for frame in frames]
        notes.append(f"its size changes: all frames were resized to the first one's, {width}x{height}")
    span = times[-1] - times[0]
    rate = (len(times) - 1) / span if span > 0 else fps
    if group > 1 and (pairs == "moving" or (pairs == "auto" and has_motion(frames, group))):
        frames = [frame for frame in frames for _ in range(group)]
        times = [time for time in times for _ in range(group)]
        rate *= group
    return Clip(frames, times, rate, tuple(notes))


def thin(frames: Iterable[Frame], count: int) -> list[Frame]:
    """At most `count` of the frames, evenly spaced, in one pass that holds at most twice as many."""
    kept: list[Frame] = []
    step = 1
    for number, frame in enumerate(frames):
        if number % step == 0:
            kept.append(frame)
            if len(kept) >= 2 * count:
                kept, step = kept[::2], 2 * step
    if len(kept) <= count:
        return kept
    return [kept[round(place)] for place in np.linspace(0, len(kept) - 1, count)]


def has_motion(frames: Sequence[np.ndarray], group: int) -> bool:
    """Whether frames that would share a patch differ by more than noise."""
    for start in range(0, len(frames) - 1, group):
        first, *others = (
            gate.denoise(small_luma(torch.from_numpy(frame).permute(2, 0, 1).float() / 255))
            for frame in frames[start : start + group]
        )
        for other in others:
            change = gate.window_mean((other - gate.match_brightness(first, other)).abs())
            noise = min(float(change.median()), MAX_PAIR_NOISE)  # a page that moves changes a little everywhere
            if float((change > gate.FLOOR / 3 + gate.NOISE * noise).float().mean()) > MAX_CHANGED:
                return True
    return False


def load_clip(
    video: VideoSource | None, videos: Any, fps: float | None, frames: int | None, group: int
) -> tuple[Any, float | None]:
    """`video` as a clip with its rate, for a model whose patches are `group` frames deep; `videos` (frames) unchanged."""
    if video is None:
        if frames is not None:
            raise PromptError("expected frames= together with video=: of a list of frames all are shown")
        return videos, fps
    if videos is not None:
        raise PromptError("expected video= (a clip to take frames from) or videos= (frames), got both")
    clip = sample_clip(video, model_fps(fps), max_frames=MAX_FRAMES if frames is None else frames, group=group)
    return clip, clip.fps


def model_fps(fps: float | None) -> float:
    """How many frames a second a model sees."""
    try:
        return MODEL_FPS if fps is None else check_fps(fps)
    except VideoError as error:
        raise PromptError(f"fps: {error}") from None


def _resize(frame: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if frame.shape[:2] == size:
        return frame
    shrinks = frame.shape[0] >= size[0] and frame.shape[1] >= size[1]
    mode = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(frame, (size[1], size[0]), interpolation=mode)
