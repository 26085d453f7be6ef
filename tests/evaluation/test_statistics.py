"""Intervals over pictures and paired tests."""

from __future__ import annotations

import pytest

from arr_coc.evaluation import statistics


def test_intervals_resample_pictures_not_questions() -> None:
    alike = {str(i): [float(i % 2)] * 10 for i in range(20)}  # ten questions that succeed or fail together
    low, high = statistics.interval(alike) or (0, 0)
    assert high - low > 0.35  # as wide as that of 20 coins, not of 200
    assert statistics.interval(alike) == statistics.interval(alike)
    assert statistics.mean({"a": [1.0, 0.0], "b": [1.0]}) == pytest.approx(2 / 3)
    assert statistics.mean({"a": []}) is None
    assert statistics.interval({"a": []}) is None


def test_paired_difference() -> None:
    ours = {str(i): [1.0, 1.0] for i in range(12)}
    theirs = {str(i): [1.0, 0.0] for i in range(12)}
    delta, (low, high), p = statistics.difference(ours, theirs) or (0, (0, 0), 1)
    assert delta == low == high == 0.5
    assert p == pytest.approx(2 / 2**12, abs=2e-3)  # only all signs alike are as far
    found = statistics.difference(ours, ours)
    assert found is not None
    assert found[0] == 0
    assert found[2] == 1
    assert statistics.difference(ours, {}) is None
