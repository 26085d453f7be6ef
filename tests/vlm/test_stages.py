"""Glance, encode, gaze: selectors as functions, downscaling, merging, failing selectors, given allocations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import AllocationError, BudgetError, FallbackWarning, SelectorError
from arr_coc.selectors import Choice, Downscale, SelectionInput, Selector
from arr_coc.selectors.controls import even_cells
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, stock_inputs, wrapped


def test_a_function_is_a_selector(vlm: Any) -> None:
    seen: list[SelectionInput] = []

    def darkest(selection: SelectionInput) -> torch.Tensor:
        seen.append(selection)
        light = selection.texture.grid(selection.grid.h, selection.grid.w)[:3].mean(0).flatten()
        return light[selection.candidates].argsort()[: selection.count].sort().values

    answer = vlm.ask(picture(), "What is it?", budget=9, selector=darkest, **GREEDY)
    assert answer.allocation.selector == "darkest"
    assert "texture" in answer.timings
    selection = seen[0]
    assert selection.tokens is not None
    assert selection.tokens.shape == (63, 32)
    assert selection.question.text == "What is it?"
    assert selection.question.embeddings.shape == (len("What is it?"), 32)


def test_a_selector_glances_at_pixels_and_words_alone(vlm: Any) -> None:
    stages: list[SelectionInput] = []

    def first(selection: SelectionInput) -> torch.Tensor:
        stages.append(selection)
        return selection.candidates[: selection.count]

    answer = vlm.ask(picture(), "What is it?", budget=9, glance=20, selector=first, **GREEDY)
    glance, gaze = stages
    assert glance.tokens is None
    assert glance.k == 20
    assert len(glance.candidates) == 63
    assert gaze.tokens is not None
    assert gaze.k == 9
    assert gaze.candidates.tolist() == list(range(20))
    assert answer.allocation.encoded.tolist() == list(range(20))


def test_glance_and_gaze_may_have_different_selectors(vlm: Any) -> None:
    answer = vlm.ask(
        picture(), "What?", budget=4, glance=20, selector="uniform", glance_selector="random", seed=3, **GREEDY
    )
    dice = torch.randperm(63, generator=torch.Generator().manual_seed(3))[:20].sort().values
    assert answer.allocation.encoded.tolist() == dice.tolist()


def test_merged_features_replace_the_encoder_s(vlm: Any) -> None:
    def merge(selection: SelectionInput) -> Choice:
        assert selection.tokens is not None
        keep = selection.candidates[:: len(selection.candidates) // 9][:9]
        groups = selection.tokens[: 9 * 7].view(9, 7, -1).mean(1)
        return Choice(keep, features=groups)

    prepared = vlm.prepare([picture()], "What?", budget=9, selector=merge)
    plain = vlm.prepare([picture()], "What?", allocation=prepared.allocations[0])
    merged, own = (p["mm_encoder_outputs"]["image"].pooler_output[0] for p in (prepared, plain))
    whole = vlm.prepare([picture()], "What?")["mm_encoder_outputs"]["image"].pooler_output[0]
    assert torch.equal(merged, whole[:63].view(9, 7, -1).mean(1))
    assert not torch.equal(merged, own)


class Resize(Selector):
    name = "resize"
    early = True

    def before_encoding(self, selection: SelectionInput) -> Downscale:
        return Downscale(selection.count)


def test_a_smaller_picture_is_the_stock_model_on_it(vlm: Any) -> None:
    answer = vlm.ask(picture(), "What is it?", budget="25%", selector=Resize(), **GREEDY)
    small = picture().resize((36, 28), 3)
    assert answer.ids.tolist() == answer_of(vlm.model, stock_inputs(vlm, "What is it?", [small]))
    assert answer.tokens["kept"] == answer.allocation.n < 63
    assert answer.allocation.size == (72, 56)  # boxes are on the original


def test_a_downscaled_image_never_exceeds_the_budget() -> None:
    vlm = wrapped("qwen2_vl")
    for budget in (40, 30, 23, 17, 11, 9, 6, 5, 4):
        answer = vlm.ask(picture(), "What?", budget=budget, selector=Resize(), **GREEDY)
        assert 0 < answer.tokens["kept"] <= budget
    least = vlm.ask(picture(), "What?", budget=2, selector=Resize(), **GREEDY)  # the processor's own limit is 4 cells
    assert "more than the 2 asked for" in least.allocation.notes[0]


def bad_index(selection: SelectionInput) -> torch.Tensor:
    return torch.tensor([0, 63])


def unsorted(selection: SelectionInput) -> torch.Tensor:
    return torch.tensor([5, 3])


def repeated(selection: SelectionInput) -> torch.Tensor:
    return torch.tensor([3, 3])


def too_many(selection: SelectionInput) -> torch.Tensor:
    return selection.candidates


def raising(selection: SelectionInput) -> torch.Tensor:
    raise RuntimeError("out of cheese")


def not_a_number(selection: SelectionInput) -> Choice:
    return Choice(selection.candidates[:9], relevance=torch.full((63,), torch.nan))


@pytest.mark.parametrize(
    ("selector", "complaint"),
    [
        (bad_index, "got 63"),
        (unsorted, "3 follows 5"),
        (repeated, "3 comes twice"),
        (too_many, "at most 9 cells"),
        (raising, "out of cheese"),
        (not_a_number, "NaN"),
    ],
)
def test_a_failing_selector_falls_back_to_the_uniform_grid(selector: Any, complaint: str) -> None:
    vlm = wrapped("qwen2_vl")
    with pytest.warns(FallbackWarning, match=complaint):
        answer = vlm.ask(picture(), "What?", budget=9, selector=selector, **GREEDY)
    assert complaint in answer.fallback
    assert complaint in answer.to_dict()["fallback"]
    assert answer.allocation.keep.tolist() == even_cells(answer.allocation.grid, 9).tolist()


def test_under_auto_a_failing_selector_keeps_everything() -> None:
    vlm = wrapped("qwen2_vl")
    with pytest.warns(FallbackWarning, match="every cell is kept"):
        answer = vlm.ask(picture(), "What?", budget="auto", selector=raising, **GREEDY)
    assert answer.tokens["kept"] == 63


def test_a_failing_glance_falls_back_within_the_encoded_share() -> None:
    vlm = wrapped("qwen2_vl")
    with pytest.warns(FallbackWarning, match="out of cheese"):
        answer = vlm.ask(picture(), "What?", budget=5, glance=20, glance_selector=raising, **GREEDY)
    assert answer.tokens == {"all": 63, "encoded": 20, "kept": 5}
    assert "out of cheese" in answer.fallback


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"budget": -1}, BudgetError, "got -1"),
        ({"budget": "many"}, BudgetError, "got 'many'"),
        ({"budget": 0.25}, BudgetError, "whole, so write"),
        ({"budget": "120%"}, BudgetError, "between 0% and 100%"),
        ({"budget": [1, 2]}, BudgetError, "each of the 1 pictures, got 2"),
        ({"budget": "auto", "selector": "uniform"}, SelectorError, "give a count or a share"),
        ({"selector": "divine"}, SelectorError, "got 'divine'; did you mean 'divprune'"),
        ({"selector": 3}, SelectorError, "got 3"),
        ({"allocation": [3, 1]}, AllocationError, "1 follows 3"),
        ({"allocation": [3, 3]}, AllocationError, "3 comes twice"),
        ({"allocation": [63]}, AllocationError, "between 0 and 62"),
        ({"allocation": torch.ones(10, dtype=torch.bool)}, AllocationError, "63 cells"),
        ({"allocation": [0.5]}, AllocationError, "whole numbers"),
        ({"glance": "some"}, BudgetError, "glance"),
    ],
)
def test_bad_requests_are_one_sentence(options: dict[str, Any], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint) as caught:
        wrapped("qwen2_vl").prepare([picture()], "What?", **options)
    assert "\n" not in str(caught.value)


def test_an_allocation_for_another_grid_is_refused() -> None:
    vlm = wrapped("qwen2_vl")
    other = vlm.prepare([picture(40, 64)], "What?", budget=4).allocations[0]
    with pytest.raises(AllocationError, match="grid of 1 x 8 x 5 cells, but the picture has 1 x 7 x 9"):
        vlm.prepare([picture()], "What?", allocation=other)


def test_an_allocation_can_be_used_again(vlm: Any) -> None:
    first = vlm.ask(picture(), "What?", budget=9, glance=20, **GREEDY)
    again = vlm.ask(picture(), "What?", allocation=first.allocation, **GREEDY)
    assert again.ids.tolist() == first.ids.tolist()
    assert again.tokens == first.tokens
    assert again.allocation.selector == "given"


def test_a_budget_above_the_encoded_cells_is_noted(vlm: Any) -> None:
    answer = vlm.ask(picture(), "What?", budget=30, glance=20, **GREEDY)
    assert answer.tokens == {"all": 63, "encoded": 20, "kept": 20}
    assert "more than the 20 encoded ones" in answer.allocation.notes[0]


def test_a_selector_that_cannot_glance_says_so() -> None:
    class Gazer(Selector):
        name = "gazer"

        def select(self, selection: SelectionInput) -> torch.Tensor:
            return selection.candidates[: selection.count]

    with pytest.raises(SelectorError, match="cannot glance: name another with glance_selector"):
        wrapped("qwen2_vl").prepare([picture()], "What?", budget=5, glance=20, selector=Gazer())


def test_register_makes_a_selector_known_by_name() -> None:
    class Mine(Selector):
        name = "mine"

        def select(self, selection: SelectionInput) -> torch.Tensor:
            return selection.candidates[: selection.count]

    arr_coc.selectors.register(Mine, "mine")
    try:
        assert wrapped("qwen2_vl").prepare([picture()], "What?", budget=5, selector="mine").allocations[0].k == 5
        with pytest.raises(SelectorError, match="exists already"):
            arr_coc.selectors.register(Mine, "mine")
    finally:
        arr_coc.selectors.registry._KNOWN.pop("mine")
