"""Attending: how many cells are kept, and which."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc import TextureArray
from arr_coc.relevance import attending
from arr_coc.relevance.attending import (
    AUTO_MAX,
    AUTO_MIN,
    DUPLICATE,
    LINES,
    auto_count,
    favour_lines,
    how_many,
    most_relevant,
)
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.types.budget import count_for_mass
from arr_coc.types.grid import Cells, Grid, Mosaic
from tests.relevance.page import fixed_layer, line_start, page, page_selection


def bump(height: int, width: int, size: float) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.exp(-((y - height / 2) ** 2 + (x - width / 3) ** 2) / (2 * size**2)).flatten()


def test_auto_keeps_more_cells_for_a_wider_spread() -> None:
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


def test_the_most_relevant_are_sorted_and_ties_go_to_the_first() -> None:
    assert most_relevant(torch.tensor([1.0, 3, 2, 3, 0]), 3).tolist() == [1, 2, 3]
    assert most_relevant(torch.ones(5), 2).tolist() == [0, 1]
    assert most_relevant(torch.ones(5), 0).tolist() == []
    assert most_relevant(torch.ones(5), 9).tolist() == [0, 1, 2, 3, 4]


def test_near_duplicates_are_picked_last() -> None:
    relevance = torch.tensor([9.0, 8, 7, 6, 5, 4])
    tokens = torch.tensor([[1.0, 0], [1, 0.01], [2, 0], [0, 1], [0.5, 0.5], [0, 2]])
    assert most_relevant(relevance, 3, tokens).tolist() == [0, 3, 4]
    assert most_relevant(relevance, 4, tokens).tolist() == [0, 1, 3, 4]  # then the most relevant duplicate
    assert most_relevant(relevance, 6, tokens).tolist() == [0, 1, 2, 3, 4, 5]


def test_near_duplicates_equal_their_definition() -> None:
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


def test_a_count_has_priority_over_a_mass_and_a_mass_over_auto() -> None:
    hot = bump(36, 36, 4)
    assert how_many(hot, 5, 0.9) == 5
    assert how_many(hot, 9999) == 1296
    assert how_many(hot, None, 0.9) == count_for_mass(hot, 0.9)
    assert how_many(hot, None) == auto_count(hot)


def test_the_text_line_of_the_best_cell_is_favoured() -> None:
    grid = Grid(1, 3, 4)
    probabilities = torch.tensor([[0.1, 0.1, 0.2, 0.1], [0.9, 0.1, 0.05, 0.05], [0.3, 0.3, 0.3, 0.1]]).flatten()
    text = torch.tensor([[0.4, 0.4, 0.4, 0.4], [0.4, 0.4, 0.0, 0.4], [0.4, 0.4, 0.4, 0.4]]).flatten()
    worth = favour_lines(probabilities, text, grid, torch.arange(12))
    assert most_relevant(probabilities, 4).tolist() == [4, 8, 9, 10]
    assert most_relevant(worth, 4).tolist() == [4, 5, 7, 8]  # the whole line except its blank cell
    assert worth[6] == probabilities[6]
    assert torch.equal(
        favour_lines(probabilities, 0.1 * text, grid, torch.arange(12)), worth
    )  # the scale of the text scores does not matter


def test_without_text_the_ranking_is_relevance() -> None:
    probabilities = bump(5, 6, 2)
    assert torch.equal(favour_lines(probabilities, torch.zeros(30), Grid(1, 5, 6), torch.arange(30)), probabilities)
    assert favour_lines(torch.zeros(0), torch.zeros(0), Grid(1, 5, 6), torch.arange(0)).tolist() == []


@pytest.mark.parametrize(
    "grid", [Grid(1, 4, 7), Grid(3, 4, 5), Mosaic((Grid(1, 3, 3, (0, 0, 0.5, 1)), Grid(2, 2, 4), Grid(1, 2, 6)))]
)
@pytest.mark.parametrize("every", [1, 3])
def test_lines_stay_in_one_frame_and_one_tile(grid: Cells, every: int) -> None:
    dice = torch.Generator().manual_seed(0)
    candidates = torch.arange(0, grid.n, every)
    probabilities, text = torch.rand(2, len(candidates), generator=dice).unbind()
    places = []
    for number, view in enumerate(grid.views):
        places += [(number, frame, row) for frame in range(view.t) for row in range(view.h) for _ in range(view.w)]
    own = [places[cell] for cell in candidates.tolist()]
    surest = [max(float(probabilities[j]) for j in range(len(own)) if own[j] == own[i]) for i in range(len(own))]
    expected = probabilities + LINES[0] * torch.tensor(surest) ** LINES[1] * text / text.max()
    assert torch.allclose(favour_lines(probabilities, text, grid, candidates), expected, atol=1e-6)


def test_a_layer_keeps_the_whole_line_that_it_is_surest_of() -> None:
    probabilities = line_start()
    sure = page_selection(8, layer=fixed_layer(probabilities))
    text = TextureArray.from_image(page()).grid(10, 10, ["text"])[0].flatten()
    text_cells = [cell for cell in range(70, 80) if text[cell] > 0.5 * text.max()]
    assert len(text_cells) > 4
    found = realized(sure)
    assert found.strategy.endswith("(coupling by layer)")
    assert set(text_cells) <= set(found.keep.tolist())
    assert found.relevance is not None
    assert torch.equal(
        found.relevance[probabilities == 0.2], found.relevance[14].expand(10)
    )  # relevance stays the layer's own
    assert found.relevance[75] == 0 < found.relevance[14]
    some = torch.arange(0, 100, 2)  # the encoded cells
    of_some = realized(replace(sure, candidates=some, tokens=sure.tokens[some], k=4))
    assert set(of_some.keep.tolist()) <= set(some.tolist())
    assert len([cell for cell in of_some.keep.tolist() if cell in text_cells]) > 1


def test_before_encoding_lines_are_not_favoured() -> None:
    probabilities = line_start()
    found = realized(replace(page_selection(8, layer=fixed_layer(probabilities)), tokens=None, probe=None))
    assert found.strategy.endswith("(coupling by layer)")
    assert found.keep.tolist() == attending.most_relevant(probabilities, 8).tolist()


def test_favouring_lines_does_not_change_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in ({"k": None}, {"k": None, "mass": 0.9}):
        sure = replace(page_selection(layer=fixed_layer(line_start())), **budget)
        with_lines = len(realized(sure).keep)
        with monkeypatch.context() as patch:
            patch.setattr(attending, "LINES", (0.0, 2))
            assert len(realized(sure).keep) == with_lines


def test_lines_are_not_favoured_when_the_caller_sets_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RelevanceSettings(weights={"information": 1.0})
    sure = page_selection(8, layer=fixed_layer(line_start()))
    kept = realized(sure, own).keep
    monkeypatch.setattr(attending, "LINES", (0.0, 2))
    assert torch.equal(realized(sure, own).keep, kept)


def test_a_gaze_thins_out_the_kept_cells_with_the_square_of_its_falloff() -> None:
    side = 60
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    gaze = (1 / (1 + torch.hypot(rows.float() - 30, columns.float() - 30) / 6)).flatten()
    relevance = torch.rand(side * side, generator=torch.Generator().manual_seed(0))
    kept = torch.zeros(side * side)
    kept[attending.foveate(relevance, gaze, 450)] = 1
    near, ring, far = gaze > 0.8, (gaze > 0.35) & (gaze < 0.45), gaze < 0.2
    assert kept[near].mean() > 0.9
    shares = [float(kept[some].mean() / gaze[some].square().mean()) for some in (ring, far)]
    assert shares[0] == pytest.approx(shares[1], rel=0.25)
    assert float((relevance * kept)[far].sum() / kept[far].sum()) > 0.7  # the most relevant cells of each ring


@pytest.mark.parametrize("count", [0, 1, 5, 99, 100])
def test_a_gaze_keeps_the_cell_that_is_looked_at_and_the_whole_budget(count: int) -> None:
    gaze = torch.linspace(0.05, 1, 100)
    relevance = torch.linspace(1, 0, 100)
    kept = attending.foveate(relevance, gaze, count)
    assert len(kept) == len(kept.unique()) == count
    assert kept.tolist() == sorted(kept.tolist())
    assert count == 0 or 99 in kept.tolist()
    flat = attending.foveate(relevance, torch.full((100,), 0.5), count)
    assert len(flat) == count
