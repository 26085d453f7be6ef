"""Types in no list: the generic adapter proves itself on a picture, or refuses. And every type has a place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import arr_coc
from arr_coc.adapters import refusals
from arr_coc.adapters.families import FAMILIES, family, image_text_types
from arr_coc.adapters.generic import Generic, Unlisted
from arr_coc.errors import ModelError, PromptError
from tests.adapters.more_families import IMAGE, LISTED, model, prompt
from tests.adapters.tiny_vlm import picture, tokenizer

# Families of the generic adapter, as if transformers had only just added them: masked and removed, tensors and tuples.
PROVABLE = [
    name for name in ("vipllava", "qianfan_ocr", "ernie4_5_vl_moe", "aya_vision", "paddleocr_vl") if name in LISTED
]
# It cannot know these: features elsewhere, tokens that are no cells, further arguments for each token.
REFUSABLE = {
    "llama4": "an image_token_id|differs|failed", "hunyuan_vl": "needs|fill", "gemma3": "differs from the stock model",
    "granite4_vision": "refused", "aria": "square number",
}  # fmt: skip


def unlisted(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    stock = model(name)
    monkeypatch.setattr("arr_coc.adapters.families.FAMILIES", ())
    return arr_coc.wrap(stock)


def test_every_type_of_transformers_has_a_place() -> None:
    """A newer transformers shows here what is new: list it as a family, a refusal, or as tried."""
    known = {kind for listed in FAMILIES for kind in listed.model_types}
    new = set(image_text_types()) - known - set(refusals.REFUSED) - set(refusals.TRIED)
    assert not new, f"new in transformers {transformers.__version__}"
    assert not known & set(refusals.REFUSED)
    assert not (known | set(refusals.REFUSED)) & set(refusals.TRIED)


@pytest.mark.parametrize("kind", refusals.REFUSED)
def test_a_refusal_is_one_sentence_with_a_reason(kind: str) -> None:
    with pytest.raises(ModelError, match=r"not supported: .{40,} \(supported: Qwen2-VL, ") as caught:
        family(kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", refusals.TRIED)
def test_the_others_are_tried(kind: str) -> None:
    assert kind not in image_text_types() or family(kind) is Unlisted


@pytest.mark.parametrize("name", PROVABLE)
def test_a_type_that_reproduces_the_model_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = unlisted(name, monkeypatch)
    assert isinstance(vlm.adapter, Unlisted)
    assert not vlm.adapter.proved
    if name == "ernie4_5_vl_moe":  # experts are chosen by an argument that the generic adapter does not know
        with pytest.raises(ModelError, match="keeping every token differs from the stock model by"):
            vlm.prepare(inputs=prompt(name))
        assert not vlm.adapter.proved
        return
    prepared = vlm.prepare(inputs=prompt(name), budget=3)
    assert vlm.adapter.proved
    assert [allocation.k for allocation in prepared.allocations] == [3] * len(prepared.allocations)
    assert {allocation.semantics for allocation in prepared.allocations} == {vlm.adapter.semantics}


@pytest.mark.parametrize("name", [name for name in REFUSABLE if name in LISTED])
def test_a_type_that_does_not_is_refused_with_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=REFUSABLE[name]) as caught:
        unlisted(name, monkeypatch).prepare(inputs=prompt(name))
    assert "\n" not in str(caught.value)


def test_the_proof_fails_on_a_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an adapter that mixes up its tokens does not pass."""
    right = Generic.stock_features
    monkeypatch.setattr(Generic, "stock_features", lambda *given: right(*given).flip(0))
    with pytest.raises(ModelError, match="keeping every token differs from the stock model by"):
        unlisted("vipllava", monkeypatch).prepare(inputs=prompt("vipllava"))


def test_the_proof_fails_on_renumbered_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    from arr_coc.adapters import packing

    right = packing.pack

    def renumbered(*given: Any) -> packing.Packed:
        made = right(*given)
        rising = (made.attention_mask.cumsum(-1) - 1).clamp_min(0)
        return packing.Packed(made.input_ids, made.attention_mask, rising.expand_as(made.position_ids), made.source)

    monkeypatch.setattr(packing, "pack", renumbered)
    with pytest.raises(ModelError, match="keeping half of the tokens differs from masking the others"):
        unlisted("vipllava", monkeypatch).prepare(inputs=prompt("vipllava"))


def test_the_proof_fails_where_the_picture_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = unlisted("vipllava", monkeypatch)
    with torch.no_grad():
        for layer in vlm.adapter.text_model.layers:
            layer.self_attn.o_proj.weight.zero_()
    with pytest.raises(ModelError, match="does not depend on the picture"):
        vlm.prepare(inputs=prompt("vipllava"))


def test_with_a_processor_the_proof_runs_on_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.LlavaProcessor(
        images, tokenizer(), patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    stock = model("vipllava")
    assert stock.config.image_token_id == IMAGE
    monkeypatch.setattr("arr_coc.adapters.families.FAMILIES", ())
    vlm = arr_coc.wrap(stock, processor)
    assert vlm.adapter.proved
    answer = vlm.ask(picture(), "<image>What?", raw=True, budget=5, max_new_tokens=3)
    assert answer.tokens["kept"] == 5
    assert answer.allocation.to_dict()["semantics"] == "masked"


def test_pixels_that_are_missing_are_named() -> None:
    inputs = prompt("lighton_ocr")
    del inputs["pixel_values"]
    vlm = arr_coc.wrap(model("lighton_ocr"))
    with pytest.raises((PromptError, ModelError), match="pixel"):
        vlm.prepare(inputs=inputs, glance=3)
