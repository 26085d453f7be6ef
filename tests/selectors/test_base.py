"""The contract of a selector: exactly k sorted candidates, on every grid and for every kind of token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.errors import SelectorError
from arr_coc.selectors import Question, SelectionInput, Selector
from arr_coc.types.grid import Cells, Grid
from tests.selectors.selections import SELECTOR_NAMES, TILES, choice, make_selector, selection

GRIDS = st.one_of(st.builds(Grid, st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)), st.just(TILES))
KINDS = st.sampled_from(["random", "same", "twins", "zeros"])


def selection_for(
    name: str, grid: Cells, k: int | None, candidates: Any = None, seed: int = 0, tokens: str = "random"
) -> SelectionInput:
    return selection(grid, k, candidates, seed, tokens, kind="video" if name == "evs" else "image")


@pytest.mark.parametrize("name", SELECTOR_NAMES)
@settings(deadline=None, max_examples=40)
@given(
    grid=GRIDS,
    share=st.sampled_from([0, 0.1, 0.3, 0.6, 1]),
    every=st.integers(1, 3),
    seed=st.integers(0, 9),
    tokens=KINDS,
)
def test_exactly_k_sorted_candidates(name: str, grid: Cells, share: float, every: int, seed: int, tokens: str) -> None:
    candidates = torch.arange(0, grid.n, every)
    k = round(share * grid.n)
    seen = selection_for(name, grid, k, candidates, seed, tokens)
    chosen = choice(make_selector(name).select(seen))
    assert len(chosen.keep) == min(k, len(candidates))
    assert (chosen.keep[1:] > chosen.keep[:-1]).all()
    assert torch.isin(chosen.keep, candidates).all()
    assert chosen.strategy
    assert "\n" not in chosen.strategy
    if chosen.features is not None:
        assert chosen.features.shape == (len(chosen.keep), seen.tokens.shape[1])
        assert chosen.features.isfinite().all()
    if chosen.relevance is not None:
        assert chosen.relevance.shape == (grid.n,)
        assert chosen.relevance.isfinite().all()
    again = choice(make_selector(name).select(selection_for(name, grid, k, candidates, seed, tokens)))
    assert torch.equal(again.keep, chosen.keep)
    assert again.features is None or torch.equal(again.features, chosen.features)


@pytest.mark.parametrize("name", SELECTOR_NAMES)
def test_one_cell(name: str) -> None:
    for k in (0, 1, 5):
        assert choice(make_selector(name).select(selection_for(name, Grid(1, 1, 1), k))).keep.tolist() == [0][:k]


@pytest.mark.parametrize("name", SELECTOR_NAMES)
def test_a_budget_of_all_cells_keeps_all(name: str) -> None:
    chosen = choice(make_selector(name).select(selection_for(name, Grid(1, 4, 5), 20)))
    assert chosen.keep.tolist() == list(range(20))


@pytest.mark.parametrize("name", SELECTOR_NAMES)
def test_half_precision(name: str) -> None:
    seen = selection_for(name, Grid(1, 6, 6), 9)
    half = replace(seen, tokens=seen.tokens.bfloat16())
    chosen = choice(make_selector(name).select(half))
    assert len(chosen.keep) == 9
    assert chosen.features is None or chosen.features.dtype == torch.bfloat16


@pytest.mark.parametrize("name", SELECTOR_NAMES)
def test_relevance_for_shared_budgets_has_one_value_per_candidate(name: str) -> None:
    worth = make_selector(name).relevance(selection_for(name, Grid(1, 4, 5), 5, torch.arange(0, 20, 3)))
    if name in ("divprune", "tome"):
        assert worth is None
    else:
        assert worth.shape == (7,)
        assert worth.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(SELECTOR_NAMES) - {"arr-coc"}))
def test_auto_is_refused(name: str) -> None:
    with pytest.raises(SelectorError, match="give a count or a share"):
        make_selector(name).select(selection_for(name, Grid(1, 4, 5), None))


@pytest.mark.parametrize("name", ["centre", "saliency", "ink", "arr-coc"])
def test_selectors_that_need_only_pixels_can_glance(name: str) -> None:
    seen = selection_for(name, Grid(1, 4, 5), 5)
    pixels_only = replace(seen, tokens=None, attention={})
    assert torch.equal(
        choice(make_selector(name).before_encoding(pixels_only)).keep, choice(make_selector(name).select(seen)).keep
    )


@pytest.mark.parametrize("name", sorted(set(SELECTOR_NAMES) - {"centre", "saliency", "ink", "arr-coc"}))
def test_selectors_that_need_tokens_cannot_glance(name: str) -> None:
    with pytest.raises(SelectorError, match="cannot glance"):
        make_selector(name).before_encoding(selection_for(name, Grid(1, 4, 5), 5))


def test_methods_that_a_selector_lacks_raise() -> None:
    with pytest.raises(SelectorError, match="does not choose among encoded"):
        Selector().select(selection(Grid(1, 2, 2), 1))
    with pytest.raises(SelectorError, match="no texture"):
        _ = SelectionInput(Grid(1, 2, 2), 1, torch.arange(4), Question("What?", torch.arange(5))).texture
