"""Shifting: by how much a whole frame moved, however far.

Flow follows what moves a little. Between two moments that a model is shown, half a second apart, a camera that pans has moved
on by a quarter of the picture, and a page full of lines looks alike at every line. So all shifts are tried at once, by
correlation of what both frames show of each other, and flow is left with what remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch

from arr_coc.frames import flow as flows
from arr_coc.frames.flow import Flow

SIDE = 160  # px that shifts are looked for at; flow finds the rest
OVERLAP = 0.3  # of the frame that two moments have in common at least
SHADE = 4.0  # px: brightness that is wider than this is not looked at
SURE = 0.5  # correlation from which two frames show the same
LEAD = 0.05  # of the correlation: a shift that explains no more than this above none is none


@dataclass(frozen=True)
class Shift:
    """How far, across and down, each pixel lay away in the frame before."""

    across: float = 0.0
    down: float = 0.0

    @property
    def still(self) -> bool:
        return self.across == 0 and self.down == 0

    @property
    def back(self) -> Shift:
        """The same seen from the other frame."""
        return Shift(-self.across, -self.down)

    def flow(self, size: tuple[int, int]) -> Flow:
        """As the flow of a frame (height, width)."""
        vectors = torch.empty(2, *size)
        vectors[0], vectors[1] = self.across, self.down
        return Flow(vectors, torch.ones(size))


def shift(before: torch.Tensor, after: torch.Tensor) -> Shift:
    """By how much all of `before` moved to become `after`, small lumas `[h, w]` of one size; none where no shift is sure."""
    old, new = (_lines(flows.small(one, SIDE).numpy()) for one in (before, after))
    found = _correlations(old, new)
    height, width = old.shape
    y, x = (int(place) for place in np.unravel_index(int(found.argmax()), found.shape))
    if found[y, x] < max(SURE, found[height - 1, width - 1] + LEAD):
        return Shift()
    return Shift((x - (width - 1)) * before.shape[1] / width, (y - (height - 1)) * before.shape[0] / height)


def _lines(plane: np.ndarray) -> np.ndarray:
    """What is drawn on a plane `[h, w]`: shade, and the border that a page casts, moves with the lamp and not with the print."""
    return plane.astype(np.float64) - cv2.GaussianBlur(plane, (0, 0), SHADE)


def _correlations(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The correlation of two planes `[h, w]` over their overlap, for every shift `[2h - 1, 2w - 1]`; -1 where that is small."""
    height, width = old.shape
    size = (2 * height - 1, 2 * width - 1)
    ones = np.ones_like(old)

    def turned(plane: np.ndarray) -> np.ndarray:
        return np.fft.rfft2(plane, size)

    def product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.fft.irfft2(one * other, size)

    a, b = old - old.mean(), new - new.mean()
    here, there = (
        (turned(a), turned(a * a), turned(ones)),
        (
            turned(b[::-1, ::-1]),
            turned((b * b)[::-1, ::-1]),
            turned(ones[::-1, ::-1]),
        ),
    )
    count = np.maximum(product(here[2], there[2]), 1.0)
    mean_a, mean_b = product(here[0], there[2]) / count, product(here[2], there[0]) / count
    spread_a = product(here[1], there[2]) / count - mean_a**2
    spread_b = product(here[2], there[1]) / count - mean_b**2
    both = product(here[0], there[0]) / count - mean_a * mean_b
    power = np.sqrt(np.clip(spread_a, 0, None) * np.clip(spread_b, 0, None))
    flat = power < 1e-6  # nothing to be seen in what they share
    made = np.where(flat, 0.0, both / np.where(flat, 1.0, power))
    made[count < OVERLAP * height * width] = -1.0
    return made
