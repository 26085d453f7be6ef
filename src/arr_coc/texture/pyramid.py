"""The mip pyramid: each level half the size of the one before, every channel pooled by its own rule.

Level 0 is the texture itself; sizes are halved and rounded down, never below 1. On odd sizes the cells of a level do not
fall on pixel borders, and `pooling` weighs the pixels they cut. Every level equals pooling the image itself onto its size.
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
        # By number, so that two threads that build the same level at once only do it twice.
        self._levels = {0: plane}
        self._rule: Pool = rule

    @property
    def rule(self) -> Pool:
        return self._rule

    @property
    def constant(self) -> bool:
        """Whether all of the plane is one value, which takes no memory."""
        return self._levels[0].stride() == (0, 0)

    def fill(self, levels: list[torch.Tensor]) -> None:
        """Take ready levels, from 1 on, in place of building them."""
        for number, level in enumerate(levels, start=1):
            self._levels.setdefault(number, level)

    @property
    def levels(self) -> list[torch.Tensor]:
        """Those that are built."""
        return list(self._levels.values())

    def level(self, number: int) -> torch.Tensor:
        """The plane at a level: `[H >> number, W >> number]`."""
        for missing in range(1, number + 1):
            if missing not in self._levels:
                size = level_size(_size(self._levels[0]), missing)
                self._levels[missing] = pool(self._levels[self._source(missing, size)], size, self._rule)
        return self._levels[number]

    def _source(self, number: int, size: tuple[int, int]) -> int:
        """The coarsest level whose cells nest in cells of `size`, so that pooling it equals pooling the image itself.

        Ids always come from level 0: the centre of a centre's centre drifts to a corner.
        """
        if self._rule == "nearest":
            return 0
        nests = [all(n % m == 0 for n, m in zip(_size(self._levels[i]), size, strict=True)) for i in range(number)]
        return max((i for i, nested in enumerate(nests) if nested), default=0)


def _size(plane: torch.Tensor) -> tuple[int, int]:
    return int(plane.shape[0]), int(plane.shape[1])
