"""Qwen3-VL with experts reads as Qwen3-VL does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers

from arr_coc.adapters.families import adapter
from tests.adapters import tiny
from tests.adapters.oracle import at_source, choose, greedy, masked, real, sparse


@lru_cache
def model(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    plain = tiny.qwen3_vl()
    text = tiny.TEXT | {"rope_parameters": tiny.MROPE, "head_dim": 8}
    config = transformers.Qwen3VLMoeConfig(
        vision_config=plain.vision_config.to_dict() | {"model_type": "qwen3_vl_moe_vision"},
        text_config=text | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        **tiny.TOKENS,
    )
    built = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation=attention)
    for name, weights in built.named_parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.5 if "embed" in name else 0.6 / weights.shape[-1] ** 0.5)
    return built.eval()


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", list(tiny.PROMPTS))
def test_all_is_the_stock_model_and_some_is_masking_the_others(case: str, attention: str) -> None:
    stock = model(attention)
    reader = adapter(stock)
    inputs = tiny.prompt(tiny.PROMPTS[case], "qwen3_vl")
    ours, _ = sparse(reader, inputs)
    assert torch.equal(stock(**ours).logits, stock(**inputs).logits)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    theirs = masked(reader, inputs, keeps)
    truth = at_source(stock(**theirs).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() < 1e-5
    assert torch.equal(greedy(stock, ours), greedy(stock, theirs))


@torch.no_grad()
def test_lost_deepstack_fails_the_oracle() -> None:
    stock = model()
    reader = adapter(stock)
    inputs = tiny.prompt(tiny.PROMPTS["image"], "qwen3_vl")
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    output = ours["mm_encoder_outputs"]["image"]
    output.deepstack_features = [tuple(torch.zeros_like(part) for part in level) for level in output.deepstack_features]
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() > 1e-2
