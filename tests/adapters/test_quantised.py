"""Half precision and quantised weights: keeping all cells is still the stock model, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import arr_coc
from arr_coc.adapters.families import adapter
from arr_coc.layer.identity import config_for, fit_to_model, model_identity
from arr_coc.layer.model import ArrCocLayer
from tests.adapters import families
from tests.adapters.oracle import at_source, choose, dense, masked, real, sparse
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, processor, stock_inputs

QUESTION = "How many grey cats sit on the table?"


def torchao(config: str) -> Callable[[Any, Path], Any]:
    def quantised(model: Any, folder: Path) -> Any:
        quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
        quantization.quantize_(model, getattr(quantization, config)())
        return model

    return quantised


def bitsandbytes(**options: Any) -> Callable[[Any, Path], Any]:
    def quantised(model: Any, folder: Path) -> Any:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
        model.save_pretrained(folder)
        config = transformers.BitsAndBytesConfig(**options)
        load = transformers.AutoModelForImageTextToText.from_pretrained
        return load(folder, quantization_config=config, device_map="cpu").eval()

    return quantised


# How a model is made smaller, and the largest difference between dropping tokens and masking them. It is rounding, in the
# precision of the activations: where these are quantised, too, one step of their 8 bits.
PRECISIONS: dict[str, tuple[Callable[[Any, Path], Any], float]] = {
    "bfloat16": (lambda model, _: model.bfloat16(), 0.1),
    "float16": (lambda model, _: model.half(), 0.02),
    "torchao int8 weights": (torchao("Int8WeightOnlyConfig"), 1e-5),
    "torchao float8 weights": (torchao("Float8WeightOnlyConfig"), 1e-5),
    "torchao int8": (torchao("Int8DynamicActivationInt8WeightConfig"), 0.2),
    "bitsandbytes int8": (bitsandbytes(load_in_8bit=True), 0.2),
    "bitsandbytes nf4": (bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"), 1e-4),
}


def wide(family: str) -> Any:
    """A model whose matrices have whole blocks of 64 values, as 4 bits need."""
    config = families.FAMILIES[family].config()
    text = config.text_config
    for part in (text, config.vision_config):
        for name in ("hidden_size", "intermediate_size", "embed_dim"):
            if hasattr(part, name):
                setattr(part, name, 64)
    text.num_key_value_heads = text.num_attention_heads
    text.head_dim = 64 // text.num_attention_heads
    if "mrope_section" in text.rope_parameters:
        text.rope_parameters = {**text.rope_parameters, "mrope_section": [4, 2, 2]}
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    for name, weights in model.named_parameters():
        initialise = families._initialise_qwen if families.FAMILIES[family].mrope else families._initialise_others
        initialise(name, weights, experts=False)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_smaller_weights(family: str, precision: str, tmp_path: Path) -> None:
    make, most = PRECISIONS[precision]
    model = make(wide(family), tmp_path)
    reader, inputs = adapter(model), families.prompt(family, "image")
    ours, _ = sparse(reader, inputs)
    expected = model(**dense(reader, inputs)).logits
    assert torch.equal(model(**ours).logits, expected)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = at_source(model(**masked(reader, inputs, keeps)).logits, source)
    difference = (real(model(**ours).logits, source) - truth).abs().max()
    assert difference < most < truth.std()
    vlm = arr_coc.wrap(model, processor(family))
    assert vlm.ask(picture(), QUESTION, **GREEDY).ids.tolist() == answer_of(
        model, stock_inputs(vlm, QUESTION, [picture()])
    )
    look = vlm.look(picture())
    for options in ({}, {"glance": "60%"}, {"selector": "fastv"}, {"selector": "visionzip"}, {}):
        assert vlm.ask(look, QUESTION, budget="40%", **options, **GREEDY).fallback == ""
    assert len(look.encoded) == 2  # all cells, and some
    fit_to_model(ArrCocLayer(config_for(reader, width=8, heads=2)), reader)


def test_signs_are_the_identity_in_every_precision() -> None:
    assert model_identity(adapter(wide("llava").bfloat16())) == model_identity(adapter(wide("llava")))
