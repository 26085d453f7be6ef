"""Requests: arguments that do not fit together, and edge cases of the path of an answer."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import arr_coc
from arr_coc.errors import AllocationError, BudgetError, FallbackWarning, ModelError, PromptError, SelectorError
from arr_coc.selectors import Choice, Downscale, SelectionInput, Selector
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import GREEDY, picture, wrapped


class Shrinking(Selector):
    name = "shrinking"

    def __init__(self, cells: Any = None, early: bool = False) -> None:
        self.cells, self.early = cells, early

    def before_encoding(self, selection: SelectionInput) -> Downscale:
        return Downscale(selection.count if self.cells is None else self.cells)


def test_a_glance_at_a_smaller_picture_still_keeps_the_budget() -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What?", budget=4, glance="50%", glance_selector=Shrinking(), **GREEDY)
    assert answer.tokens["kept"] == 4 < answer.tokens["encoded"] <= 32


def test_a_smaller_picture_above_the_budget_is_a_failure() -> None:
    vlm = wrapped("qwen2_vl")
    for cells in (40, "x", 0):
        with pytest.warns(FallbackWarning, match="a smaller picture of 1 to 5 cells"):
            answer = vlm.ask(picture(), "What?", budget=5, selector=Shrinking(cells, early=True), **GREEDY)
        assert answer.tokens["kept"] <= 5


@pytest.mark.parametrize("family", ["llava", "internvl", "idefics3"])
def test_a_processor_of_another_family_is_refused(family: str) -> None:
    with pytest.raises(ModelError, match="expected the Qwen2VLProcessor of this model"):
        arr_coc.wrap(families.model("qwen2_vl"), tiny_vlm.wrapped(family).processor)


def test_a_processor_with_other_token_numbers_is_refused() -> None:
    model = families.model("qwen2_vl")
    model.config.image_token_id = 99
    with pytest.raises(ModelError, match="whose image token is number 99"):
        arr_coc.wrap(model, tiny_vlm.processor("qwen2_vl"))


def test_frames_a_second_reach_every_way_of_asking() -> None:
    vlm = wrapped("qwen2_5_vl")
    frames = [picture(48, 40, i) for i in range(4)]
    slow, fast = (vlm.prepare(None, "What?", videos=[frames], fps=fps)["position_ids"] for fps in (1, 8))
    assert not torch.equal(slow, fast)
    by_look = vlm.prepare(look=vlm.look(videos=[frames], fps=8), text="What?")["position_ids"]
    assert torch.equal(by_look, fast)
    several = vlm.ask(None, ["What?"], videos=[frames], fps=8, **GREEDY)[0]
    assert several.ids.tolist() == vlm.ask(None, "What?", videos=[frames], fps=8, **GREEDY).ids.tolist()


def test_a_look_belongs_to_its_model() -> None:
    look = wrapped("qwen2_vl").look(picture())
    other = arr_coc.wrap(families.model("qwen2_vl", seed=1), tiny_vlm.processor("qwen2_vl"))
    with pytest.raises(PromptError, match="another model"):
        other.ask(look, "What?")
    again = arr_coc.wrap(wrapped("qwen2_vl").model, other.processor)
    assert again.ask(look, "What?", **GREEDY).text  # the same model, wrapped twice


def test_a_look_encodes_again_when_the_model_changes_or_gradients_are_wanted() -> None:
    vlm = arr_coc.wrap(families.model("qwen2_vl"), tiny_vlm.processor("qwen2_vl"))
    look = vlm.look(picture())
    vlm.ask(look, "What?", **GREEDY)
    features = vlm.prepare(look=look, text="What?", gradients=True)["mm_encoder_outputs"]["image"].pooler_output[0]
    assert features.requires_grad
    assert not vlm.prepare(look=look, text="What?")["mm_encoder_outputs"]["image"].pooler_output[0].requires_grad
    vlm.model.to(torch.bfloat16)
    assert vlm.prepare(look=look, text="What?")["mm_encoder_outputs"]["image"].pooler_output[0].dtype == torch.bfloat16


def test_looks_and_wrapped_models_can_be_copied() -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    source = pickle.loads(pickle.dumps(look.images[0][0]))
    assert source.texture()["red"].shape == (56, 72)
    twin = copy.deepcopy(vlm)
    assert twin.ask(picture(), "What?", **GREEDY).ids.tolist() == vlm.ask(look, "What?", **GREEDY).ids.tolist()


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"allocation": [1, 2], "budget": 3}, AllocationError, "leave budget and glance out"),
        ({"allocation": [1, 2], "glance": 3}, AllocationError, "leave budget and glance out"),
        ({"selector": Shrinking(early=True), "budget": 5, "glance": 9}, SelectorError, "leave glance out"),
        ({"budget": [5], "shared": True}, BudgetError, "got a list"),
        ({"allocation": 5}, AllocationError, "expected cells or a list"),
    ],
)
def test_contradicting_arguments_are_refused(options: dict[str, Any], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        wrapped("qwen2_vl").prepare([picture()], "What?", **options)


def test_a_look_with_separate_images_is_refused() -> None:
    vlm = wrapped("qwen2_vl")
    with pytest.raises(PromptError, match="a look holds its pictures"):
        vlm.prepare([picture()], "What?", look=vlm.look(picture()))


def test_an_allocation_may_be_an_array_or_know_less_of_the_picture() -> None:
    vlm = wrapped("qwen2_vl")
    assert vlm.prepare([picture()], "What?", allocation=[np.array([1, 5])]).allocations[0].keep.tolist() == [1, 5]
    llava = tiny_vlm.wrapped("llava")
    shown = llava.prepare([picture(90, 40)], "What?", budget=4, selector="uniform")
    bare = llava.prepare(inputs=llava.look(picture(90, 40)).vision.tensors | dict(
        zip(("input_ids", "attention_mask"), _prompt(llava), strict=True)
    ), budget=4, selector="uniform")  # fmt: skip
    again = llava.prepare([picture(90, 40)], "What?", allocation=bare.allocations[0])
    assert again.allocations[0].keep.tolist() == shown.allocations[0].keep.tolist()


def _prompt(vlm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    whole = vlm.prepare([picture(90, 40)], "What?")
    return whole["input_ids"], whole["attention_mask"]


def test_a_clamped_glance_is_noted() -> None:
    found = wrapped("qwen2_vl").prepare([picture()], "What?", glance=100).allocations[0]
    assert "glance of 100 cells is more than the 63" in found.notes[0]


def test_merged_features_carry_gradients_when_asked_for() -> None:
    def merge(selection: SelectionInput) -> Choice:
        assert selection.tokens is not None
        return Choice(selection.candidates[:9], features=selection.tokens.view(9, 7, -1).mean(1))

    prepared = wrapped("qwen2_vl").prepare([picture()], "What?", budget=9, selector=merge, gradients=True)
    assert prepared["mm_encoder_outputs"]["image"].pooler_output[0].requires_grad


def test_an_end_token_of_a_generation_config_ends_the_answer() -> None:
    vlm = wrapped("qwen2_vl")
    plain = vlm.ask(picture(), "What?", **GREEDY)
    stop = int(plain.ids[2])
    config = GenerationConfig(eos_token_id=stop, max_new_tokens=12, do_sample=False, pad_token_id=0)
    ended = vlm.ask(picture(), "What?", generation_config=config)
    assert ended.ids.tolist() == plain.ids[: plain.ids.tolist().index(stop)].tolist()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences=2"),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"raw": True, "question": "<|image_pad|>What?"}, "raw prompts have no turns"),
    ],
)
def test_what_cannot_be_remembered(options: dict[str, Any], complaint: str) -> None:
    options = dict(options)
    question = options.pop("question", "What?")
    with pytest.raises(PromptError, match=complaint):
        wrapped("qwen2_vl").ask(picture(), question, remember=True, **GREEDY | options)


SETTINGS = [
    ({"num_beams": 2}, "num_beams=2", None),
    ({"num_return_sequences": 2}, "num_return_sequences=2", "num_return_sequences=1, got 2"),
    ({"use_cache": False}, "use_cache=False", "use_cache=True, got False"),
    (
        {"cache_implementation": "static"},
        "cache_implementation='static'",
        "cache_implementation='dynamic', got 'static'",
    ),
    ({"prompt_lookup_num_tokens": 3}, None, "no prompt_lookup_num_tokens, got 3"),
]


@pytest.mark.parametrize("where", ["generation_config=", "model.generation_config"])
@pytest.mark.parametrize(("settings", "not_remembered", "not_continued"), SETTINGS)
def test_settings_of_a_generation_config_are_seen(
    settings: dict[str, Any], not_remembered: str | None, not_continued: str | None, where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    vlm = wrapped("qwen2_vl")
    first = vlm.ask(picture(), "What?", remember=True, **GREEDY)
    options: dict[str, Any] = dict(GREEDY)
    if where == "model.generation_config":
        for name, value in settings.items():
            monkeypatch.setattr(vlm.model.generation_config, name, value)
    else:
        sampled = "num_return_sequences" in settings  # transformers refuses several greedy sequences by itself
        config = GenerationConfig(**settings, max_new_tokens=3, do_sample=sampled, pad_token_id=0)
        options = {"generation_config": config}
    if not_remembered:
        with pytest.raises(PromptError, match=not_remembered):
            vlm.ask(picture(), "What?", remember=True, **options)
    if not_continued:
        with pytest.raises(
            PromptError, match=f"a follow-up continues the cache of one answer: expected {not_continued}"
        ):
            vlm.ask(None, "Why?", after=first, **options)
    else:
        assert vlm.ask(None, "Why?", after=first, **options).turn is None
    if settings.keys() & {"num_beams", "num_return_sequences"}:
        with pytest.raises(PromptError, match="for a streamed answer, got 2"):
            vlm.stream(picture(), "What?", **options)
    else:
        with pytest.raises(SelectorError, match="works inside the language model"):
            vlm.ask(picture(), "What?", budget=9, selector="fastv", **options)


def test_an_answer_that_was_looked_up_can_be_continued() -> None:
    """Candidates that were not taken leave the cache."""
    vlm = wrapped("qwen2_vl")
    plain, looked_up = (
        vlm.ask(picture(), "What? What?", remember=True, **GREEDY, **options)
        for options in ({}, {"prompt_lookup_num_tokens": 3})
    )
    assert looked_up.ids.tolist() == plain.ids.tolist()
    ours, expected = (vlm.ask(None, "Why?", after=first, **GREEDY) for first in (looked_up, plain))
    assert ours.ids.tolist() == expected.ids.tolist()


def test_a_dynamic_cache_may_be_named() -> None:
    vlm = wrapped("qwen2_vl")
    first = vlm.ask(picture(), "What?", remember=True, cache_implementation="dynamic", **GREEDY)
    second = vlm.ask(None, "Why?", after=first, cache_implementation="dynamic", **GREEDY)
    assert second.turn is not None


def test_a_follow_up_needs_a_remembered_answer() -> None:
    vlm = wrapped("qwen2_vl")
    with pytest.raises(PromptError, match="remember=True"):
        vlm.ask(None, "Why?", after="something")


@pytest.mark.parametrize("worth", ["raise", "short", "nan"])
def test_failing_relevance_divides_the_budget_by_size_with_a_note(worth: str) -> None:
    class Wrong(Selector):
        name = "wrong"

        def relevance(self, selection: SelectionInput) -> torch.Tensor:
            if worth == "raise":
                raise RuntimeError("no idea")
            return torch.full((3 if worth == "short" else len(selection.candidates),), torch.nan)

        def select(self, selection: SelectionInput) -> torch.Tensor:
            return selection.candidates[: selection.count]

    vlm, pictures = wrapped("qwen2_vl"), [picture(), picture(40, 64, 1)]
    with pytest.warns(FallbackWarning, match="divided by size"):
        found = vlm.prepare(pictures, "What?", budget=20, shared=True, selector=Wrong()).allocations
    assert [a.k for a in found] == [12, 8]
    assert found[0].fallback


@pytest.mark.parametrize("depth", [2.0, -1.0, float("nan"), "deep"])
def test_invalid_depths_are_refused(depth: Any) -> None:
    selector = Shrinking()
    selector.attention_at = (depth,)
    with pytest.raises(SelectorError, match="depths between 0 and 1"):
        wrapped("qwen2_vl").prepare([picture()], "What?", budget=5, selector=selector)


def test_a_video_has_no_single_texture() -> None:
    def by_texture(selection: SelectionInput) -> torch.Tensor:
        return selection.texture.grid(2, 2)

    with pytest.raises(SelectorError, match="one texture per frame"):
        wrapped("qwen2_vl").prepare(None, "What?", videos=[[picture(48, 40)] * 2], budget=5, selector=by_texture)


def test_equal_images_get_different_random_cells() -> None:
    found = wrapped("qwen2_vl").prepare([picture(), picture()], "What?", budget=9, selector="random").allocations
    assert found[0].keep.tolist() != found[1].keep.tolist()


def test_timings_are_plain_numbers_by_stage() -> None:
    vlm = wrapped("qwen2_vl")
    assert set(vlm.ask(None, "Hello", **GREEDY).timings) == {"preprocess", "assemble", "prefill", "decode", "judge"}
    look = vlm.look(picture())
    assert "encode" in vlm.ask(look, "What?", **GREEDY).timings
    assert "encode" not in vlm.ask(look, "Why?", **GREEDY).timings


@pytest.mark.parametrize("family", ["internvl", "idefics3", "qwen2_vl"])
def test_a_batch_may_start_with_a_text_only_row(family: str) -> None:
    vlm = wrapped(family) if family == "qwen2_vl" else tiny_vlm.wrapped(family)
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    together = vlm.generate([[], [picture(90, 40)]], ["Hello", "What?"], budget="50%", **options)
    assert together[1].ids.tolist() == vlm.generate([picture(90, 40)], "What?", budget="50%", **options)[0].ids.tolist()


@pytest.mark.parametrize(
    ("option", "near"), [("budgte", "budget"), ("max_new_token", "max_new_tokens"), ("glanse", "glance")]
)
def test_an_unknown_option_names_the_near_one(option: str, near: str) -> None:
    vlm = wrapped("qwen2_vl")
    for call in (vlm.ask, vlm.generate, vlm.stream):
        with pytest.raises(PromptError, match=f"got {option!r}; did you mean {near!r}"):
            call(picture(), "What?", **{option: 3})
    with pytest.raises(PromptError, match=r"got 'xyzzy'$"):
        vlm.ask(picture(), "What?", xyzzy=3)


@pytest.mark.parametrize("nothing", [0, "0", "0%", "mass 0%"])
def test_a_budget_of_nothing_is_noted(nothing: Any) -> None:
    vlm = wrapped("qwen2_vl")
    answer = vlm.ask(picture(), "What?", budget=nothing, **GREEDY)
    assert answer.tokens["kept"] == 0
    assert answer.allocation.notes[-1] == f"budget of {nothing}: nothing of this picture was read"
    blind = vlm.ask(picture(), "What?", glance=nothing, **GREEDY)
    assert f"glance of {nothing}: nothing of this picture was read" in blind.allocation.notes


def test_the_first_frame_of_an_animated_picture_is_noted(tmp_path: Any) -> None:
    path = tmp_path / "animated.gif"
    picture().save(path, save_all=True, append_images=[picture(seed=1)])
    assert "animated: frame 1 of 2 is used" in wrapped("qwen2_vl").ask(path, "What?", **GREEDY).allocation.notes


def test_a_chat_template_that_fails_is_one_sentence() -> None:
    vlm = copy.copy(wrapped("qwen2_vl"))
    vlm._prompter = copy.copy(vlm.prompter)
    vlm.prompter.processor = copy.copy(vlm.processor)
    for template in ("{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}", "{% for %}"):
        vlm.prompter.processor.chat_template = template
        with pytest.raises(PromptError, match="the model's chat template failed: "):
            vlm.ask(picture(), "What?")
