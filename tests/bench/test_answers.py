"""The goals of `arr-coc bench realize`."""

from __future__ import annotations

import pytest

from arr_coc.bench.answers import Target


@pytest.mark.parametrize(
    ("target", "reached", "bound"),
    [
        (Target("time", 9, at_most=10), True, "<= 10"),
        (Target("time", 11, at_most=10), False, "<= 10"),
        (Target("faster", 2, at_least=1.5), True, ">= 1.5"),
        (Target("faster", 1.4, at_least=1.5), False, ">= 1.5"),
    ],
)
def test_a_target_is_reached_from_its_own_side(target: Target, reached: bool, bound: str) -> None:
    assert target.reached is reached
    assert target.bound == bound
