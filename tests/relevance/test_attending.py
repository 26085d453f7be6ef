"""How many cells, and which."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.errors import BudgetError
from arr_coc.relevance.attending import (
    AUTO_MAX,
    AUTO_MIN,
    DUPLICATE,
    LINE_WEIGHT,
    auto_count,
    favour_lines,
    how_many,
    most_relevant,
)  # fmt: skip
from arr_coc.types.budget import count_for_mass
from arr_coc.types.grid import Cells, Grid, Mosaic


def bump(height: int, width: int, size: float) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.exp(-((y - height / 2) ** 2 + (x - width / 3) ** 2) / (2 * size**2)).flatten()


def test_auto_follows_the_spread() -> None:
    hot, wide, flat = bump(36, 36, 1.5), bump(36, 36, 3.5), torch.ones(1296)
    assert AUTO_MIN <= auto_count(hot) < 100 < auto_count(wide) < auto_count(flat) == AUTO_MAX
    noise = torch.rand(1296, generator=torch.Generator().manual_seed(0))
    assert auto_count(noise) == AUTO_MAX
    assert auto_count(torch.ones(30)) == 30
    assert auto_count(bump(5, 6, 1)) == 30
    counts = [auto_count(bump(40, 40, size)) for size in (1.0, 2.0, 4.0, 6.0, 8.0)]
    assert counts == sorted(counts)


def test_auto_does_not_depend_on_scale() -> None:
    hot = bump(36, 36, 4)
    assert auto_count(hot) == auto_count(hot * 7 + 3)


def test_the_most_relevant_in_order_ties_to_the_first() -> None:
    assert most_relevant(torch.tensor([1.0, 3, 2, 3, 0]), 3).tolist() == [1, 2, 3]
    assert most_relevant(torch.ones(5), 2).tolist() == [0, 1]
    assert most_relevant(torch.ones(5), 0).tolist() == []
    assert most_relevant(torch.ones(5), 9).tolist() == [0, 1, 2, 3, 4]


def test_near_copies_wait() -> None:
    relevance = torch.tensor([9.0, 8, 7, 6, 5, 4])
    tokens = torch.tensor([[1.0, 0], [1, 0.01], [2, 0], [0, 1], [0.5, 0.5], [0, 2]])
    assert most_relevant(relevance, 3, tokens).tolist() == [0, 3, 4]
    assert most_relevant(relevance, 4, tokens).tolist() == [0, 1, 3, 4]  # then the best of the rest
    assert most_relevant(relevance, 6, tokens).tolist() == [0, 1, 2, 3, 4, 5]


def test_near_copies_by_definition() -> None:
    dice = torch.Generator().manual_seed(0)
    base = torch.randn(20, 8, generator=dice)
    tokens = base[torch.randint(20, (100,), generator=dice)] + 0.02 * torch.randn(100, 8, generator=dice)
    relevance = torch.rand(100, generator=dice)
    kept = most_relevant(relevance, 15, tokens)
    unit = tokens / tokens.norm(dim=1, keepdim=True)
    chosen: list[int] = []
    for place in relevance.argsort(descending=True)[:30].tolist():
        if len(chosen) < 15 and all(float(unit[place] @ unit[other]) < DUPLICATE for other in chosen):
            chosen.append(place)
    rest = [place for place in relevance.argsort(descending=True)[:30].tolist() if place not in chosen]
    assert kept.tolist() == sorted(chosen + rest[: 15 - len(chosen)])


@given(st.lists(st.floats(0, 1, width=32), max_size=40), st.just(0.0) | st.floats(1e-6, 1))
def test_a_mass_is_held_by_as_few_cells_as_can_be(values: list[float], mass: float) -> None:
    relevance = torch.tensor(values)
    count = count_for_mass(relevance, mass)
    assert 0 <= count <= len(values)
    if not values:
        return
    above = (relevance.double() - relevance.double().median()).clamp(min=0).sort(descending=True).values
    if float(above.sum()) > 0 and mass > 0:
        assert float(above[:count].sum()) >= (mass - 1e-9) * float(above.sum())
        assert float(above[: count - 1].sum()) < mass * float(above.sum())


def test_more_mass_takes_more_cells_and_all_of_it_no_more_than_the_better_half() -> None:
    hot = bump(36, 36, 4)
    counts = [count_for_mass(hot, mass) for mass in (0.0, 0.25, 0.5, 0.9, 1.0)]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[1]
    assert counts[-1] <= 1296 / 2
    assert count_for_mass(hot, 0.9) == count_for_mass(hot * 7 + 3, 0.9)
    assert count_for_mass(torch.ones(100), 0.25) == 25  # nothing stands out: each counts alike


def test_a_mass_of_what_is_no_number_is_refused() -> None:
    with pytest.raises(BudgetError, match="finite relevance"):
        count_for_mass(torch.tensor([0.0, float("nan")]), 0.5)


def test_a_count_comes_first_then_a_mass_then_auto() -> None:
    hot = bump(36, 36, 4)
    assert how_many(hot, 5, 0.9) == 5
    assert how_many(hot, 9999) == 1296
    assert how_many(hot, None, 0.9) == count_for_mass(hot, 0.9)
    assert how_many(hot, None) == auto_count(hot)


def test_a_line_of_writing_is_kept_with_what_a_layer_is_surest_of() -> None:
    grid = Grid(1, 3, 4)
    chances = torch.tensor([[0.1, 0.1, 0.2, 0.1], [0.9, 0.1, 0.05, 0.05], [0.3, 0.3, 0.3, 0.1]]).flatten()
    text = torch.tensor([[0.4, 0.4, 0.4, 0.4], [0.4, 0.4, 0.0, 0.4], [0.4, 0.4, 0.4, 0.4]]).flatten()
    worth = favour_lines(chances, text, grid, torch.arange(12))
    assert most_relevant(chances, 4).tolist() == [4, 8, 9, 10]
    assert most_relevant(worth, 4).tolist() == [4, 5, 7, 8]  # the whole line but for where nothing is written
    assert worth[6] == chances[6]
    assert torch.equal(favour_lines(chances, 0.1 * text, grid, torch.arange(12)), worth)  # however faint


def test_without_writing_the_order_is_that_of_relevance() -> None:
    chances = bump(5, 6, 2)
    assert torch.equal(favour_lines(chances, torch.zeros(30), Grid(1, 5, 6), torch.arange(30)), chances)
    assert favour_lines(torch.zeros(0), torch.zeros(0), Grid(1, 5, 6), torch.arange(0)).tolist() == []


@pytest.mark.parametrize(
    "grid", [Grid(1, 4, 7), Grid(3, 4, 5), Mosaic((Grid(1, 3, 3, (0, 0, 0.5, 1)), Grid(2, 2, 4), Grid(1, 2, 6)))]
)
@pytest.mark.parametrize("every", [1, 3])
def test_rows_are_those_of_one_frame_and_one_tile(grid: Cells, every: int) -> None:
    dice = torch.Generator().manual_seed(0)
    candidates = torch.arange(0, grid.n, every)
    chances, text = torch.rand(2, len(candidates), generator=dice).unbind()
    places = []
    for number, view in enumerate(grid.views):
        places += [(number, frame, row) for frame in range(view.t) for row in range(view.h) for _ in range(view.w)]
    mine = [places[cell] for cell in candidates.tolist()]
    surest = [max(float(chances[j]) for j in range(len(mine)) if mine[j] == mine[i]) for i in range(len(mine))]
    expected = chances + LINE_WEIGHT * torch.tensor(surest) ** 2 * text / text.max()
    assert torch.allclose(favour_lines(chances, text, grid, candidates), expected, atol=1e-6)
