"""Interleaved rounds, ratios within rounds, peak memory."""

from __future__ import annotations

import pytest

from arr_coc.bench.timing import Goal, Timing, interleave, peak_megabytes


def test_rounds_are_interleaved_after_one_warm_up() -> None:
    order: list[str] = []
    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert len(times["a"].runs) == 2
    assert times["a"].best <= times["a"].median


def test_ratios_are_taken_within_rounds() -> None:
    one, other = Timing((1.0, 20.0, 3.0)), Timing((2.0, 40.0, 3.0))
    assert one.ratio(other) == 0.5
    assert (one.median, one.best) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("goal", "reached", "bound"),
    [
        (Goal("time", 9, at_most=10), True, "<= 10"),
        (Goal("time", 11, at_most=10), False, "<= 10"),
        (Goal("time", None, at_most=10), None, "<= 10"),
        (Goal("faster", 2, at_least=1.5), True, ">= 1.5"),
        (Goal("faster", 1.4, at_least=1.5), False, ">= 1.5"),
    ],
)
def test_a_goal_is_reached_from_its_own_side(goal: Goal, reached: bool | None, bound: str) -> None:
    assert goal.reached is reached
    assert goal.bound == bound


def test_half_precision_stays_under_250_megabytes_at_1024_pixels() -> None:
    peak = peak_megabytes(1024, "float16")
    assert peak is None or 80 < peak < 250  # the tensor alone has 80
