"""The controls: everything, chance, evenly spaced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.errors import SelectorError
from arr_coc.selectors import Question, SelectionInput, Selector, selector
from arr_coc.selectors.controls import even_cells
from arr_coc.types.grid import Cells, Grid, Mosaic

WORDS = Question("What?", torch.arange(5))
SIZES = st.integers(1, 12)


def selection(grid: Cells, k: int | None, candidates: torch.Tensor | None = None, seed: int = 0) -> SelectionInput:
    return SelectionInput(grid, k, torch.arange(grid.n) if candidates is None else candidates, WORDS, seed=seed)


@pytest.mark.parametrize("name", ["all", "random", "uniform"])
@given(t=st.integers(1, 3), h=SIZES, w=SIZES, share=st.floats(0, 1), some=st.booleans(), seed=st.integers(0, 99))
def test_exactly_k_sorted_candidates(name: str, t: int, h: int, w: int, share: float, some: bool, seed: int) -> None:
    grid = Grid(t, h, w)
    k = round(share * grid.n)
    candidates = torch.arange(0, grid.n, 2) if some else None
    chosen = selector(name).select(selection(grid, k, candidates, seed))
    assert isinstance(chosen, torch.Tensor)
    assert len(chosen) == min(k, grid.n if candidates is None else len(candidates))
    assert (chosen[1:] > chosen[:-1]).all()
    if candidates is not None:
        assert torch.isin(chosen, candidates).all()


def test_random_follows_its_seed() -> None:
    grid = Grid(1, 20, 20)
    draw = [selector("random").select(selection(grid, 40, seed=seed)).tolist() for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]


def test_uniform_reaches_into_every_part_of_the_picture() -> None:
    grid = Grid(1, 40, 20)
    chosen = grid.thw(even_cells(grid, 50))
    blocks = {(row // 10, column // 10) for _, row, column in chosen.tolist()}
    assert blocks == {(row, column) for row in range(4) for column in range(2)}
    gaps = torch.tensor(sorted({row for _, row, _ in chosen.tolist()})).diff()
    assert gaps.max() - gaps.min() <= 1


def test_uniform_over_several_views() -> None:
    mosaic = Mosaic((Grid(1, 4, 4), Grid(1, 8, 8)))
    chosen = selector("uniform").select(selection(mosaic, 20))
    assert [int((chosen < 16).sum()), int((chosen >= 16).sum())] == [4, 16]


def test_auto_needs_a_selector_that_scores() -> None:
    for name in ("random", "uniform"):
        with pytest.raises(SelectorError, match="give a count or a share"):
            selector(name).select(selection(Grid(1, 3, 3), None))
    assert len(selector("all").select(selection(Grid(1, 3, 3), None))) == 9


def test_what_a_selector_cannot_do_is_said() -> None:
    with pytest.raises(SelectorError, match="does not choose among encoded"):
        Selector().select(selection(Grid(1, 2, 2), 1))
    with pytest.raises(SelectorError, match="no texture"):
        _ = selection(Grid(1, 2, 2), 1).texture
