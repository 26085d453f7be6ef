"""The mip pyramid: each level half the size of the one before, every channel pooled by its own rule.

Level 0 is the texture itself; sizes are halved and rounded down, never below 1. On odd sizes the cells of a level do not
fall on pixel borders, and `pooling` weighs the pixels they cut: the mean of a level is the mean of the image.
"""

from __future__ import annotations

import torch

from arr_coc.texture.layout import Pool
from arr_coc.texture.pooling import pool


def level_size(size: tuple[int, int], level: int) -> tuple[int, int]:
    """(height, width) of a level."""
    return max(1, size[0] >> level), max(1, size[1] >> level)


def level_count(size: tuple[int, int]) -> int:
    """How many levels there are, down to 1x1."""
    return max(size).bit_length()


class Pyramid:
    """The levels of one plane, each built when it is first asked for."""

    def __init__(self, plane: torch.Tensor, rule: Pool) -> None:
        self._levels = [plane]
        self._rule: Pool = rule

    def level(self, number: int) -> torch.Tensor:
        """The plane at a level: `[H >> number, W >> number]`."""
        base = self._levels[0]
        size = (int(base.shape[0]), int(base.shape[1]))
        while len(self._levels) <= number:
            # Ids come straight from level 0: the centre of a centre's centre drifts to a corner.
            source = base if self._rule == "nearest" else self._levels[-1]
            self._levels.append(pool(source, level_size(size, len(self._levels)), self._rule))
        return self._levels[number]
