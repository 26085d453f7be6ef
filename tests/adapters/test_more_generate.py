"""Families of the generic adapter as users call them, with their own processors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.errors import PromptError, SelectorError
from tests.adapters.more_families import MORE
from tests.adapters.more_processors import WRAPPED, wrapped
from tests.adapters.tiny_vlm import GREEDY, picture

QUESTION = "What is this?"
PICTURES = [picture(90, 40), picture(50, 77, 1)]
SHORT = GREEDY | {"max_new_tokens": 4}

# Some processors convert what their tokenizer returns in a way that numpy calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
every_family = pytest.mark.parametrize("family", WRAPPED)


def stock_inputs(vlm: Any, pictures: list[Any]) -> dict[str, Any]:
    parts = [{"type": "image"}] * len(pictures)
    chat = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
    text = vlm.processor.apply_chat_template(chat, add_generation_prompt=True)
    by_row = type(vlm.processor).__name__ == "Gemma3Processor"
    given = {"return_mm_token_type_ids": True} if vlm.adapter.core.__class__.__name__ != "ChameleonModel" else {}
    return dict(vlm.processor(text=[text], images=[pictures] if by_row else pictures, return_tensors="pt", **given))


@torch.no_grad()
@every_family
def test_prompt_and_answer_are_the_stock_model_s_own(family: str) -> None:
    vlm = wrapped(family)
    theirs = stock_inputs(vlm, PICTURES)
    ours = vlm.prepare(PICTURES, QUESTION)
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    answer = vlm.ask(PICTURES, QUESTION, **SHORT)
    theirs |= MORE[family].sees(theirs["input_ids"])
    known = {k: v for k, v in theirs.items() if k != "mm_token_type_ids" or "mm_token_type_ids" in MORE[family].sees(v)}
    expected = vlm.model.generate(**known, **SHORT)[0, theirs["input_ids"].shape[1] :]
    assert answer.ids.tolist() == expected.tolist()
    assert len(answer.allocations) == 2
    assert {allocation.semantics for allocation in answer.allocations} == {MORE[family].semantics}


@every_family
def test_a_batch_answers_as_each_question_alone(family: str) -> None:
    vlm = wrapped(family)
    pictures, questions = [PICTURES[:1], [], PICTURES], ["What?", "Who is it?", "Why is it so?"]
    options = SHORT | {"budget": "40%"}
    together = vlm.generate(pictures, questions, **options)
    for answer, images, question in zip(together, pictures, questions, strict=True):
        alone = vlm.generate(images or None, question, **options)[0]
        assert answer.ids.tolist() == alone.ids.tolist()
        assert [a.keep.tolist() for a in answer.allocations] == [a.keep.tolist() for a in alone.allocations]


@every_family
def test_a_budget_boxes_and_a_glance(family: str) -> None:
    vlm = wrapped(family)
    answer = vlm.ask(PICTURES[0], QUESTION, budget=2, max_new_tokens=3)
    assert answer.allocation.boxes.shape == (2, 4)
    assert answer.tokens["kept"] == 2
    if not MORE[family].glances:
        with pytest.raises(SelectorError, match="encodes whole pictures only: leave glance out"):
            vlm.ask(PICTURES[0], QUESTION, glance=3, budget=2, max_new_tokens=3)
        return
    answer = vlm.ask(PICTURES[0], QUESTION, glance=3, budget=2, max_new_tokens=3)
    assert (answer.tokens["encoded"], answer.tokens["kept"]) == (3, 2)


@every_family
def test_a_follow_up_reads_on_from_the_cache(family: str) -> None:
    """The same as reading the whole conversation, with the same cells, from the start."""
    vlm = wrapped(family)
    tokenizer = vlm.processor.tokenizer
    other = [i for i in range(128) if not tokenizer.decode([i]).isalpha()]
    options = SHORT | {"suppress_tokens": other}
    first = vlm.ask(PICTURES[0], "What?", budget=3, remember=True, **options)
    if family == "chameleon":
        with pytest.raises(PromptError, match="the processor ends every prompt with '<sep>'"):
            vlm.ask(None, "And?", after=first, **options)
        return
    second = vlm.ask(None, "And?", after=first, budget=0, **options)
    talk = [
        {"role": "user", "content": [{"type": "image", "image": PICTURES[0]}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": tokenizer.decode(first.ids)}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    whole = vlm.prepare(messages=talk, allocation=first.allocation)
    assert second.ids.tolist() == vlm.generate(whole, **options)[0].ids.tolist()


@every_family
def test_an_answer_can_be_located(family: str) -> None:
    vlm = wrapped(family)
    prepared = vlm.prepare(PICTURES[0], QUESTION, budget="50%")
    (found,) = vlm.point(prepared, vlm.generate(prepared, **SHORT)[0])
    assert found.max() == 1
    assert (found > 0).sum() == prepared.allocations[0].k


@every_family
def test_beams_over_a_ragged_batch(family: str) -> None:
    """A row's beams are those that it has alone."""
    vlm, options = wrapped(family), SHORT | {"num_beams": 2, "budget": "50%"}
    together = vlm.generate([PICTURES[:1], PICTURES], ["What?", "Why is it so?"], **options)
    for answer, images, question in zip(together, [PICTURES[:1], PICTURES], ["What?", "Why is it so?"], strict=True):
        assert answer.ids.tolist() == vlm.generate(images, question, **options)[0].ids.tolist()


def test_selectors_that_a_family_cannot_serve_say_so() -> None:
    vlm = wrapped("glm4v")
    with pytest.raises(SelectorError, match="does not read the vision encoder's attention"):
        vlm.ask(PICTURES[0], QUESTION, budget=2, selector="visionzip")
    with pytest.raises(SelectorError, match="whose layers take fewer tokens for selector 'fastv'"):
        vlm.ask(PICTURES[0], QUESTION, budget=2, selector="fastv")
    if "granite4_vision" not in WRAPPED:
        return
    with pytest.raises(SelectorError, match="reads others than its tokens"):
        wrapped("granite4_vision").ask(PICTURES[0], QUESTION, budget=2, selector="tome")
