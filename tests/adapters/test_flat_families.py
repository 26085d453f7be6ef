"""Models that are refused, each with its reason, and the selector inside the language model beside line ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import arr_coc
from arr_coc.adapters import families
from arr_coc.errors import ModelError
from tests.adapters import tiny_llava as tiny
from tests.adapters import tiny_llava_processor
from tests.adapters.test_inside import LastToken
from tests.adapters.tiny_vlm import picture


def test_gemma3_is_refused_for_its_windows() -> None:
    config = transformers.Gemma3Config(
        text_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 64,
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 8, "vision_use_head": False,
        },
        mm_tokens_per_image=4, image_token_index=60, boi_token_index=61, eoi_token_index=62,
    )  # fmt: skip
    model = transformers.AutoModelForImageTextToText.from_config(config)
    with pytest.raises(ModelError, match=r"Gemma 3 is not supported: .* window .* \(supported: Qwen2-VL, .*LLaVA-1\.5"):
        arr_coc.wrap(model)


def built(config: Any) -> Any:
    return transformers.AutoModelForImageTextToText.from_config(config)


def test_a_language_model_with_a_window_is_refused() -> None:
    config = tiny.llava()
    config.text_config = transformers.MistralConfig(**tiny.TEXT, sliding_window=16)
    with pytest.raises(ModelError, match="full attention in every layer, got a sliding window"):
        arr_coc.wrap(built(config))
    config.text_config = transformers.Qwen2Config(
        **tiny.TEXT, use_sliding_window=True, sliding_window=16, max_window_layers=2
    )
    with pytest.raises(ModelError, match="full attention in every layer, got sliding_attention"):
        arr_coc.wrap(built(config))
    config.text_config = transformers.MistralConfig(**tiny.TEXT, sliding_window=None)
    assert arr_coc.wrap(built(config)).adapter.family == "LLaVA-1.5"


def test_a_language_model_without_rotary_positions_is_refused() -> None:
    config = tiny.llava()
    config.text_config = transformers.OPTConfig(
        hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=128, word_embed_proj_dim=32
    )
    with pytest.raises(ModelError, match="expected a language model with rotary positions, got 'opt'"):
        arr_coc.wrap(built(config))


def test_flash_attention_would_misread_the_positions() -> None:
    model = tiny.model("llava")
    model.config.get_text_config()._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="got 'flash_attention_2', which reads a gap in the positions"):
        arr_coc.wrap(model)


def test_other_vision_towers_are_refused_by_name() -> None:
    vision = transformers.PixtralVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8
    )
    with pytest.raises(ModelError, match=r"expected a CLIP or SigLIP vision tower in LLaVA-1\.5, got 'pixtral'"):
        arr_coc.wrap(built(tiny.llava(vision_config=vision)))


def test_strategies_that_do_not_fit_the_tower_are_refused() -> None:
    with pytest.raises(ModelError, match="'siglip_vision_model', which has no class token, got 'default'"):
        arr_coc.wrap(built(tiny.llava(vision_config=tiny.SIGLIP)))
    with pytest.raises(ModelError, match=r"in LLaVA-NeXT with a class token, got 'full'"):
        arr_coc.wrap(built(tiny.llava_next(vision_feature_select_strategy="full")))
    with pytest.raises(ModelError, match=r"in InternVL, got 'full'"):
        arr_coc.wrap(built(tiny.internvl(vision_feature_select_strategy="full")))


def test_smolvlm_that_wants_whole_tiles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def merger(*given: Any) -> None:
        raise RuntimeError("shape '[-1, 4, 32]' is invalid for input of size 32")

    model = tiny.model("smolvlm")
    monkeypatch.setattr(type(model.model), "inputs_merger", merger, raising=False)
    with pytest.raises(ModelError, match="whose SmolVLM reads any number of image tokens"):
        arr_coc.wrap(model)


@pytest.mark.parametrize("family", tiny_llava_processor.FAMILIES)
def test_a_folder_is_loaded_without_torchvision(family: str, tmp_path: Path) -> None:
    vlm = tiny_llava_processor.wrapped(family)
    vlm.model.save_pretrained(tmp_path)
    stored = vlm.processor
    stored.tokenizer.save_pretrained(tmp_path)
    stored.image_processor.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(stored.chat_template)
    plain = {
        name: value
        for name, value in vars(stored).items()
        if isinstance(value, int | str) and name not in ("chat_template", "audio_tokenizer")
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(plain))
    loaded = arr_coc.load(tmp_path)
    options = {"budget": 5, "max_new_tokens": 3, "do_sample": False}
    assert loaded.ask(picture(90, 40), "What?", **options).ids.equal(vlm.ask(picture(90, 40), "What?", **options).ids)
    if family == "llava_onevision":
        film = loaded.generate(None, "What?", videos=[[picture(), picture()]], max_new_tokens=2)[0]
        assert str(film.allocation.grid) == "2 x 2 x 2"


@pytest.mark.parametrize("known", families.FAMILIES, ids=lambda known: known.family)
def test_every_family_names_its_processor(known: Any) -> None:
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    assert {PROCESSOR_MAPPING_NAMES[kind] for kind in known.model_types} == {known.processor}


@torch.no_grad()
@pytest.mark.parametrize("family", tiny_llava_processor.FAMILIES)
def test_a_selector_inside_the_language_model_sees_cells_not_line_ends(family: str) -> None:
    vlm = tiny_llava_processor.wrapped(family)
    selector = LastToken(0.5)
    answer = vlm.ask(picture(90, 40), "What?", selector=selector, budget=5, max_new_tokens=4)
    assert answer.tokens["kept"] == 5
    (sight,) = selector.seen
    assert sight.cells[sight.cells >= 0].tolist() == list(range(answer.allocation.n))
