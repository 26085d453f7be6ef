"""Frames compared as a whole: scene changes, and global shifts.

A scene changes when a frame is similar neither to the last frame nor to the last frame warped along its motion:

| event | why it is recognised | result |
|---|---|---|
| cut | dissimilar with and without flow, and the next frame is not similar to the old scene either | new scene |
| pan, zoom, shake | similar after warping along the flow | same scene |
| flash, lamp | similarity ignores brightness and contrast; a blank frame is skipped, and the old scene returns after it | same scene |
| noise | frames are compared small and blurred; the threshold adapts to the clip's usual similarity | same scene |
| fade | blank frames, then a frame dissimilar to the last one before them | new scene |

A cut is confirmed one frame later: `SceneDetector.update` asks for the next frame only when it needs it.

`global_shift` finds how far a whole frame moved. Flow follows small motion only; a camera that pans moves by a quarter of the
frame between two frames half a second apart, and on a page of text every line looks like the next. So all shifts are
tried at once by cross-correlation, and flow handles what remains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from arr_coc.frames.flow import Flow, luma_flow, small_luma, warp

SIDE = 128  # px that frames are compared at
BLUR = 1.5  # px
BLANK = 0.02  # standard deviation of the luma below which a frame shows nothing
SAME_SCENE = 0.5  # similarity from which the scene is the same without further checks
USUAL_SHARE = 0.5  # share of the clip's usual similarity below which a frame is unusual
RESTLESS = 0.3  # a clip with a usual similarity below this has no scenes to separate
HISTORY = 24  # frames whose median similarity is the usual one
BLOCKS = 4  # similarity is the weighted median over this many rows and columns of blocks
FOUND = 0.5  # flow confidence from which a pixel counts as found again

SHIFT_SIDE = 160  # px that shifts are searched at; flow finds the rest
MIN_OVERLAP = 0.3  # share of the frame that two frames have in common at least
SHADE_SIGMA = 4.0  # px: brightness that varies more slowly than this is removed
SHIFT_CORRELATION = 0.5  # from which two frames show the same
SHIFT_LEAD = 0.05  # a shift whose correlation is no more than this above that of no shift is ignored


@dataclass(frozen=True)
class SceneChange:
    """How a frame relates to the frames before."""

    cut: bool
    kind: str = ""  # "cut" or "fade" where `cut`
    similarity: float = 1.0  # to the last frame of the scene, -1 to 1
    blank: bool = False  # the frame shows nothing


class SceneDetector:
    """Detects scene changes in frames that are passed in order."""

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None  # the scene's last frame that was not blank, small
        self._dark = False  # whether blank frames came since
        self._history: deque[float] = deque(maxlen=HISTORY)

    def update(self, frame: torch.Tensor, next_frame: Callable[[], torch.Tensor | None] | None = None) -> SceneChange:
        """Compare a frame `[3, H, W]` or `[H, W]` in [0, 1] with the scene; `next_frame` returns the one after it, or None."""
        now = scene_luma(frame)
        if float(now.std()) < BLANK:
            self._dark = self._dark or self._last is not None
            return SceneChange(False, blank=True)
        if self._last is None:
            self._last = now
            return SceneChange(False)
        if self._last.shape != now.shape:
            return self._accept(now, "cut", 0.0)
        score = similarity(self._last, now)
        if score >= self.threshold:
            return self._accept(now, "", score)
        after = None if next_frame is None else next_frame()
        if after is None or not self._returns(scene_luma(after)):
            return self._accept(now, "fade" if self._dark else "cut", score)
        return SceneChange(False, similarity=score)  # one unusual frame: the old scene goes on

    @property
    def threshold(self) -> float:
        """The similarity below which a frame is unusual for this scene."""
        usual = float(np.median(self._history)) if self._history else 1.0
        return min(SAME_SCENE, USUAL_SHARE * usual) if usual >= RESTLESS else -2.0

    def _returns(self, after: torch.Tensor) -> bool:
        """Whether the frame after an unusual one shows the old scene again, or is blank."""
        assert self._last is not None
        if after.shape != self._last.shape:
            return False
        return float(after.std()) < BLANK or similarity(self._last, after) >= self.threshold

    def _accept(self, now: torch.Tensor, kind: str, score: float) -> SceneChange:
        self._history.append(score)
        self._last, self._dark = now, False
        return SceneChange(bool(kind), kind, score)


def scene_luma(frame: torch.Tensor) -> torch.Tensor:
    """A frame's luma `[h, w]`, small and blurred, on the CPU."""
    small = small_luma(frame, SIDE).cpu().numpy()
    return torch.from_numpy(cv2.GaussianBlur(small, (0, 0), BLUR))


def similarity(before: torch.Tensor, after: torch.Tensor) -> float:
    """How similar two small lumas are, regardless of brightness and with motion followed: -1 to 1.

    After warping along the flow, the score is scaled down where few pixels were found again.
    """
    plain = _block_correlation(before, after)
    if plain >= SAME_SCENE:
        return plain
    level = [((one - one.mean()) / one.std().clamp(min=1e-6) * 0.2 + 0.5).clamp(0, 1) for one in (before, after)]
    moved = luma_flow(level[0], level[1])
    found = float((moved.confidence > FOUND).float().mean())
    warped = _block_correlation(warp(level[0], moved), level[1])
    return max(plain, warped * min(1.0, 2 * found) if warped > 0 else warped)


def _block_correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """The median of the blocks' correlations, weighted by contrast."""
    scores, weights = [], []
    height, width = one.shape
    for row in range(BLOCKS):
        rows = slice(row * height // BLOCKS, (row + 1) * height // BLOCKS)
        for column in range(BLOCKS):
            columns = slice(column * width // BLOCKS, (column + 1) * width // BLOCKS)
            a, b = (plane.numpy()[rows, columns].ravel() for plane in (one, other))
            a, b = a - a.mean(), b - b.mean()
            power_a, power_b = float(np.dot(a, a)), float(np.dot(b, b))
            power = (power_a * power_b) ** 0.5
            weights.append((power_a**0.5 + power_b**0.5) / max(1, len(a) - 1) ** 0.5)
            scores.append(float(np.dot(a, b)) / power if power > 1e-9 else 0.0)
    order = np.argsort(scores)
    share = np.cumsum(np.array(weights)[order])
    return float(np.array(scores)[order][int(np.searchsorted(share, share[-1] / 2))])


@dataclass(frozen=True)
class Shift:
    """Global motion: each pixel was at (x, y) from its place in the frame before."""

    x: float = 0.0
    y: float = 0.0

    @property
    def is_zero(self) -> bool:
        return self.x == 0 and self.y == 0

    @property
    def inverse(self) -> Shift:
        return Shift(-self.x, -self.y)

    def flow(self, size: tuple[int, int]) -> Flow:
        """As the flow of a frame (height, width)."""
        vectors = torch.empty(2, *size)
        vectors[0], vectors[1] = self.x, self.y
        return Flow(vectors, torch.ones(size))


def global_shift(before: torch.Tensor, after: torch.Tensor) -> Shift:
    """How far all of `before` moved to become `after`, small lumas `[h, w]` of one size; zero where no shift is certain."""
    old, new = (_remove_shade(small_luma(one, SHIFT_SIDE).numpy()) for one in (before, after))
    found = _correlations(old, new)
    height, width = old.shape
    y, x = (int(place) for place in np.unravel_index(int(found.argmax()), found.shape))
    if found[y, x] < max(SHIFT_CORRELATION, found[height - 1, width - 1] + SHIFT_LEAD):
        return Shift()
    return Shift((x - (width - 1)) * before.shape[1] / width, (y - (height - 1)) * before.shape[0] / height)


def _remove_shade(plane: np.ndarray) -> np.ndarray:
    """A plane `[h, w]` without slow changes of brightness: shade moves with the lamp, not with the print."""
    return plane.astype(np.float64) - cv2.GaussianBlur(plane, (0, 0), SHADE_SIGMA)


def _correlations(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The correlation of two planes `[h, w]` over their overlap, for every shift `[2h - 1, 2w - 1]`; -1 where that is small."""
    height, width = old.shape
    size = (2 * height - 1, 2 * width - 1)

    def transforms(plane: np.ndarray, turn: slice) -> list[np.ndarray]:
        centred = plane - plane.mean()
        moments = (centred, centred * centred, np.ones_like(plane))
        return [np.fft.rfft2(moment[turn, turn], size) for moment in moments]

    def product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.fft.irfft2(one * other, size)

    (sum_a, square_a, ones_a), (sum_b, square_b, ones_b) = (
        transforms(old, slice(None)),
        transforms(new, slice(None, None, -1)),
    )
    count = np.maximum(product(ones_a, ones_b), 1.0)
    mean_a, mean_b = product(sum_a, ones_b) / count, product(ones_a, sum_b) / count
    variance_a = product(square_a, ones_b) / count - mean_a**2
    variance_b = product(ones_a, square_b) / count - mean_b**2
    covariance = product(sum_a, sum_b) / count - mean_a * mean_b
    power = np.sqrt(np.clip(variance_a, 0, None) * np.clip(variance_b, 0, None))
    flat = power < 1e-6  # the overlap shows nothing
    found = np.where(flat, 0.0, covariance / np.where(flat, 1.0, power))
    found[count < MIN_OVERLAP * height * width] = -1.0
    return found
