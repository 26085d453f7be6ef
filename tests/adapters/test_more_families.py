"""The families of `more_families.py` against the stock models: all tokens bit for bit, some of them by an oracle.

The oracle of "masked" is the stock model with the dropped tokens masked at every layer. That of "removed" is the stock
text model run on the embeddings without those tokens, row by row, with the positions that they have in the whole prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from arr_coc.adapters.attention_probe import attention_maps
from arr_coc.adapters.families import adapter
from arr_coc.adapters.packing import assemble, gather_features, model_kwargs
from tests.adapters.more_families import LISTED, MORE, VIDEOS, model, prompt
from tests.adapters.more_oracle import (
    GREEDY,
    STEPS,
    TOLERANCE,
    Case,
    case,
    choose,
    encoder_error,
    generated,
    keyword_arguments,
    language_error,
    last_logits,
    received,
    stepwise,
)

GLANCING = [name for name in LISTED if MORE[name].glances]

every_family = pytest.mark.parametrize("family", LISTED)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])


def beams(found: Case, given: dict[str, Any]) -> torch.Tensor:
    return found.model.generate(**given, **GREEDY, num_beams=2)[:, -STEPS:]


def part_of(value: Any, row: slice) -> Any:
    """A row of a tensor `[B, L]` or `[.., B, L]`; anything else as it is."""
    return value[..., row, :] if isinstance(value, torch.Tensor) else value


@every_family
def test_what_dropping_means_is_stated(family: str) -> None:
    assert case(family).adapter.semantics == MORE[family].semantics


@torch.no_grad()
@every_attention
@every_family
def test_keeping_all_is_the_stock_model(family: str, attention: str) -> None:
    found = case(family, attention)
    whole = keyword_arguments(found)
    assert torch.equal(last_logits(found, whole), found.logits)
    assert torch.equal(generated(found, whole), found.answer)
    finite = found.logits[found.logits > -1e30]
    assert finite.std() > 0.1  # the logits are not all the same


@torch.no_grad()
@every_attention
@every_family
def test_keeping_some_is_what_the_oracle_says(family: str, attention: str) -> None:
    found = case(family, attention)
    keeps = choose(found)
    assert language_error(found, keeps) < TOLERANCE
    assert language_error(found, [keep[:0] for keep in keeps]) < TOLERANCE
    keeps[0], keeps[-1] = keeps[0][:0], torch.arange(found.visuals[-1].n)
    assert language_error(found, keeps) < TOLERANCE


@torch.no_grad()
@every_family
def test_the_oracle_fails_on_mistakes(family: str) -> None:
    """Control: without these differences the other tests would prove nothing."""
    found = case(family)
    keeps = choose(found)
    assert language_error(found, keeps, renumbered=True) > 1e-2
    assert language_error(found, keeps, flipped=True) > 1e-2
    assert language_error(found, keeps, against=choose(found, seed=5)) > 1e-2, "other cells"
    if MORE[family].semantics == "removed":
        assert language_error(found, keeps, masked=True) > 1e-2, "masking is something else here"


@torch.no_grad()
@every_family
def test_the_cached_answer_is_that_of_whole_passes(family: str) -> None:
    found = case(family)
    keeps = choose(found)
    assert generated(found, keyword_arguments(found, keeps)).tolist() == stepwise(found, keeps).tolist()


@torch.no_grad()
@every_family
def test_beams_of_a_row_are_those_that_it_has_alone(family: str) -> None:
    """Over a batch of rows with different numbers of cells."""
    found, row = case(family), slice(0, 1)
    together = beams(found, keyword_arguments(found, choose(found)))
    if family == "llama4":  # its temperature counts the padding: the answer is the same only without any
        row = slice(2, 3)
    alone = {name: part_of(value, row) for name, value in keyword_arguments(found, choose(found)).items()}
    here = alone["attention_mask"][0].bool()
    alone = {name: value[..., here] if isinstance(value, torch.Tensor) else value for name, value in alone.items()}
    visuals = [i for i, visual in enumerate(found.visuals) if visual.row == row.start]
    features = gather_features(
        [replace(found.visuals[i], row=0) for i in visuals], [found.encoded[i] for i in visuals],
        [choose(found)[i] for i in visuals], 1, [None] * len(visuals),
    )  # fmt: skip
    alone["mm_encoder_outputs"] = found.adapter.encoder_outputs(features)
    assert beams(found, alone)[0].tolist() == together[row.start].tolist()


@torch.no_grad()
@every_family
def test_half_precision_keeps_all_exactly(family: str) -> None:
    """As `generate` computes it: the last token's logits."""
    found = case(family, dtype=torch.bfloat16)
    assert torch.equal(last_logits(found, keyword_arguments(found)), found.logits)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", GLANCING)
def test_encoding_some_cells_is_masking_the_other_patches(family: str, attention: str) -> None:
    found = case(family, attention)
    keeps = choose(found)
    keeps[0] = keeps[0][1:]
    error, control = encoder_error(found, keeps)
    assert error < 1e-5
    assert control > 1e-3, "dropped patches do matter"
    keeps[-1] = keeps[-1][:0]  # a picture without any
    assert encoder_error(found, keeps)[0] < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("family", GLANCING)
def test_the_encoder_s_oracle_fails_on_wrong_places(family: str) -> None:
    found = case(family)
    keeps = choose(found)
    wrong = [(keep + 1) % visual.n for keep, visual in zip(keeps, found.visuals, strict=True)]
    assert encoder_error(found, [keep.sort().values for keep in wrong], against=keeps)[0] > 1e-2


@torch.no_grad()
@every_attention
@pytest.mark.parametrize("family", [name for name in VIDEOS if name in LISTED])
def test_videos_and_pictures_in_one_batch(family: str, attention: str) -> None:
    found = case(family, attention, rows="video")
    assert [visual.kind for visual in found.visuals] == ["video", "image", "video"]
    assert torch.equal(last_logits(found, keyword_arguments(found)), found.logits)
    assert torch.equal(generated(found, keyword_arguments(found)), found.answer)
    keeps = choose(found)
    assert language_error(found, keeps) < TOLERANCE
    assert language_error(found, keeps, renumbered=True) > 1e-2
    assert language_error(found, keeps, flipped=True) > 1e-2
    if MORE[family].glances:
        error, control = encoder_error(found, keeps)
        assert error < 1e-5
        assert control > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("family", [name for name in LISTED if name.startswith(("qwen3_5", "qwen2_5_o", "qwen3_o"))])
def test_the_encoder_s_attention_is_recorded(family: str) -> None:
    found = case(family)
    seen = found.adapter.encode(found.inputs, found.visuals, None, (0.0, 1.0))
    for depth, expected in zip((0.0, 1.0), received(found), strict=True):
        assert torch.allclose(torch.cat([one.attention[depth] for one in seen]), expected, atol=1e-6)
        assert expected.std() > 1e-4  # control: it is not the same everywhere


@torch.no_grad()
@pytest.mark.parametrize("family", GLANCING)
def test_no_cells_at_all(family: str) -> None:
    found = case(family)
    none = [torch.zeros(0, dtype=torch.long)] * len(found.visuals)
    for seen in found.adapter.encode(found.inputs, found.visuals, none, ()):
        assert seen.tokens.shape == (0, 32)


@every_family
def test_gradients_reach_the_pixels(family: str) -> None:
    if family in ("chameleon", "emu3"):
        pytest.skip("pictures become numbers of a codebook, which have no gradient")
    stock, inputs = model(family), prompt(family, "image")
    reader = adapter(stock)
    pixels = inputs["pixel_values"].requires_grad_()
    visuals = reader.visuals(inputs)
    keeps = [torch.arange(0, visual.n, 2) for visual in visuals]
    encoded = reader.encode(inputs, visuals, keeps if MORE[family].glances else None, ())
    sum(seen.tokens.sum() for seen in encoded).backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0


@torch.no_grad()
@every_family
def test_the_probe_reads_the_stock_model_s_attention(family: str) -> None:
    """From the model's own eager attention, at the layers that the probe reads."""
    found = case(family, "eager")
    reader, inputs = found.adapter, prompt(family, "image")
    visuals = reader.visuals(inputs)
    encoded = reader.encode(inputs, visuals, None, ())
    packed, kept = assemble(reader, inputs, visuals, encoded, [seen.cells[::2].contiguous() for seen in encoded])
    given = model_kwargs(reader, packed, kept)
    queries = torch.tensor([packed.input_ids.shape[1] - 1, packed.input_ids.shape[1] - 2])
    maps = attention_maps(reader, model_kwargs(reader, packed, kept), reader.probed_layers, queries)
    stock = [one for one in found.model(**given, output_attentions=True).attentions if one is not None]
    own = [number for number, layer in enumerate(reader.text_model.layers) if hasattr(layer, "self_attn")]
    for layer, weights in maps.items():
        assert torch.allclose(weights, stock[own.index(layer)][0][:, queries], atol=1e-5)
        assert (weights - weights.flip(1)).abs().max() > 1e-3  # control: the queries differ
    assert not any(module._forward_pre_hooks for module in found.model.modules())
