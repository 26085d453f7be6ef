"""Models, processors and prompts that are refused, each with its reason in one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import arr_coc
from arr_coc.adapters.families import check_transformers, family
from arr_coc.errors import ModelError, PromptError
from recipes.reader import vocabulary
from tests.adapters import families as tiny
from tests.adapters.tiny_vlm import picture, processor, wrapped


def test_an_unknown_model_names_the_supported_families() -> None:
    with pytest.raises(ModelError, match=r"Qwen2-VL, Qwen2\.5-VL, Qwen3-VL"):
        arr_coc.wrap(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=8)))
    with pytest.raises(ModelError, match=r"got torch\.nn.*Linear"):
        arr_coc.wrap(torch.nn.Linear(2, 2))


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.17.0")
    with pytest.raises(ModelError, match=r"expected transformers 5\.18 or newer, got 5\.17\.0"):
        check_transformers()
    monkeypatch.setattr(transformers, "__version__", "6.0.0.dev0")
    check_transformers()
    monkeypatch.setattr(transformers, "__version__", "5.21.1")
    check_transformers()
    with pytest.raises(ModelError, match=r"expected transformers 5\.22 or newer for Fuyu, got 5\.21\.1"):
        check_transformers(family("fuyu"))


def test_a_model_without_weights_is_refused() -> None:
    model = tiny.model("qwen2_vl")
    model.lm_head = torch.nn.Linear(32, 128, bias=False, device="meta")
    with pytest.raises(ModelError, match="some on the device 'meta', which holds none"):
        arr_coc.wrap(model)


def test_language_layers_of_an_unknown_kind_are_refused() -> None:
    model = tiny.model("qwen2_vl")
    model.config.text_config.layer_types = ["full_attention", "indexed_attention"] * 2
    with pytest.raises(ModelError, match=r"layers of a known kind .*, got indexed_attention"):
        arr_coc.wrap(model)


def test_a_model_that_takes_no_encoder_outputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("llava")
    monkeypatch.setattr(model, "forward", lambda input_ids: None)
    with pytest.raises(
        ModelError, match=r"LLaVA-1\.5 model that takes mm_encoder_outputs, .*pip install -U transformers"
    ):
        arr_coc.wrap(model)


def test_sound_is_refused() -> None:
    inputs = tiny.prompt("qwen2_vl", "image") | {"input_features": torch.zeros(1, 8, 4)}
    with pytest.raises(PromptError, match=r"got sound \(input_features\)"):
        arr_coc.wrap(tiny.model("qwen2_vl")).prepare(inputs=inputs)


def built(config: Any) -> Any:
    return transformers.AutoModelForImageTextToText.from_config(config)


def test_with_a_window_dropped_tokens_are_removed() -> None:
    config = tiny.llava()
    config.text_config = transformers.MistralConfig(**tiny.TEXT, sliding_window=16)
    assert arr_coc.wrap(built(config)).adapter.semantics == "removed"
    config.text_config = transformers.Qwen2Config(
        **tiny.TEXT, use_sliding_window=True, sliding_window=16, max_window_layers=2
    )
    assert arr_coc.wrap(built(config)).adapter.semantics == "removed"
    config.text_config = transformers.MistralConfig(**tiny.TEXT, sliding_window=None)
    vlm = arr_coc.wrap(built(config))
    assert (vlm.adapter.family, vlm.adapter.semantics) == ("LLaVA-1.5", "masked")


def test_a_language_model_without_rotary_positions_is_refused() -> None:
    config = tiny.llava()
    config.text_config = transformers.OPTConfig(
        hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=128, word_embed_proj_dim=32
    )
    with pytest.raises(ModelError, match="expected a language model with rotary positions, got 'opt'"):
        arr_coc.wrap(built(config))


def test_other_vision_towers_are_refused_by_name() -> None:
    vision = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8
    )
    with pytest.raises(ModelError, match=r"expected a CLIP or SigLIP vision tower in LLaVA-1\.5, got 'dinov2'"):
        arr_coc.wrap(built(tiny.llava(vision_config=vision)))


def test_strategies_that_do_not_fit_the_tower_are_refused() -> None:
    with pytest.raises(ModelError, match="'siglip_vision_model', which has no class token, got 'default'"):
        arr_coc.wrap(built(tiny.llava(vision_config=tiny.SIGLIP)))
    with pytest.raises(ModelError, match=r"in LLaVA-NeXT with a class token, got 'full'"):
        arr_coc.wrap(built(tiny.llava_next(vision_feature_select_strategy="full")))
    with pytest.raises(ModelError, match=r"in InternVL, got 'full'"):
        arr_coc.wrap(built(tiny.internvl(vision_feature_select_strategy="full")))


@pytest.mark.skipif("smolvlm" not in tiny.FAMILIES, reason="this transformers wants whole tiles")
def test_smolvlm_that_wants_whole_tiles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def merger(*given: Any) -> None:
        raise RuntimeError("shape '[-1, 4, 32]' is invalid for input of size 32")

    model = tiny.model("smolvlm")
    monkeypatch.setattr(type(model.model), "inputs_merger", merger, raising=False)
    with pytest.raises(ModelError, match="whose SmolVLM reads any number of image tokens"):
        arr_coc.wrap(model)


@pytest.mark.parametrize("family", ["llava", "internvl", "idefics3"])
def test_a_processor_of_another_family_is_refused(family: str) -> None:
    with pytest.raises(ModelError, match="expected the Qwen2VLProcessor of this model"):
        arr_coc.wrap(tiny.model("qwen2_vl"), processor(family))


def test_a_processor_with_other_token_numbers_is_refused() -> None:
    model = tiny.model("qwen2_vl")
    model.config.image_token_id = 99
    with pytest.raises(ModelError, match="whose image token is number 99"):
        arr_coc.wrap(model, processor("qwen2_vl"))


def test_a_model_without_its_processor_says_so() -> None:
    vlm = arr_coc.wrap(tiny.model("qwen2_vl"))
    with pytest.raises(ModelError, match="without a processor"):
        vlm.ask(picture(), "What?")
    with pytest.raises(PromptError, match="expected the model's processor"):
        arr_coc.wrap(vlm.model, SimpleNamespace())


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "to hold the question"),
        ({"text": "What?", "messages": []}, "to hold the question"),
        ({"messages": []}, "at least one"),
        ({"messages": [{"role": "user"}]}, "role and content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "the image itself"),
        ({"messages": [{"role": "user", "content": "Hi"}], "images": [picture()]}, "inside the messages"),
        ({"text": []}, "a question as text"),
        ({"text": ["a", "b"], "images": [picture()]}, "for each of the 2 questions"),
        ({"text": "What?", "videos": "clip.mp4"}, "got a path"),
        ({"text": "What?", "videos": [[picture(), picture(40, 64)]]}, "frames of one size"),
        ({"text": "<|image_pad|><|image_pad|>?", "images": [picture()], "raw": True}, "places for 2 images .*but 1 came"),
        ({"text": "What is <|image_pad|>?", "images": [picture()]}, "places for 2 images .*but 1 came"),
        ({"text": 5}, "a question as text"),
        ({"text": "What?", "videos": 5}, "expected videos, got int"),
        ({"text": "What?", "look": 5}, "expected a look"),
        ({"text": "What?", "videos": [[picture()] * 2], "fps": 0}, "above 0, got 0"),
        ({"text": "What?", "videos": [[picture()] * 2], "fps": float("nan")}, "above 0, got nan"),
        ({"messages": {"role": "user"}}, "a list of messages"),
        ({"messages": [[]]}, "none of them empty"),
        ({"messages": [{"role": "user", "content": None}]}, "content as text"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "a list of parts"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "under 'text'"),
        ({"inputs": {"input_ids": torch.ones(3, dtype=torch.long)}}, "input_ids as a tensor"),
        ({"inputs": {"input_ids": torch.ones(1, 3).long(), "attention_mask": torch.ones(1, 2)}}, "attention_mask of shape"),
        ({"inputs": {"input_ids": torch.ones(1, 3).long(), "pixel_values": [1]}}, "as a tensor"),
        ({"text": "What?", "images": [picture(4000, 4)]}, "refused the pictures"),
        ({"inputs": {"attention_mask": 1}}, "with input_ids"),
        ({"inputs": {"input_ids": torch.tensor([[vocabulary.IMAGE, 65]])}}, "has 1 image tokens"),
        (
            {"inputs": {"input_ids": torch.tensor([[vocabulary.IMAGE, 65]]), "image_grid_thw": torch.tensor([[1, 4, 4]])}},
            "needs 4 image tokens in one row of the prompt, found 1",
        ),
    ],
)  # fmt: skip
def test_bad_prompts_are_one_sentence(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PromptError, match=complaint) as caught:
        wrapped("qwen2_vl").prepare(**given)
    assert "\n" not in str(caught.value)


def test_a_processor_without_a_chat_template_wants_the_picture_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    monkeypatch.setattr(vlm.processor, "chat_template", None)
    with pytest.raises(PromptError, match="has no chat template"):
        vlm.ask(picture(), "What?")
    assert vlm.prepare(picture(), "<|image_pad|>What?", raw=True).length == 63 + 5
