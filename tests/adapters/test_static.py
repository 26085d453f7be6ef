"""Functions of fixed shape equal masking in the stock model: encoder, prefill and decoding, padded or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters.families import adapter
from arr_coc.adapters.static import (
    DecodeStep,
    EncoderShape,
    Prefill,
    PromptShape,
    SparseEncoder,
    StaticCache,
    unsupported_reason,
)
from arr_coc.texture.kernels.cuda_graph import RecordedWork
from tests.adapters.families import QWEN, Row, prompt, shared_model
from tests.adapters.oracle import choose, encoder_truth, greedy, masked, sparse

TOKENS = 12
ROWS: list[Row] = [[("image", 96, 80), 40, 41, 42, 43], [("image", 64, 128), 50, 51]]  # pictures of 30 and 32 cells

every_family = pytest.mark.parametrize("family", QWEN)


def encoded_by(reader: Any, inputs: dict[str, Any], keeps: list[torch.Tensor], shape: EncoderShape) -> Any:
    maker = SparseEncoder(reader, shape)
    work = RecordedWork(maker, maker.buffers())
    work.load(*maker.inputs(inputs, reader.visuals(inputs), keeps))
    return work, work.run()


@torch.no_grad()
@every_family
@pytest.mark.parametrize("room", [0, 3])
def test_an_encoder_of_fixed_shape_is_masking_the_other_patches(family: str, room: int) -> None:
    inputs, reader = prompt(family, ROWS), adapter(shared_model(family))
    keeps = choose(reader.visuals(inputs))
    keeps[0] = keeps[0][: len(keeps[0]) - room]  # a padded picture beside a full one
    shape = EncoderShape(2, max(map(len, keeps)), exact=len(keeps[0]) == len(keeps[1]))
    work, (tokens, *deep) = encoded_by(reader, inputs, keeps, shape)
    truth = encoder_truth(family, reader, inputs, keeps)
    for number, (keep, (expected, levels)) in enumerate(zip(keeps, truth, strict=True)):
        assert (tokens[number, : len(keep)] - expected).abs().max() < 1e-5
        assert len(deep) == len(levels)
        for ours, theirs in zip(deep, levels, strict=True):
            assert (ours[number, : len(keep)] - theirs).abs().max() < 1e-5
    work.load(None, None, None, torch.zeros_like(work.inputs[3]), None, None)  # control: windows and padding matter
    if not shape.exact:
        work.load(None, None, torch.ones_like(work.inputs[2]), None, None, None)
    if not shape.exact or family == "qwen2_5_vl":
        assert (work.run()[0][0, : len(keeps[0])] - truth[0][0]).abs().max() > 1e-3


@torch.no_grad()
@every_family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("room", [0, 9])
def test_a_prompt_of_fixed_shape_is_masking_the_other_tokens(family: str, attention: str, room: int) -> None:
    inputs, stock = prompt(family, ROWS), shared_model(family, attention)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, _ = sparse(reader, inputs, keeps)
    theirs = masked(reader, inputs, keeps)
    ids, made = ours["input_ids"], ours["mm_encoder_outputs"]["image"]
    shape = PromptShape(2, max(map(len, keeps)) + room, ids.shape[1] + 2 * room, TOKENS + room)
    cache = StaticCache(reader, shape)
    fill, step = Prefill(reader, shape, cache), DecodeStep(reader, shape, cache)
    prefill = RecordedWork(fill, fill.buffers())
    prefill.run()
    decode = RecordedWork(step, step.buffers())
    decode.run()  # what warming up leaves in the cache is overwritten
    deep = tuple(getattr(made, "deepstack_features", None) or ())
    given = fill.inputs(ids, ours["attention_mask"], ours["position_ids"], made.pooler_output, deep)
    prefill.load(*given)
    logits = prefill.run()[0].clone()
    assert (logits - stock(**theirs).logits[:, -1]).abs().max() < 1e-5
    expected, tokens, last = greedy(stock, theirs, TOKENS), [logits.argmax(-1)], ours["position_ids"][..., -1]
    decode.load(None, None, None, given[1])
    for number in range(TOKENS - 1):
        decode.load(tokens[-1], last + number + 1, torch.tensor([shape.length + number]), None)
        tokens.append(decode.run()[0].argmax(-1))
    assert torch.equal(torch.stack(tokens, 1), expected)
    last_logits = decode.outputs[0].clone()
    decode.load(None, None, None, torch.zeros_like(given[1]))  # control: the prompt is read
    assert (decode.run()[0] - last_logits).abs().max() > 1e-3
    if room:
        prefill.load(None, torch.ones_like(given[1]), *[None] * (len(given) - 2))  # control: padding is masked
        assert (prefill.run()[0] - logits).abs().max() > 1e-3


def test_other_families_are_refused() -> None:
    assert "this is InternVL" in unsupported_reason(adapter(shared_model("internvl")))
    assert unsupported_reason(adapter(shared_model("qwen2_vl"))) == ""
