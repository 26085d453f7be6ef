"""fastv and sparsevlm: on made-up attention, and against the attention that the model itself reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Choice, LayerState, selector
from tests.adapters import tiny
from tests.adapters.test_inside import masked_from
from tests.adapters.tiny_vlm import GREEDY, picture, stock_inputs, wrapped
from tests.selectors.selections import choice

CELLS = torch.tensor([-1, -1, *range(12), -1, 12, 13, 14, 15, -1, -1, -1])


def made_up(
    k: int | None, seed: int = 0, cells: torch.Tensor = CELLS, depth: float = 2 / 32
) -> tuple[LayerState, torch.Tensor]:
    """A row of text and pictures, and its causal attention `[heads, T, T]`."""
    length = len(cells)
    scores = torch.randn(3, length, length, generator=torch.Generator().manual_seed(seed))
    ahead = torch.ones(length, length).triu(1).bool()
    attention = scores.masked_fill(ahead, -torch.inf).softmax(-1)
    return LayerState(depth, 2, torch.zeros(length, 4), cells, lambda queries: attention[:, queries], k), attention


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [0, 1, 5, 16, 20])
def test_fastv(seed: int, k: int) -> None:
    inside, attention = made_up(k, seed)
    paid = {int(cell): float(attention[:, -1, place].mean()) for place, cell in enumerate(CELLS) if cell >= 0}
    assert choice(selector("fastv").at_layer(inside)).keep.tolist() == sorted(
        sorted(paid, key=lambda cell: -paid[cell])[:k]
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [0, 1, 5, 16, 20])
@pytest.mark.parametrize("depth", [2 / 32, 6 / 32, 15 / 32])
def test_sparsevlm(seed: int, k: int, depth: float) -> None:
    inside, attention = made_up(k, seed, depth=depth)
    heads = attention.mean(0).tolist()
    cells = {place: int(cell) for place, cell in enumerate(CELLS) if cell >= 0}
    behind = [place for place in range(min(cells), len(CELLS)) if place not in cells]
    looking = {word: sum(heads[word][place] for place in cells) for word in behind}
    raters = [word for word in behind if looking[word] >= sum(looking.values()) / len(behind)]
    paid = {cell: sum(heads[word][place] for word in raters) for place, cell in cells.items()}
    steps = {2 / 32: 3, 6 / 32: 2, 15 / 32: 1}[depth]
    count = round(16 * (min(k, 16) / 16) ** (1 / steps))
    assert choice(selector("sparsevlm").at_layer(inside)).keep.tolist() == sorted(
        sorted(paid, key=lambda c: -paid[c])[:count]
    )


def test_sparsevlm_goes_down_in_equal_factors() -> None:
    counts, cells = [], torch.cat([torch.arange(64), torch.tensor([-1, -1])])
    for depth in selector("sparsevlm").depths:
        kept = choice(selector("sparsevlm").at_layer(made_up(8, cells=cells, depth=depth)[0])).keep
        counts.append(len(kept))
        cells = torch.cat([kept, torch.tensor([-1, -1])])
    assert counts == [32, 16, 8]


def test_sparsevlm_without_words_behind_the_picture() -> None:
    inside, _ = made_up(2, cells=torch.tensor([-1, 0, 1, 2, 3]), depth=15 / 32)
    assert len(choice(selector("sparsevlm").at_layer(inside)).keep) == 2


@pytest.mark.parametrize("name", ["fastv", "sparsevlm"])
def test_ties_and_auto(name: str) -> None:
    even = LayerState(
        15 / 32, 2, torch.zeros(22, 4), CELLS, lambda queries: torch.full((2, len(queries), 22), 1 / 22), 3
    )
    assert choice(selector(name).at_layer(even)).keep.tolist() == [0, 1, 2]
    with pytest.raises(SelectorError, match="give a count or a share"):
        selector(name).at_layer(made_up(None)[0])


def recording(name: str) -> tuple[Any, list[tuple[LayerState, torch.Tensor]]]:
    """The selector, and what it saw and kept each time."""
    made, seen = selector(name), []
    choose = made.at_layer

    def at_layer(inside: LayerState) -> Choice:
        chosen = choice(choose(inside))
        seen.append((inside, chosen.keep))
        return chosen

    made.at_layer = at_layer  # type: ignore[method-assign]
    return made, seen


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
@pytest.mark.parametrize("name", ["fastv", "sparsevlm"])
def test_they_keep_what_the_model_s_own_attention_says(family: str, name: str) -> None:
    vlm = wrapped(family, "eager")
    made, seen = recording(name)
    answer = vlm.generate([picture()], "What is it?", budget=9, selector=made, **GREEDY)[0]
    assert answer.tokens["kept"] == 9
    assert not answer.fallback
    inputs = stock_inputs(vlm, "What is it?", [picture()])
    with torch.no_grad():
        dense = vlm.model(**inputs, output_attentions=True)
    inside, first = seen[0]
    attention = dense.attentions[inside.layer - 1][0].mean(0)  # [T, T]
    places = (inputs["input_ids"][0] == tiny.IMAGE).nonzero()[:, 0]
    if name == "fastv":
        paid = attention[-1, places]
    else:
        words = [p for p in range(len(attention)) if p > int(places[0]) and p not in places.tolist()]
        looking = attention[words][:, places]
        paid = looking[looking.sum(1) >= looking.sum(1).mean()].mean(0)
    worth = answer.allocation.relevance
    assert worth is not None
    assert worth.argsort(descending=True)[:9].sort().values.tolist() == answer.allocation.keep.tolist()
    if name == "fastv":
        assert worth.argsort().tolist() == paid.argsort().tolist()
    assert first.tolist() == paid.argsort(descending=True)[: len(first)].sort().values.tolist()
    stages = {}
    for number, (inside, kept) in enumerate(seen):
        assert number + 1 == len(seen) or len(kept) > 9
        stages[inside.layer] = places[~torch.isin(torch.arange(63), kept)]
    assert answer.ids.tolist() == masked_from(vlm, inputs, stages)
