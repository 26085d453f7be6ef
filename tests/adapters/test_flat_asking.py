"""Families with one position per token, as users use them: pictures and words in, answers and boxes out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from arr_coc.errors import PromptError, SelectorError
from arr_coc.selectors import Selector, Sight, Smaller
from tests.adapters import tiny_llava_processor
from tests.adapters.tiny_vlm import picture

FAMILIES = tiny_llava_processor.FAMILIES
GLANCING = [family for family in FAMILIES if family not in ("llava_next", "llava_onevision")]

wrapped = lru_cache(tiny_llava_processor.wrapped)


def chat(*pictures: Any, kind: str = "image") -> list[dict[str, Any]]:
    parts = [{"type": kind, kind: one} for one in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}]


def stock_inputs(vlm: Any, talk: Any) -> Any:
    return vlm.processor.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_is_the_processor_s_own(family: str, count: int) -> None:
    vlm = wrapped(family)
    pictures = [picture(90, 40), picture(50, 77, 1)][:count]
    theirs = stock_inputs(vlm, chat(*pictures))
    ours = vlm.prepare(messages=chat(*pictures))
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    assert torch.equal(ours["attention_mask"], theirs["attention_mask"])
    assert len(ours.allocations) == count


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_asking_with_everything_kept_is_the_stock_answer(family: str, count: int) -> None:
    vlm = wrapped(family)
    pictures = [picture(90, 40), picture(50, 77, 1)][:count]
    theirs = stock_inputs(vlm, chat(*pictures))
    expected = vlm.model.generate(**theirs, max_new_tokens=6, do_sample=False, eos_token_id=None)
    answer = vlm.ask(pictures, "What is this?", max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert answer.ids.tolist() == expected[0, theirs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_asking_with_a_budget(family: str) -> None:
    vlm = wrapped(family)
    answer = vlm.ask(picture(90, 40), "What is this?", budget=6, max_new_tokens=4)
    assert answer.tokens["kept"] == 6
    assert answer.allocation.boxes.shape == (6, 4)
    assert answer.prompt_tokens < stock_inputs(vlm, chat(picture(90, 40)))["input_ids"].shape[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_questions_answers_as_each_alone(family: str) -> None:
    vlm = wrapped(family)
    pictures = [[picture(90, 40)], [], [picture(50, 77, 1), picture(64, 64, 2)]]
    questions = ["What?", "Who is it?", "Why is it so?"]
    options = {"budget": "40%", "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    together = vlm.generate(pictures, questions, **options)
    for answer, images, question in zip(together, pictures, questions, strict=True):
        alone = vlm.generate(images or None, question, **options)[0]
        assert answer.ids.tolist() == alone.ids.tolist()
        assert [a.keep.tolist() for a in answer.allocations] == [a.keep.tolist() for a in alone.allocations]


@pytest.mark.parametrize("family", GLANCING)
def test_glance_and_gaze_combine(family: str) -> None:
    answer = wrapped(family).ask(picture(90, 40), "What?", glance=12, budget=6, max_new_tokens=3)
    assert answer.tokens["encoded"] == 12
    assert answer.tokens["kept"] == 6
    assert set(answer.allocation.keep.tolist()) <= set(answer.allocation.encoded.tolist())


@pytest.mark.parametrize("family", ["llava_next", "llava_onevision"])
def test_a_glance_at_whole_pictures_only(family: str) -> None:
    with pytest.raises(SelectorError, match="leave glance out"):
        wrapped(family).ask(picture(90, 40), "What?", glance=12, max_new_tokens=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_look_answers_several_questions_and_is_gone_on_from(family: str) -> None:
    vlm = wrapped(family)
    look = vlm.look(picture(90, 40))
    answers = vlm.ask(look, ["What?", "Where is that?"], budget=5, max_new_tokens=3)
    assert len(answers) == 2
    tokenizer = vlm.processor.tokenizer
    # Only letters, so that what was said reads back as the same tokens.
    other = [i for i in range(vlm.model.config.get_text_config().vocab_size) if not tokenizer.decode([i]).isalpha()]
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "suppress_tokens": other}
    first = vlm.ask(look, "What?", budget=5, remember=True, **options)
    second = vlm.ask(None, "And?", after=first, **options)
    # The same as reading the whole conversation with the same cells from the start.
    said = tokenizer.decode(first.ids)
    user = {"role": "user", "content": [{"type": "image", "image": picture(90, 40)}, {"type": "text", "text": "What?"}]}
    talk = [user, {"role": "assistant", "content": [{"type": "text", "text": said}]},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]}]  # fmt: skip
    whole = vlm.prepare(messages=talk, allocation=first.allocation)
    assert whole["input_ids"][0].tolist() == second.turn.ids[0, : whole.length].tolist()
    assert second.ids.tolist() == vlm.generate(whole, **options)[0].ids.tolist()


@torch.no_grad()
def test_a_video_of_llava_onevision() -> None:
    vlm = wrapped("llava_onevision")
    frames = [picture(60, 40, seed) for seed in range(3)]
    answer = vlm.generate(None, "What?", videos=[frames], budget=5, max_new_tokens=3)[0]
    assert answer.allocation.kind == "video"
    assert str(answer.allocation.grid) == "3 x 2 x 2"
    mixed = vlm.generate([picture(90, 40)], "What?", videos=[frames], budget="50%", max_new_tokens=3)[0]
    assert [a.kind for a in mixed.allocations] == ["image", "video"]
    with pytest.raises(PromptError, match="equally many frames in one batch, got 3, 2"):
        vlm.generate([[], []], ["What?", "Who?"], videos=[[frames], [frames[:2]]], max_new_tokens=3)


@pytest.mark.parametrize("family", ["internvl", "llava"])
def test_a_video_where_only_images_are_read(family: str) -> None:
    with pytest.raises(PromptError, match=r"expected no videos for .*, got some: pass the frames as images"):
        wrapped(family).generate(None, "What?", videos=[[picture(), picture()]])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_processor_s_own_output_is_taken(family: str) -> None:
    vlm = wrapped(family)
    prepared = vlm.prepare(inputs=stock_inputs(vlm, chat(picture(90, 40), picture(50, 77, 1))), budget=4)
    assert [allocation.k for allocation in prepared.allocations] == [4, 4]


def test_a_smaller_picture_saves_nothing_where_the_grid_is_fixed() -> None:
    class Resize(Selector):
        name = "resize"
        early = True

        def before_encoding(self, sight: Sight) -> Smaller:
            return Smaller(sight.count)

    with pytest.raises(SelectorError, match="a smaller one saves nothing"):
        wrapped("llava").ask(picture(90, 40), "What is this?", budget=6, selector=Resize())
