"""One pass, exact: any cut of the vectors gives the moments of all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.embedding import moments
from arr_coc.embedding.projection import Moments
from arr_coc.errors import ProjectionError


def vectors(count: int, width: int, seed: int = 0, far: float = 0.0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=dice, dtype=torch.float64) + far


def direct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    around = rows - rows.mean(0)
    return rows.mean(0), around.T @ around


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=6), width=st.integers(1, 9), seed=st.integers(0, 99),
    far=st.sampled_from([0.0, 1.0, 1e4]),
)  # fmt: skip
def test_any_cut_in_any_order_gives_the_same(cuts: list[int], width: int, seed: int, far: float) -> None:
    rows = vectors(40, width, seed, far)
    parts = torch.tensor_split(rows, sorted(cuts))
    found = Moments.empty(width)
    for number in torch.randperm(len(parts), generator=torch.Generator().manual_seed(seed)):
        found = found + Moments.of(parts[number])
    mean, scatter = direct(rows)
    assert found.count == 40
    torch.testing.assert_close(found.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.scatter, scatter, rtol=1e-9, atol=1e-9)


def test_merging_is_associative() -> None:
    a, b, c = (Moments.of(vectors(n, 5, n)) for n in (3, 50, 11))
    left, right = (a + b) + c, a + (b + c)
    torch.testing.assert_close(left.scatter, right.scatter, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left.mean, right.mean, rtol=1e-13, atol=1e-13)


def test_features_far_from_zero_lose_nothing() -> None:
    """A difference of large sums would: the scatter here is 1e-16 of the sum of squares."""
    rows = vectors(1000, 4, far=1e8)
    torch.testing.assert_close(Moments.of(rows).scatter, direct(rows)[1], rtol=1e-6, atol=1e-6)


def test_many_rows_come_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = vectors(100, 6)
    whole = Moments.of(rows)
    monkeypatch.setattr(moments, "ROWS_AT_ONCE", 7)
    torch.testing.assert_close(Moments.of(rows).scatter, whole.scatter, rtol=1e-12, atol=1e-12)


def test_covariance() -> None:
    rows = vectors(30, 3, far=2)
    found = Moments.of(rows.float())
    torch.testing.assert_close(found.covariance, torch.cov(rows.float().double().T, correction=0))


def test_two_kinds_can_count_alike() -> None:
    few, many = vectors(10, 3, seed=1, far=4), vectors(500, 3, seed=2)
    both = Moments.of(few).with_count(500) + Moments.of(many)
    repeated = Moments.of(torch.cat([few.repeat(50, 1), many]))
    assert both.count == 1000
    torch.testing.assert_close(both.mean, repeated.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(both.scatter, repeated.scatter, rtol=1e-10, atol=1e-8)


def test_nothing_seen() -> None:
    nothing = Moments.empty(4)
    some = Moments.of(vectors(3, 4))
    assert (nothing + some) is some
    assert (some + nothing) is some
    assert Moments.of(torch.zeros(0, 4)).count == 0
    assert nothing.covariance.abs().sum() == 0


def test_into_a_file_and_back() -> None:
    some = Moments.of(vectors(9, 4))
    back = Moments.from_tensors(some.to_tensors("image"), "image")
    assert back.count == 9
    assert torch.equal(back.scatter, some.scatter)
    assert torch.equal(back.mean, some.mean)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ProjectionError, match="4 dimensions, got 5"):
        Moments.of(vectors(3, 4)) + Moments.of(vectors(3, 5))
    with pytest.raises(ProjectionError, match="NaN"):
        Moments.of(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(ProjectionError, match=r"\[N, D\]"):
        Moments.of(torch.zeros(3))
