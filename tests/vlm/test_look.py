"""A look is encoded once for many questions; follow-ups continue from the pruned cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from tests.adapters.oracle import masked
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, stock_inputs


def test_a_second_question_uses_the_same_encoding(vlm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    encode = vlm.adapter.encode
    monkeypatch.setattr(vlm.adapter, "encode", lambda *args: calls.append(1) or encode(*args))
    look = vlm.look(picture())
    first = vlm.ask(look, "What is it?", budget="40%", selector="random", seed=1, **GREEDY)
    second = vlm.ask(look, "And this?", budget="20%", selector="random", seed=2, **GREEDY)
    assert len(calls) == 1
    assert first.allocation.keep.tolist() != second.allocation.keep.tolist()
    fresh = vlm.ask(picture(), "And this?", budget="20%", selector="random", seed=2, **GREEDY)
    assert second.ids.tolist() == fresh.ids.tolist()


def test_selectors_that_need_attention_share_one_encoding(vlm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    encode = vlm.adapter.encode
    monkeypatch.setattr(vlm.adapter, "encode", lambda *args: calls.append(args[3]) or encode(*args))

    class Watching(arr_coc.selectors.Selector):
        name = "watching"

        def __init__(self, *depths: float) -> None:
            self.attention_at = depths

        def select(self, selection: Any) -> torch.Tensor:
            paid = sum(selection.attention[depth] for depth in self.attention_at)
            return selection.candidates[paid.topk(selection.count).indices.sort().values]

    look = vlm.look(picture(), attention_at=(0.5, 1.0))
    first = vlm.ask(look, "What?", budget=9, selector=Watching(1.0), **GREEDY)
    vlm.ask(look, "What?", budget=9, selector=Watching(0.5), **GREEDY)
    vlm.ask(look, "What?", budget=9, **GREEDY)
    assert calls == [(0.5, 1.0)]
    fresh = vlm.ask(picture(), "What?", budget=9, selector=Watching(1.0), **GREEDY)
    assert fresh.allocation.keep.tolist() == first.allocation.keep.tolist()


def test_questions_about_one_look_are_one_batch(vlm: Any) -> None:
    look = vlm.look([picture(), picture(40, 64, 1)])
    questions = ["What is it?", "Why?", "Where on the picture does it stand?"]
    together = vlm.ask(look, questions, budget="30%", **GREEDY)
    apart = [vlm.ask(look, question, budget="30%", **GREEDY) for question in questions]
    assert [a.ids.tolist() for a in together] == [a.ids.tolist() for a in apart]


def test_a_follow_up_continues_from_the_pruned_cache(vlm: Any) -> None:
    """Without new cells: equal to the whole conversation read densely with the dropped tokens masked."""
    first = vlm.ask(picture(), "What is it?", budget="30%", remember=True, **GREEDY)
    second = vlm.ask(None, "And why?", after=first, budget=0, **GREEDY)
    third = vlm.ask(None, "Sure?", after=second, **GREEDY)
    ids = stock_inputs(vlm, "What is it?", [picture()])
    keep = [first.allocation.keep]
    for answer, question in ((first, "And why?"), (second, "Sure?")):
        tail = vlm.processor.tokenizer(
            f"<|end|><|user|>{question}<|assistant|>", add_special_tokens=False, return_tensors="pt"
        )
        said = torch.cat([answer.ids[None], tail["input_ids"]], 1)
        ids["input_ids"] = torch.cat([ids["input_ids"], said], 1)
        ids["attention_mask"] = torch.ones_like(ids["input_ids"])
        expected = answer_of(vlm.model, masked(vlm.adapter, ids, keep))
        assert (second if answer is first else third).ids.tolist() == expected
    beams = vlm.ask(None, "Sure?", after=second, num_beams=3, **GREEDY)
    assert beams.ids.tolist() == answer_of(vlm.model, masked(vlm.adapter, ids, keep), num_beams=3)
    assert beams.turn is None


def test_two_follow_ups_may_start_from_one_answer(vlm: Any) -> None:
    first = vlm.ask(picture(), "What is it?", budget="30%", remember=True, **GREEDY)
    again = [vlm.ask(None, "And why?", after=first, **GREEDY).ids.tolist() for _ in range(2)]
    assert again[0] == again[1]


def test_only_a_remembered_answer_can_be_continued(vlm: Any) -> None:
    with pytest.raises(arr_coc.ArrCocError, match="remember=True"):
        vlm.ask(None, "And?", after=vlm.ask(picture(), "What?", **GREEDY))
