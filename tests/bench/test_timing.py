"""Interleaved rounds, ratios within rounds, peak memory."""

from __future__ import annotations

from arr_coc.bench.timing import RoundTimes, interleave, peak_megabytes


def test_rounds_are_interleaved_after_one_warm_up() -> None:
    order: list[str] = []
    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert len(times["a"].runs) == 2
    assert times["a"].best <= times["a"].median


def test_ratios_are_taken_within_rounds() -> None:
    found = RoundTimes({"one": [1.0, 20.0, 3.0], "other": [2.0, 40.0, 3.0]})
    assert found.ratio("one", "other") == 0.5
    assert (found.median("one"), found.best("one")) == (3.0, 1.0)


def test_half_precision_stays_under_250_megabytes_at_1024_pixels() -> None:
    peak = peak_megabytes(1024, "float16")
    assert peak is None or 80 < peak < 250  # the tensor alone has 80
