"""Scenes: when one ends and another begins, by a cut or through black.

| what is seen | how it is told | verdict |
|---|---|---|
| a cut | neither the frame as it was nor the frame carried along its motion looks like this one, and the next does not look like the old scene either | a new scene |
| a pan, a zoom, a tremble | carried along its motion it does | goes on |
| a flash, a lamp | likeness does not know brightness and contrast; a white frame shows nothing, and after it all is as before | goes on |
| noise | frames are compared small and smoothed; where all frames differ as much, that is how the clip is | goes on |
| a fade | nothing to be seen for a while, and what comes back is another scene | a new scene |

A cut is certain one frame later: a frame that looks like another scene is compared with the one after it, too, where the
caller can hand that in (`Scenes.see(frame, following)`); it is asked for only then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from arr_coc.frames import flow

SIDE = 128  # px
BLUR = 1.5  # px
BLANK = 0.02  # standard deviation of the luma below which there is nothing to see
ALIKE = 0.5  # likeness from which a scene goes on without further questions
USUAL = 0.5  # of the likeness that is usual in this clip: below it a frame is out of the ordinary
RESTLESS = 0.3  # a clip whose frames are usually less alike than this has no scenes to tell apart
REMEMBERED = 24  # frames whose likeness is taken for the usual
BLOCKS = 4  # likeness is measured in this many rows and columns, and the middle one counts
SURE = 0.5  # confidence of the flow from which a pixel is found again


@dataclass(frozen=True)
class Seen:
    """What a frame is to the one before."""

    cut: bool
    kind: str = ""  # "cut" or "fade" where `cut`
    likeness: float = 1.0  # to what was last seen of the scene, -1 to 1
    blank: bool = False  # nothing to be seen on it


class Scenes:
    """Watches frames go by, one after another."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The next frame is the first."""
        self._last: torch.Tensor | None = None  # what was last seen of the scene, small
        self._dark = False  # whether blank frames came since
        self._usual: deque[float] = deque(maxlen=REMEMBERED)

    def see(self, frame: torch.Tensor, following: Callable[[], torch.Tensor | None] | None = None) -> Seen:
        """Take in a frame `[3, H, W]` or `[H, W]` in [0, 1]; `following` gives the one after it, or None at the end."""
        now = prepared(frame)
        if float(now.std()) < BLANK:
            self._dark = self._dark or self._last is not None
            return Seen(False, blank=True)
        if self._last is None:
            self._last = now
            return Seen(False)
        if self._last.shape != now.shape:
            return self._new(now, "cut", 0.0)
        alike = likeness(self._last, now)
        if self._other(alike):
            kind = "fade" if self._dark else "cut"
            after = None if following is None else following()
            if after is None or not self._back(prepared(after)):
                return self._new(now, kind, alike)
            return Seen(False, likeness=alike)  # out of the ordinary for one frame: the scene is still the old one
        self._usual.append(alike)
        self._last, self._dark = now, False
        return Seen(False, likeness=alike)

    @property
    def unusual(self) -> float:
        """The likeness below which a frame looks like another scene, or like nothing that belongs to this one."""
        usual = float(np.median(self._usual)) if self._usual else 1.0
        return min(ALIKE, USUAL * usual) if usual >= RESTLESS else -2.0

    def _other(self, alike: float) -> bool:
        return alike < self.unusual

    def _back(self, after: torch.Tensor) -> bool:
        """Whether the frame after an unusual one shows the old scene again, or nothing that could tell."""
        assert self._last is not None
        if after.shape != self._last.shape:
            return False
        return float(after.std()) < BLANK or not self._other(likeness(self._last, after))

    def _new(self, now: torch.Tensor, kind: str, alike: float) -> Seen:
        self._usual.append(alike)
        self._last, self._dark = now, False
        return Seen(True, kind, alike)


def prepared(frame: torch.Tensor) -> torch.Tensor:
    """A frame's luma `[h, w]`, small and smoothed, on the CPU."""
    tiny = flow.small(frame, SIDE).cpu().numpy()
    return torch.from_numpy(cv2.GaussianBlur(tiny, (0, 0), BLUR))


def likeness(before: torch.Tensor, after: torch.Tensor) -> float:
    """How much two small frames show the same, whatever the light: -1 to 1. Moved things are followed.

    Carried along the flow, only what was found again counts as alike; what was not is taken as it came.
    """
    plain = _correlation(before, after)
    if plain >= ALIKE:  # nothing needs to be followed
        return plain
    level = [((one - one.mean()) / one.std().clamp(min=1e-6) * 0.2 + 0.5).clamp(0, 1) for one in (before, after)]
    moved = flow.between(level[0], level[1])
    found = float((moved.confidence > SURE).float().mean())
    carried = _correlation(flow.warp(level[0], moved), level[1])
    return max(plain, carried * min(1.0, 2 * found) if carried > 0 else carried)


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """The middle of the correlations of small blocks that hold anything, or that of the whole."""
    scores, weights = [], []
    first, second = one.numpy(), other.numpy()
    for rows in range(BLOCKS):
        for columns in range(BLOCKS):
            a, b = (_block(frame, rows, columns) for frame in (first, second))
            a, b = a - a.mean(), b - b.mean()
            here, there = float(np.dot(a, a)), float(np.dot(b, b))
            power = (here * there) ** 0.5
            weights.append((here**0.5 + there**0.5) / max(1, len(a) - 1) ** 0.5)
            scores.append(float(np.dot(a, b)) / power if power > 1e-9 else 0.0)
    order = np.argsort(scores)
    share = np.cumsum(np.array(weights)[order])
    return float(np.array(scores)[order][int(np.searchsorted(share, share[-1] / 2))])


def _block(frame: np.ndarray, row: int, column: int) -> np.ndarray:
    """One block's pixels `[P]`."""
    height, width = frame.shape
    rows = slice(row * height // BLOCKS, (row + 1) * height // BLOCKS)
    return frame[rows, column * width // BLOCKS : (column + 1) * width // BLOCKS].ravel()
