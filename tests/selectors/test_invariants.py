"""What every selector promises, whatever it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.errors import SelectorError
from arr_coc.selectors import Question, SelectionInput, selector
from arr_coc.selectors.fastv import FastV
from arr_coc.selectors.sparsevlm import SparseVLM
from arr_coc.types.grid import Cells, Grid
from tests.selectors.selections import IN_SIGHT, TILES, choice, chooser, selection

GRIDS = st.one_of(st.builds(Grid, st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)), st.just(TILES))
KINDS = st.sampled_from(["random", "same", "twins", "zeros"])


def looking(
    name: str, grid: Cells, k: int | None, candidates: Any = None, seed: int = 0, tokens: str = "random"
) -> SelectionInput:
    return selection(grid, k, candidates, seed, tokens, kind="video" if name == "evs" else "image")


@pytest.mark.parametrize("name", IN_SIGHT)
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
    seen = looking(name, grid, k, candidates, seed, tokens)
    chosen = choice(chooser(name).select(seen))
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
    again = choice(chooser(name).select(looking(name, grid, k, candidates, seed, tokens)))
    assert torch.equal(again.keep, chosen.keep)
    assert again.features is None or torch.equal(again.features, chosen.features)


@pytest.mark.parametrize("name", IN_SIGHT)
def test_a_single_cell(name: str) -> None:
    for k in (0, 1, 5):
        assert choice(chooser(name).select(looking(name, Grid(1, 1, 1), k))).keep.tolist() == [0][:k]


@pytest.mark.parametrize("name", IN_SIGHT)
def test_everything(name: str) -> None:
    chosen = choice(chooser(name).select(looking(name, Grid(1, 4, 5), 20)))
    assert chosen.keep.tolist() == list(range(20))


@pytest.mark.parametrize("name", IN_SIGHT)
def test_half_precision(name: str) -> None:
    seen = looking(name, Grid(1, 6, 6), 9)
    half = replace(seen, tokens=seen.tokens.bfloat16())
    chosen = choice(chooser(name).select(half))
    assert len(chosen.keep) == 9
    assert chosen.features is None or chosen.features.dtype == torch.bfloat16


@pytest.mark.parametrize("name", IN_SIGHT)
def test_relevance_for_shared_budgets_has_one_value_per_candidate(name: str) -> None:
    worth = chooser(name).relevance(looking(name, Grid(1, 4, 5), 5, torch.arange(0, 20, 3)))
    if name in ("divprune", "tome"):
        assert worth is None
    else:
        assert worth.shape == (7,)
        assert worth.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(IN_SIGHT) - {"arr-coc"}))
def test_auto_is_refused(name: str) -> None:
    with pytest.raises(SelectorError, match="give a count or a share"):
        chooser(name).select(looking(name, Grid(1, 4, 5), None))


@pytest.mark.parametrize("name", ["centre", "saliency", "ink", "arr-coc"])
def test_pixels_are_enough_for_a_glance(name: str) -> None:
    seen = looking(name, Grid(1, 4, 5), 5)
    blind = replace(seen, tokens=None, attention={})
    assert torch.equal(choice(chooser(name).before_encoding(blind)).keep, choice(chooser(name).select(seen)).keep)


@pytest.mark.parametrize("name", sorted(set(IN_SIGHT) - {"centre", "saliency", "ink", "arr-coc"}))
def test_the_others_cannot_glance(name: str) -> None:
    with pytest.raises(SelectorError, match="cannot glance"):
        chooser(name).before_encoding(looking(name, Grid(1, 4, 5), 5))


def test_what_is_missing_is_said() -> None:
    seen = selection(Grid(1, 3, 3), 3)
    with pytest.raises(SelectorError, match="attention at depth 1"):
        selector("visionzip").select(replace(seen, attention={}))
    with pytest.raises(SelectorError, match="nothing is encoded"):
        selector("divprune").select(replace(seen, tokens=None))
    other = Question("What?", torch.arange(3), lambda ids: torch.ones(3, 4))
    with pytest.raises(SelectorError, match="got 4 and 16 dimensions"):
        selector("mmr").select(replace(seen, question=other))


def test_without_words_relevance_weighs_nothing() -> None:
    seen = selection(Grid(1, 3, 3), 3)
    silent = replace(seen, question=Question("", torch.arange(0)))
    for name in ("cdpruner", "mmr"):
        assert len(choice(selector(name).select(silent)).keep) == 3
        assert (choice(selector(name).select(silent)).relevance == 1).all()


def test_depths_are_shares_of_the_layers() -> None:
    for inside in (FastV(), SparseVLM()):
        assert all(0 < depth < 1 for depth in inside.depths)
        assert list(inside.depths) == sorted(inside.depths)
