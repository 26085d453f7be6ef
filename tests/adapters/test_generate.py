"""Every family as users call it: pictures and questions in, answers and boxes out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.errors import PromptError, SelectorError
from arr_coc.selectors import Downscale, SelectionInput, Selector
from tests.adapters.families import QWEN
from tests.adapters.tiny_vlm import FLAT, GREEDY, build, picture, stock_inputs, wrapped

QUESTION = "What is this?"
PICTURES = [picture(90, 40), picture(50, 77, 1)]
WHOLE_PICTURES = ["llava_next", "llava_onevision"]  # families whose encoder cannot run on some of the cells
GLANCING = [family for family in [*QWEN, *FLAT] if family not in WHOLE_PICTURES]

every_family = pytest.mark.parametrize("family", [*QWEN, *FLAT])


def chat(*pictures: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": one} for one in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


@torch.no_grad()
@every_family
@pytest.mark.parametrize("count", [1, 2])
def test_prompt_and_answer_are_the_stock_model_s_own(family: str, count: int) -> None:
    vlm, pictures = wrapped(family), PICTURES[:count]
    theirs = stock_inputs(vlm, QUESTION, pictures)
    ours = vlm.prepare(messages=chat(*pictures))
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    assert torch.equal(ours["attention_mask"], theirs["attention_mask"])
    assert len(ours.allocations) == count
    expected = vlm.model.generate(**theirs, **GREEDY | {"max_new_tokens": 6})
    answer = vlm.ask(pictures, QUESTION, **GREEDY | {"max_new_tokens": 6})
    assert answer.ids.tolist() == expected[0, theirs["input_ids"].shape[1] :].tolist()


@every_family
def test_asking_with_a_budget(family: str) -> None:
    vlm = wrapped(family)
    answer = vlm.ask(PICTURES[0], QUESTION, budget=6, max_new_tokens=4)
    assert answer.tokens["kept"] == 6
    assert answer.allocation.boxes.shape == (6, 4)
    assert answer.prompt_tokens < stock_inputs(vlm, QUESTION, PICTURES[:1])["input_ids"].shape[1]


@every_family
def test_a_batch_answers_as_each_question_alone(family: str) -> None:
    vlm = wrapped(family)
    pictures = [[picture(90, 40)], [], [picture(50, 77, 1), picture(64, 64, 2)]]
    questions = ["What?", "Who is it?", "Why is it so?"]
    options = GREEDY | {"budget": "40%", "max_new_tokens": 5}
    together = vlm.generate(pictures, questions, **options)
    for answer, images, question in zip(together, pictures, questions, strict=True):
        alone = vlm.generate(images or None, question, **options)[0]
        assert answer.ids.tolist() == alone.ids.tolist()
        assert [a.keep.tolist() for a in answer.allocations] == [a.keep.tolist() for a in alone.allocations]


@every_family
def test_a_batch_may_begin_with_text_alone(family: str) -> None:
    vlm, options = wrapped(family), GREEDY | {"max_new_tokens": 4, "budget": "50%"}
    together = vlm.generate([[], PICTURES[:1]], ["Hello", "What?"], **options)
    assert together[1].ids.tolist() == vlm.generate(PICTURES[:1], "What?", **options)[0].ids.tolist()


@pytest.mark.parametrize("family", GLANCING)
def test_glance_and_gaze_combine(family: str) -> None:
    answer = wrapped(family).ask(PICTURES[0], "What?", glance=12, budget=6, max_new_tokens=3)
    assert answer.tokens["encoded"] == 12
    assert answer.tokens["kept"] == 6
    assert set(answer.allocation.keep.tolist()) <= set(answer.allocation.encoded.tolist())


@pytest.mark.parametrize("family", WHOLE_PICTURES)
def test_no_glance_where_whole_pictures_are_encoded(family: str) -> None:
    with pytest.raises(SelectorError, match="leave glance out"):
        wrapped(family).ask(PICTURES[0], "What?", glance=12, max_new_tokens=3)


@every_family
def test_a_look_answers_several_questions_and_follow_ups(family: str) -> None:
    vlm = wrapped(family)
    look = vlm.look(PICTURES[0])
    assert len(vlm.ask(look, ["What?", "Where is that?"], budget=5, max_new_tokens=3)) == 2
    tokenizer = vlm.processor.tokenizer
    # Only letters, so that the answer's text has the same tokens again.
    other = [i for i in range(vlm.model.config.get_text_config().vocab_size) if not tokenizer.decode([i]).isalpha()]
    options = GREEDY | {"max_new_tokens": 6, "suppress_tokens": other}
    first = vlm.ask(look, "What?", budget=5, remember=True, **options)
    second = vlm.ask(None, "And?", after=first, budget=0, **options)
    # The same as reading the whole conversation, with the same cells, from the start.
    user = {"role": "user", "content": [{"type": "image", "image": PICTURES[0]}, {"type": "text", "text": "What?"}]}
    talk = [
        user,
        {"role": "assistant", "content": [{"type": "text", "text": tokenizer.decode(first.ids)}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    whole = vlm.prepare(messages=talk, allocation=first.allocation)
    assert whole["input_ids"][0].tolist() == second.turn.ids[0, : whole.length].tolist()
    assert second.ids.tolist() == vlm.generate(whole, **options)[0].ids.tolist()


@every_family
def test_a_processor_s_own_output_can_be_prepared(family: str) -> None:
    vlm = wrapped(family)
    prepared = vlm.prepare(inputs=stock_inputs(vlm, QUESTION, PICTURES), budget=4)
    assert [allocation.k for allocation in prepared.allocations] == [4, 4]


@torch.no_grad()
def test_a_video_of_llava_onevision() -> None:
    vlm = wrapped("llava_onevision")
    frames = [picture(60, 40, seed) for seed in range(3)]
    answer = vlm.generate(None, "What?", videos=[frames], budget=5, max_new_tokens=3)[0]
    assert answer.allocation.kind == "video"
    assert str(answer.allocation.grid) == "3 x 2 x 2"
    mixed = vlm.generate(PICTURES[:1], "What?", videos=[frames], budget="50%", max_new_tokens=3)[0]
    assert [a.kind for a in mixed.allocations] == ["image", "video"]
    with pytest.raises(PromptError, match="equally many frames in one batch, got 3, 2"):
        vlm.generate([[], []], ["What?", "Who?"], videos=[[frames], [frames[:2]]], max_new_tokens=3)


@pytest.mark.parametrize("family", ["internvl", "llava"])
def test_a_video_where_only_images_are_read(family: str) -> None:
    with pytest.raises(PromptError, match=r"expected no videos for .*, got some: pass the frames as images"):
        wrapped(family).generate(None, "What?", videos=[[picture(), picture()]])


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision"])
def test_a_video_without_a_video_processor(family: str) -> None:
    vlm = build(family)
    vlm.processor.video_processor = None
    with pytest.raises(PromptError, match=r"expected a processor with a video processor for videos, got a .* without"):
        vlm.ask(None, "What?", videos=[[picture(), picture()]])


def test_a_smaller_picture_saves_nothing_where_the_grid_is_fixed() -> None:
    class Resize(Selector):
        name = "resize"
        early = True

        def before_encoding(self, selection: SelectionInput) -> Downscale:
            return Downscale(selection.count)

    with pytest.raises(SelectorError, match="a smaller one saves nothing"):
        wrapped("llava").ask(PICTURES[0], QUESTION, budget=6, selector=Resize())
