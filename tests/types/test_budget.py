"""Mass budgets: the fewest cells that hold a share of the relevance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.errors import BudgetError
from arr_coc.types.budget import count_for_mass
from tests.relevance.test_attending import bump


@given(st.lists(st.floats(0, 1, width=32), max_size=40), st.just(0.0) | st.floats(1e-6, 1))
def test_a_mass_is_held_by_the_fewest_cells(values: list[float], mass: float) -> None:
    relevance = torch.tensor(values)
    count = count_for_mass(relevance, mass)
    assert 0 <= count <= len(values)
    if not values:
        return
    above = (relevance.double() - relevance.double().median()).clamp(min=0).sort(descending=True).values
    if float(above.sum()) > 0 and mass > 0:
        assert float(above[:count].sum()) >= (mass - 1e-9) * float(above.sum())
        assert float(above[: count - 1].sum()) < mass * float(above.sum())


def test_more_mass_needs_more_cells_and_never_those_below_the_median() -> None:
    hot = bump(36, 36, 4)
    counts = [count_for_mass(hot, mass) for mass in (0.0, 0.25, 0.5, 0.9, 1.0)]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[1]
    assert counts[-1] <= 1296 / 2
    assert count_for_mass(hot, 0.9) == count_for_mass(hot * 7 + 3, 0.9)
    assert count_for_mass(torch.ones(100), 0.25) == 25  # a flat map: every cell counts the same


def test_relevance_that_is_not_finite_raises() -> None:
    with pytest.raises(BudgetError, match="finite relevance"):
        count_for_mass(torch.tensor([0.0, float("nan")]), 0.5)
