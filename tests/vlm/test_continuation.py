"""The prefill continues where a probe stopped: exact against masking, each layer runs once, and where it cannot, it does not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from arr_coc.errors import FallbackWarning, SelectorError
from arr_coc.relevance.selector import Untrained
from arr_coc.selectors import Choice, SelectionInput, Selector
from tests.adapters.families import QWEN
from tests.adapters.test_layer_pruning import SAME_ANSWER, masked_from
from tests.adapters.tiny_vlm import FLAT, GREEDY, build, picture, stock_inputs, wrapped

DEPTHS = (0.5, 0.75)
COUNT = 6


class Probing(Selector):
    """Probes every `every`th cell, and keeps those that get the most attention."""

    name = "probing"

    def __init__(self, every: int = 2, continues: bool = True) -> None:
        self.every, self.continues = every, continues
        self.probed: list[torch.Tensor] = []
        self.found: list[torch.Tensor] = []

    def select(self, selection: SelectionInput) -> torch.Tensor:
        cells = selection.candidates[:: self.every]
        self.probed.append(cells)
        attention = selection.probe_attention(cells, DEPTHS)
        self.found.append(attention)
        return cells[attention.topk(selection.count).indices.sort().values]


def prefill_calls(vlm: Any, ask: Any) -> tuple[Any, list[int]]:
    """What `ask` returns, and how many language layers ran a whole prompt how often: calls of each layer."""
    calls: Counter[int] = Counter()

    def hook(number: int) -> Any:
        def count(layer: Any, args: Any, given: Any) -> None:
            hidden = args[0] if args else given["hidden_states"]
            calls[number] += hidden.shape[1] > 1

        return count

    layers = vlm.adapter.text_model.layers
    handles = [
        layer.register_forward_pre_hook(hook(number), with_kwargs=True, prepend=True)
        for number, layer in enumerate(layers)
    ]
    try:
        return ask(), [calls[number] for number in range(len(layers))]
    finally:
        for handle in handles:
            handle.remove()


def oracle(vlm: Any, image: Any, question: str, probed: torch.Tensor, keep: torch.Tensor, layer: int) -> list[int]:
    """The dense model with the cells that were not probed masked at every layer, the dropped ones from `layer` on."""
    inputs = stock_inputs(vlm, question, [image])
    (visual,) = vlm.adapter.visuals(inputs)
    every = torch.arange(visual.n)
    unread, dropped = every[~torch.isin(every, probed)], every[~torch.isin(every, keep)]
    return masked_from(vlm, inputs, {0: visual.cell_places[unread], layer: visual.cell_places[dropped]})


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("family", [*QWEN, *(name for name in FLAT if name not in SAME_ANSWER)])
def test_later_layers_read_the_kept_cells_and_earlier_ones_all_probed_cells(
    family: str, every: int, attention: str
) -> None:
    vlm, chosen = wrapped(family, attention), Probing(every)
    layer = round(DEPTHS[-1] * len(vlm.adapter.text_model.layers))
    answer = vlm.ask(picture(), "What is it?", budget=COUNT, selector=chosen, **GREEDY)
    allocation = answer.allocation
    assert allocation.k == COUNT
    assert not answer.fallback
    assert allocation.strategy.endswith(f"{layer}")
    assert torch.isin(allocation.keep, chosen.probed[0]).all()
    assert answer.ids.tolist() == oracle(vlm, picture(), "What is it?", chosen.probed[0], allocation.keep, layer)
    separate = Probing(every, continues=False)
    again = vlm.ask(picture(), "What is it?", budget=COUNT, selector=separate, **GREEDY)
    assert torch.allclose(chosen.found[0], separate.found[0], atol=1e-5)  # the attention that a separate probe reads
    assert again.allocation.keep.tolist() == allocation.keep.tolist()


def test_masking_the_dropped_cells_everywhere_is_another_answer() -> None:
    vlm, chosen = wrapped("qwen2_vl"), Probing(1)
    answer = vlm.ask(picture(), "What is it?", budget=COUNT, selector=chosen, **GREEDY)
    keep, probed = answer.allocation.keep, chosen.probed[0]
    assert answer.ids.tolist() != oracle(vlm, picture(), "What is it?", probed, keep, 0)  # control: the oracle can fail


def test_every_layer_reads_the_prompt_once() -> None:
    vlm = wrapped("qwen2_vl")
    layers = len(vlm.adapter.text_model.layers)
    options = {"budget": COUNT, **GREEDY}
    answer, calls = prefill_calls(vlm, lambda: vlm.ask(picture(), "What?", selector=Probing(2), **options))
    assert calls == [1] * layers
    assert "probe" not in answer.timings
    last = round(DEPTHS[-1] * layers)
    assert answer.allocation.read == pytest.approx((32 * last + COUNT * (layers - last)) / layers)
    separate, calls = prefill_calls(
        vlm, lambda: vlm.ask(picture(), "What?", selector=Probing(2, continues=False), **options)
    )
    assert max(calls) == 2
    assert "probe" in separate.timings


def test_rows_of_a_batch_and_questions_about_one_look_equal_single_answers() -> None:
    vlm = wrapped("qwen2_vl")
    images, questions = [picture(), picture(56, 40, 1)], ["What is it?", "And the other one, what is that?"]
    batch = vlm.generate([[image] for image in images], questions, budget="15%", selector=Probing(2), **GREEDY)
    for answer, image, question in zip(batch, images, questions, strict=True):
        alone = vlm.ask(image, question, budget="15%", selector=Probing(2), **GREEDY)
        assert answer.ids.tolist() == alone.ids.tolist()
        assert answer.allocation.keep.tolist() == alone.allocation.keep.tolist()
        assert answer.allocation.read == pytest.approx(alone.allocation.read)
    several = vlm.ask(images[0], questions, budget="15%", selector=Probing(2), **GREEDY)
    singles = [vlm.ask(images[0], question, budget="15%", selector=Probing(2), **GREEDY) for question in questions]
    assert [one.ids.tolist() for one in several] == [one.ids.tolist() for one in singles]


def test_a_row_that_needs_no_probe_keeps_what_was_chosen_before() -> None:
    class Sometimes(Probing):
        def select(self, selection: SelectionInput) -> Any:
            if selection.question.text == "Skip":
                return Choice(selection.candidates[: selection.count], strategy="the first ones")
            return super().select(selection)

    vlm = wrapped("qwen2_vl")
    both = vlm.generate([[picture()], [picture()]], ["Skip", "What?"], budget=COUNT, selector=Sometimes(2), **GREEDY)
    assert both[0].allocation.keep.tolist() == list(range(COUNT))
    assert both[0].allocation.strategy == "the first ones"
    assert both[0].allocation.read is None
    assert both[1].allocation.read is not None
    for question, answer in zip(["Skip", "What?"], both, strict=True):
        alone = vlm.ask(picture(), question, budget=COUNT, selector=Sometimes(2), **GREEDY)
        assert alone.ids.tolist() == answer.ids.tolist()


def test_beams_start_from_the_continued_prefill() -> None:
    vlm = wrapped("qwen2_vl")
    answer = vlm.ask(picture(), "What?", budget=COUNT, selector=Probing(2), num_beams=2, max_new_tokens=4)
    assert answer.allocation.k == COUNT
    assert "probe" not in answer.timings


@pytest.mark.parametrize(
    "changed",
    [
        {"remember": True},
        {"cache_implementation": "static"},
        {"prompt_lookup_num_tokens": 2},
        {"budget": 40},  # more than are probed
    ],
    ids=str,
)
def test_where_the_prefill_cannot_continue_the_probe_runs_separately(changed: dict[str, Any]) -> None:
    vlm = wrapped("qwen2_vl")
    options = {"budget": COUNT, "do_sample": False, "max_new_tokens": 4, **changed}
    if changed.get("budget") == 40:
        with pytest.warns(FallbackWarning):  # this selector cannot keep more than it probed
            answer = vlm.ask(picture(), "What?", selector=Probing(2), **options)
    else:
        answer = vlm.ask(picture(), "What?", selector=Probing(2), **options)
        assert answer.allocation.k == COUNT
    assert "probe" in answer.timings


def test_several_images_in_a_row_and_prepared_prompts_are_probed_separately() -> None:
    vlm = wrapped("qwen2_vl")
    two = vlm.ask([picture(), picture(40, 64, 1)], "Which?", budget=COUNT, selector=Probing(2), **GREEDY)
    assert [allocation.k for allocation in two.allocations] == [COUNT, COUNT]
    assert "probe" in two.timings
    prepared = vlm.prepare([picture()], "Which?", budget=COUNT, selector=Probing(2))
    assert prepared.allocations[0].k == COUNT
    assert "probe" in prepared.timings


def test_a_selector_that_fails_inside_keeps_evenly_spaced_probed_cells() -> None:
    class Failing(Probing):
        def select(self, selection: SelectionInput) -> torch.Tensor:
            super().select(selection)
            raise RuntimeError("out of cheese")

    vlm, chosen = wrapped("qwen2_vl"), Failing(2)
    with pytest.warns(FallbackWarning, match="out of cheese"):
        answer = vlm.ask(picture(), "What?", budget=COUNT, selector=chosen, **GREEDY)
    assert answer.allocation.k == COUNT
    assert "out of cheese" in answer.fallback
    assert torch.isin(answer.allocation.keep, chosen.probed[0]).all()


def test_a_selector_that_probes_other_cells_the_second_time_is_refused() -> None:
    class Wavering(Probing):
        def select(self, selection: SelectionInput) -> torch.Tensor:
            self.every += 1
            return super().select(selection)

    with pytest.raises(Exception, match="is not deterministic"):
        wrapped("qwen2_vl").ask(picture(), "What?", budget=COUNT, selector=Wavering(1), **GREEDY)


def test_arr_coc_keeps_the_same_cells_either_way() -> None:
    vlm = build("qwen2_vl")
    for budget in (5, COUNT, "25%"):
        separate = vlm.ask(picture(), "What is it?", budget=budget, selector=Untrained(continues=False), **GREEDY)
        once = vlm.ask(picture(), "What is it?", budget=budget, selector=Untrained(continues=True), **GREEDY)
        assert "probe" in separate.timings
        assert "probe" not in once.timings
        assert once.allocation.keep.tolist() == separate.allocation.keep.tolist()
        assert once.allocation.strategy.startswith(separate.allocation.strategy)
        assert set(once.allocation.scores) == set(separate.allocation.scores)
        assert once.allocation.tensions["trust"] == pytest.approx(separate.allocation.tensions["trust"], abs=1e-3)


def test_arr_coc_can_continue_on_small_pages_only() -> None:
    """There the probe reads every cell: to run its layers again would make the answer slower than one from all tokens."""
    with pytest.raises(SelectorError, match="expected continues as True, False or 'small', got 'large'"):
        Untrained(continues="large")
    vlm, chosen = build("qwen2_vl"), Untrained(continues="small")
    small = vlm.ask(picture(), "What is it?", budget="25%", selector=chosen, **GREEDY)
    chosen.continues_up_to = small.allocation.n - 1
    large = vlm.ask(picture(), "What is it?", budget="25%", selector=chosen, **GREEDY)
    assert ("probe" in small.timings, "probe" in large.timings) == (False, True)
    assert small.allocation.keep.tolist() == large.allocation.keep.tolist()
