"""evs: what is new in a video."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import SelectionInput, selector
from arr_coc.types.grid import Grid
from tests.selectors.selections import choice, selection, slow_cosine


def video(grid: Grid, k: int, candidates: torch.Tensor | None = None, seed: int = 0) -> SelectionInput:
    return selection(grid, k, candidates, seed, kind="video")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [6, 7, 11, 20])
@pytest.mark.parametrize("some", [False, True])
def test_evs(seed: int, k: int, some: bool) -> None:
    grid = Grid(4, 2, 3)
    drawn = torch.randperm(24, generator=torch.Generator().manual_seed(seed))[:16].sort().values
    seen = video(grid, k, drawn if some else None, seed)
    assert seen.tokens is not None
    cells = seen.candidates.tolist()
    novelty = []
    for i, cell in enumerate(cells):
        before = [j for j in range(i) if cells[j] % 6 == cell % 6]
        novelty.append(1 - slow_cosine(seen.tokens[i], seen.tokens[before[-1]]) if before else 2.0)
        if cell // 6 == cells[0] // 6:
            novelty[-1] = 3.0
    best = sorted(range(len(cells)), key=lambda i: -novelty[i])[:k]
    assert choice(selector("evs").select(seen)).keep.tolist() == sorted(cells[i] for i in best)


def test_a_still_video_keeps_its_first_frame_and_then_the_earliest() -> None:
    seen = video(Grid(3, 2, 2), 5)
    still = replace(seen, tokens=seen.tokens[:4].repeat(3, 1))  # type: ignore[index]
    kept = choice(selector("evs").select(still)).keep.tolist()
    assert kept[:4] == [0, 1, 2, 3]
    assert (choice(selector("evs").select(still)).relevance[4:] < 1e-6).all()  # type: ignore[index]


def test_less_than_a_frame_is_spread_over_the_first() -> None:
    assert choice(selector("evs").select(video(Grid(3, 2, 4), 2))).keep.tolist() == [2, 6]


def test_it_is_for_videos() -> None:
    with pytest.raises(SelectorError, match="compares the frames of a video, got an image"):
        selector("evs").select(selection(Grid(1, 3, 3), 3))
