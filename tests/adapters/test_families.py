"""Which models are taken, which are refused, and how folders are loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import arr_coc
from arr_coc.adapters import families
from arr_coc.errors import ModelError, PromptError
from arr_coc.reader import folder
from arr_coc.reader.model import TINY, build
from tests.adapters import tiny
from tests.adapters.tiny_vlm import picture, wrapped


def test_an_unknown_model_names_the_supported_families() -> None:
    with pytest.raises(ModelError, match=r"Qwen2-VL, Qwen2\.5-VL, Qwen3-VL"):
        arr_coc.wrap(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=8)))
    with pytest.raises(ModelError, match=r"got torch\.nn.*Linear"):
        arr_coc.wrap(torch.nn.Linear(2, 2))


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.17.0")
    with pytest.raises(ModelError, match=r"expected transformers 5\.18 or newer, got 5\.17\.0"):
        families.check_transformers()
    monkeypatch.setattr(transformers, "__version__", "6.0.0.dev0")
    families.check_transformers()


def test_a_model_on_several_devices_is_refused() -> None:
    model = tiny.model("qwen2_vl")
    model.lm_head = torch.nn.Linear(32, 128, bias=False, device="meta")
    with pytest.raises(ModelError, match="spread over cpu, meta"):
        arr_coc.wrap(model)


def test_sliding_windows_in_the_language_model_are_refused() -> None:
    model = tiny.model("qwen2_vl")
    model.config.text_config.layer_types = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(ModelError, match="got sliding_attention"):
        arr_coc.wrap(model)


def test_a_folder_is_loaded_without_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder.write(build(TINY), tmp_path, torch.float32)
    vlm = arr_coc.load(tmp_path)
    answer = vlm.ask(picture(200, 100), "What?", budget="50%", max_new_tokens=3)
    assert answer.tokens["kept"] == -(-answer.tokens["all"] // 2)
    video = vlm.generate(None, "What?", videos=[[picture(64, 64, i) for i in range(3)]], max_new_tokens=3)[0]
    assert video.allocation.kind == "video"
    assert video.allocation.grid.views[0].t == 2
    assert arr_coc.load(str(tmp_path), dtype=torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelError, match="not a folder"):
        arr_coc.load(name)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load"):
        arr_coc.load(tmp_path)


def test_a_folder_of_another_kind_of_model(tmp_path: Path) -> None:
    transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"'gpt2' is not supported .*Qwen2-VL"):
        arr_coc.load(tmp_path)


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
        ({"inputs": {"input_ids": torch.tensor([[tiny.IMAGE, 65]])}}, "has 1 image tokens"),
        (
            {"inputs": {"input_ids": torch.tensor([[tiny.IMAGE, 65]]), "image_grid_thw": torch.tensor([[1, 4, 4]])}},
            "needs 4 image tokens in one row of the prompt, found 1",
        ),
    ],
)  # fmt: skip
def test_bad_prompts_are_one_sentence(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PromptError, match=complaint) as caught:
        wrapped("qwen2_vl").prepare(**given)
    assert "\n" not in str(caught.value)


def test_a_model_without_its_processor_says_so() -> None:
    vlm = arr_coc.wrap(tiny.model("qwen2_vl"))
    with pytest.raises(ModelError, match="without a processor"):
        vlm.ask(picture(), "What?")
    with pytest.raises(PromptError, match="expected the model's processor"):
        arr_coc.wrap(vlm.model, SimpleNamespace())


def test_a_processor_without_a_chat_template_wants_the_picture_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    monkeypatch.setattr(vlm.processor, "chat_template", None)
    with pytest.raises(PromptError, match="has no chat template"):
        vlm.ask(picture(), "What?")
    assert vlm.prepare(picture(), "<|image_pad|>What?", raw=True).length == 63 + 5
