"""The bundled pictures are the same each time, and hold what the tests and the demo look for."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc import pictures


@pytest.mark.parametrize(("draw", "size"), [(pictures.receipt, (560, 1212)), (pictures.scene, (960, 640))])
def test_drawn_the_same_each_time(draw, size: tuple[int, int]) -> None:
    assert draw().size == size
    assert np.array_equal(np.asarray(draw()), np.asarray(draw()))


def test_the_receipt_adds_up() -> None:
    assert f"{sum(float(price) for _, price in pictures._ITEMS):.2f}" == pictures._TOTAL
