"""Dropping tokens before a layer is masking them from that layer on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.errors import BudgetError, FallbackWarning, SelectorError
from arr_coc.selectors import LayerState, Selector
from tests.adapters.families import QWEN
from tests.adapters.tiny_vlm import FLAT, GREEDY, picture, stock_inputs, wrapped

SAME_ANSWER = ("llava_next", "internvl")  # tiny models that repeat one token, whatever they see


class LastToken(Selector):
    """The cells that the prompt's last token attends to most."""

    name = "last-token"

    def __init__(self, *depths: float) -> None:
        self.depths = depths
        self.seen: list[LayerState] = []

    def at_layer(self, state: LayerState) -> torch.Tensor:
        self.seen.append(state)
        last = torch.tensor([len(state.hidden) - 1])
        paid = state.attention(last).mean((0, 1))  # [T]
        cells = state.cells >= 0
        later = any(depth > state.depth for depth in self.depths)
        count = min(int(cells.sum()), (state.k or 0) * (2 if later else 1))
        best = paid[cells].topk(count).indices
        return state.cells[cells][best].sort().values


def masked_from(vlm: Any, inputs: dict[str, Any], stages: dict[int, torch.Tensor]) -> list[int]:
    """Greedy tokens of the dense model with tokens masked: `stages` maps a layer to the tokens `[P]` masked from there on."""
    dropped: dict[int, set[int]] = {}
    for number in range(len(vlm.adapter.text_model.layers)):
        dropped[number] = set().union(*(set(p.tolist()) for layer, p in stages.items() if layer <= number))

    def hook(number: int) -> Any:
        def change(layer: Any, args: Any, given: dict[str, Any]) -> Any:
            mask, hidden = given["attention_mask"], args[0]
            columns = torch.tensor(sorted(dropped[number]), dtype=torch.long)
            if mask is None:  # one query, no padding
                cached = int(given["past_key_values"].get_seq_length()) + (number == 0)  # the first layer counts
                length = cached if hidden.shape[1] == 1 else hidden.shape[1]
                square = torch.ones(length, length, dtype=torch.bool).tril()
                mask = square[None, None, -hidden.shape[1] :]
            low = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
            return args, given | {"attention_mask": mask.clone().index_fill_(3, columns, low)}

        return change

    handles = [
        layer.register_forward_pre_hook(hook(number), with_kwargs=True)
        for number, layer in enumerate(vlm.adapter.text_model.layers)
        if dropped[number]
    ]
    length = inputs["input_ids"].shape[1]
    made = vlm.model.generate(**inputs, **GREEDY)[0, length:].tolist()
    for handle in handles:
        handle.remove()
    return made


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [*QWEN, *(name for name in FLAT if name not in SAME_ANSWER)])
@pytest.mark.parametrize("depths", [(0.5,), (0.5, 0.75)])
def test_dropping_at_a_layer_is_masking_from_there_on(family: str, attention: str, depths: tuple[float, ...]) -> None:
    vlm = wrapped(family, attention)
    selector = LastToken(*depths)
    answer = vlm.generate([picture()], "What is it?", budget=9, selector=selector, **GREEDY)[0]
    assert answer.tokens["kept"] == 9
    assert answer.allocation.selector == "last-token"
    inputs = stock_inputs(vlm, "What is it?", [picture()])
    (visual,) = vlm.adapter.visuals(inputs)
    stages = {}
    for number, state in enumerate(selector.seen):
        left = selector.seen[number + 1].cells if number + 1 < len(selector.seen) else answer.allocation.keep
        kept = torch.zeros(visual.n, dtype=torch.bool).index_fill_(0, left[left >= 0], True)
        stages[state.layer] = visual.cell_places[~kept]
    assert answer.ids.tolist() == masked_from(vlm, inputs, stages)
    dense = vlm.generate([picture()], "What is it?", **GREEDY)[0]
    assert dense.ids.tolist() != answer.ids.tolist()  # control: dropping changes the answer


@pytest.mark.parametrize("family", [*QWEN, *FLAT])
def test_a_layer_s_attention_is_the_model_s_own(family: str) -> None:
    vlm = wrapped(family, "eager")
    selector = LastToken(0.75)
    vlm.generate([picture()], "What is it?", budget=9, selector=selector, **GREEDY | {"max_new_tokens": 1})
    with torch.no_grad():
        dense = vlm.model(**stock_inputs(vlm, "What is it?", [picture()]), output_attentions=True)
    state = selector.seen[0]
    queries = torch.arange(0, len(state.hidden), 7)

    class Asking(LastToken):
        def at_layer(self, state: LayerState) -> torch.Tensor:
            self.map = state.attention(queries)
            return super().at_layer(state)

    asking = Asking(0.75)
    vlm.generate([picture()], "What is it?", budget=9, selector=asking, **GREEDY | {"max_new_tokens": 1})
    assert (asking.map - dense.attentions[state.layer - 1][0][:, queries]).abs().max() < 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [*QWEN, *FLAT])
def test_rows_and_beams_drop_independently(family: str, attention: str) -> None:
    vlm = wrapped(family, attention)
    rows, texts = [[picture()], [picture(40, 64, 1), picture(32, 32, 2)]], ["What is it?", "Which?"]
    for options in ({}, {"num_beams": 2}):
        together = vlm.generate(rows, texts, budget="20%", selector=LastToken(0.5), **GREEDY | options)
        for number, (images, text) in enumerate(zip(rows, texts, strict=True)):
            alone = vlm.generate(images, text, budget="20%", selector=LastToken(0.5), **GREEDY | options)[0]
            assert together[number].ids.tolist() == alone.ids.tolist()
            assert [a.keep.tolist() for a in together[number].allocations] == [
                a.keep.tolist() for a in alone.allocations
            ]


def test_no_hook_stays(vlm: Any) -> None:
    class Broken(LastToken):
        def at_layer(self, state: LayerState) -> torch.Tensor:
            raise SelectorError("no")

    with pytest.raises(SelectorError):
        vlm.generate([picture()], "What?", budget=9, selector=Broken(0.5), **GREEDY)
    vlm.generate([picture()], "What?", budget=9, selector=LastToken(0.5), **GREEDY)
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())


def test_a_failing_selector_falls_back_and_says_so(vlm: Any) -> None:
    class Failing(LastToken):
        def at_layer(self, state: LayerState) -> torch.Tensor:
            return torch.tensor([0, 0, 1])

    with pytest.warns(FallbackWarning, match="0 comes twice"):
        answer = vlm.generate([picture()], "What?", budget=9, selector=Failing(0.5), **GREEDY)[0]
    assert answer.tokens["kept"] == 9
    assert "0 comes twice" in answer.fallback


def test_what_cannot_be_combined_with_dropping_at_a_layer(vlm: Any) -> None:
    with pytest.raises(SelectorError, match="call generate or ask instead of prepare"):
        vlm.prepare([picture()], "What?", budget=9, selector=LastToken(0.5))
    with pytest.raises(SelectorError, match="dynamic cache"):
        vlm.ask(picture(), "What?", budget=9, selector=LastToken(0.5), cache_implementation="static", **GREEDY)
    with pytest.raises(SelectorError, match="every visual token"):
        vlm.ask(picture(), "What?", budget=9, glance=20, glance_selector="random", selector=LastToken(0.5), **GREEDY)


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"use_cache": False}, SelectorError, "leave use_cache on"),
        ({"prompt_lookup_num_tokens": 3}, SelectorError, "leave prompt_lookup_num_tokens out"),
        ({"budget": "many"}, BudgetError, "got 'many'"),
        ({"budget": [9, 3, 1]}, BudgetError, "each of the 2 pictures, got 3"),
    ],
)
def test_options_that_cannot_be_combined_with_dropping_at_a_layer(
    options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    pictures = [picture(), picture(40, 64, 1)]
    with pytest.raises(error, match=complaint):
        wrapped("qwen2_vl").generate(pictures, "What?", **{"budget": 9, "selector": LastToken(0.5)} | GREEDY | options)


def test_the_budget_is_the_sum_over_the_pictures() -> None:
    vlm, pictures = wrapped("qwen2_vl"), [picture(), picture(40, 64, 1)]
    for options, kept in (({"budget": 9}, 18), ({"budget": [9, 3]}, 12), ({"budget": 20, "shared": True}, 20)):
        answer = vlm.generate(pictures, "What?", selector=LastToken(0.5), **options, **GREEDY)[0]
        assert answer.tokens["kept"] == kept
    clamped = vlm.generate([picture()], "What?", selector=LastToken(0.5), budget=100, **GREEDY)[0]
    assert "more than the 63 there are" in clamped.allocation.notes[0]


def test_sequences_of_one_prompt_keep_the_same_cells() -> None:
    class Chance(Selector):
        name = "chance"
        depths = (0.5,)
        asked = 0

        def at_layer(self, state: LayerState) -> torch.Tensor:
            self.asked += 1
            return torch.randperm(63)[:5].sort().values

    chance = Chance()
    answers = wrapped("qwen2_vl").generate(
        [picture()], "What?", budget=5, selector=chance, num_return_sequences=3, **GREEDY | {"do_sample": True}
    )
    assert chance.asked == 1
    assert len(answers) == 3


@torch.no_grad()
@pytest.mark.parametrize("family", FLAT)
def test_newline_tokens_are_not_cells(family: str) -> None:
    vlm = wrapped(family)
    selector = LastToken(0.5)
    answer = vlm.ask(picture(90, 40), "What?", selector=selector, budget=5, max_new_tokens=4)
    assert answer.tokens["kept"] == 5
    (state,) = selector.seen
    assert state.cells[state.cells >= 0].tolist() == list(range(answer.allocation.n))
