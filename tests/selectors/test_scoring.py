"""Scores that several selectors share: cosines, mass budgets, and errors for missing inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Question, selector
from arr_coc.selectors.scoring import cosine_matrix, unit_vectors
from arr_coc.types.grid import Grid
from tests.selectors.selections import choice, selection, tokens

GRID = Grid(1, 10, 10)


def test_the_cosine_matrix_equals_the_full_product() -> None:
    for count in (0, 1, 7, 215, 216, 217, 500):
        made = tokens(count, 3)
        got = cosine_matrix(unit_vectors(made))
        assert torch.allclose(got.double(), unit_vectors(made).double() @ unit_vectors(made).double().T, atol=1e-6)
    assert (cosine_matrix(unit_vectors(torch.zeros(3, 4))) == 0).all()


def test_missing_inputs_raise() -> None:
    seen = selection(Grid(1, 3, 3), 3)
    with pytest.raises(SelectorError, match="attention at depth 1"):
        selector("visionzip").select(replace(seen, attention={}))
    with pytest.raises(SelectorError, match="nothing is encoded"):
        selector("divprune").select(replace(seen, tokens=None))
    other = Question("What?", torch.arange(3), lambda ids: torch.ones(3, 4))
    with pytest.raises(SelectorError, match="got 4 and 16 dimensions"):
        selector("mmr").select(replace(seen, question=other))


def test_a_mass_budget_needs_scores() -> None:
    assert 0 < len(choice(selector("ink").select(selection(GRID, None, mass=0.5))).keep) < 50
    with pytest.raises(SelectorError, match="no scores to derive a mass from"):
        selector("uniform").select(selection(GRID, None, mass=0.5))
