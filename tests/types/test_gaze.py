"""Fixations are checked, and the falloff around them is that of cortical magnification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.types.gaze import E2, check_gaze, foveal_map


def test_one_point_and_several() -> None:
    assert check_gaze((3, 4)) == ((3.0, 4.0),)
    assert check_gaze([[3, 4], (5, 6)]) == ((3.0, 4.0), (5.0, 6.0))
    assert check_gaze(np.array([3, 4])) == ((3.0, 4.0),)
    assert check_gaze(torch.tensor([[3, 4], [5, 6]])) == ((3.0, 4.0), (5.0, 6.0))
    assert check_gaze((0, 0), (9, 9)) == check_gaze([(0, 0)], (9, 9))


@pytest.mark.parametrize("bad", ["12", "1,2", 5, None, (1,), (1, 2, 3), [], [(1, 2), (3,)], [("a", "b")], {}])
def test_anything_else_is_refused(bad: Any) -> None:
    with pytest.raises(
        ArrCocError, match=r"expected gaze as \(x, y\) in pixels of the picture, or a list of such points, got"
    ):
        check_gaze(bad)


@pytest.mark.parametrize("bad", [(float("nan"), 1), (1, float("inf"))])
def test_gaze_is_finite(bad: Any) -> None:
    with pytest.raises(ArrCocError, match="expected gaze at finite pixels, got"):
        check_gaze(bad)


@pytest.mark.parametrize("bad", [(-1, 2), (2, -0.5), (101, 5), (5, 51), [(1, 1), (500, 1)]])
def test_gaze_lies_inside_the_picture(bad: Any) -> None:
    with pytest.raises(ArrCocError, match="expected gaze inside the picture of 100 x 50 pixels, got"):
        check_gaze(bad, (100, 50))


def test_the_falloff_halves_at_e2() -> None:
    size = (1000, 600)
    found = foveal_map([(200, 300), (900, 50)], size)
    height, width = found.shape
    for y in range(0, height, 17):
        for x in range(0, width, 13):
            px, py = (x + 0.5) * 1000 / width, (y + 0.5) * 600 / height
            away = min(((px - a) ** 2 + (py - b) ** 2) ** 0.5 for a, b in ((200, 300), (900, 50))) / 1000
            assert float(found[y, x]) == pytest.approx(1 / (1 + away / E2), abs=1e-4)
    assert float(found.max()) == pytest.approx(1, abs=0.03)
