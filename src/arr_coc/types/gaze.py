"""Where a person looks: fixations in pixels of the picture, checked, and the foveal falloff around them.

Cortical magnification falls with the eccentricity e as 1 / (1 + e / E2): at E2 the cortex spends half as much on a degree as
at the fixation. E2 is about two degrees of visual angle. How many degrees a picture spans is not known; its longer side is
taken as twenty, so E2 is a tenth of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from arr_coc.errors import ArrCocError

E2 = 0.1  # eccentricity at which the magnification is half, as a share of the picture's longer side
MAP_SIDE = 256  # of the falloff's longer side

Point: TypeAlias = tuple[float, float]  # x and y in pixels of the original
Gaze: TypeAlias = "Point | Sequence[Point]"


def check_gaze(gaze: Any, size: tuple[int, int] | None = None) -> tuple[Point, ...]:
    """One fixation or several, as a tuple of points; they must lie inside a picture of `size` (width, height), where known.

    >>> check_gaze((3, 4)), check_gaze([(3, 4), (0, 9)], (10, 10))
    (((3.0, 4.0),), ((3.0, 4.0), (0.0, 9.0)))
    """
    wrong = ArrCocError(f"expected gaze as (x, y) in pixels of the picture, or a list of such points, got {gaze!r}")
    if isinstance(gaze, str):
        raise wrong
    try:
        values = list(gaze)
        points = [values] if values and np.ndim(values[0]) == 0 else values  # lists, tuples, arrays, tensors
        found = [tuple(float(value) for value in point) for point in points]
    except (TypeError, ValueError):
        raise wrong from None
    if not found or any(len(point) != 2 for point in found):
        raise wrong
    for x, y in found:
        if not (math.isfinite(x) and math.isfinite(y)):
            raise ArrCocError(f"expected gaze at finite pixels, got ({x:g}, {y:g})")
        if size is not None and not (0 <= x <= size[0] and 0 <= y <= size[1]):
            raise ArrCocError(
                f"expected gaze inside the picture of {size[0]} x {size[1]} pixels, got ({x:g}, {y:g}): x counts from its "
                "left side, y from its top"
            )
    return tuple((point[0], point[1]) for point in found)


def foveal_map(gaze: Gaze, size: tuple[int, int]) -> torch.Tensor:
    """The falloff around the nearest fixation on a picture of `size` (width, height): `[h, w]`, 1 at a fixation.

    >>> foveal_map((0, 0), (1000, 500))[0, [0, 25]].round(decimals=2)
    tensor([0.9700, 0.5000])
    """
    longer = max(size)
    width, height = (max(1, round(MAP_SIDE * side / longer)) for side in size)
    x = (torch.arange(width) + 0.5) * (size[0] / width / longer)
    y = (torch.arange(height) + 0.5) * (size[1] / height / longer)
    nearest = torch.full((height, width), math.inf)
    for px, py in check_gaze(gaze, size):
        nearest = torch.minimum(nearest, torch.hypot(x - px / longer, y[:, None] - py / longer))
    return 1 / (1 + nearest / E2)
