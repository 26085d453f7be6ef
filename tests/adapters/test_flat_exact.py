"""Gaze, for every family with one position per token: keeping all is the stock model, keeping some is masking the others."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from arr_coc.adapters.families import adapter
from tests.adapters import tiny_llava as tiny
from tests.adapters.masking import dense, embedded, masked, positions
from tests.adapters.oracle import at_source, choose, greedy, real, sparse

FAMILIES = tiny.FAMILIES
CASES = [(family, case) for family in FAMILIES for case in tiny.PROMPTS]
CASES += [("llava_onevision", case) for case in tiny.FILMS]
RAGGED = [(family, "ragged") for family in FAMILIES]

model = lru_cache(tiny.model)


def prompt(family: str, case: str, **options: Any) -> dict[str, Any]:
    return tiny.prompt((tiny.PROMPTS | tiny.FILMS)[case], family, **options)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("family", "case"), CASES)
def test_keeping_all_is_the_stock_model(family: str, case: str, attention: str) -> None:
    stock, inputs = model(family, attention), prompt(family, case)
    expected = stock(**dense(inputs)).logits
    ours, _ = sparse(adapter(stock), inputs)
    assert torch.equal(stock(**ours).logits, expected)
    assert expected.std() > 0.1  # not all the same


@torch.no_grad()
@pytest.mark.parametrize(("family", "case"), CASES)
def test_keeping_all_generates_what_the_stock_model_generates(family: str, case: str) -> None:
    stock, inputs = model(family), prompt(family, case)
    ours, _ = sparse(adapter(stock), inputs)
    assert torch.equal(greedy(stock, ours, 8), greedy(stock, inputs, 8))


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("family", "case"), CASES)
def test_keeping_some_is_masking_the_others(family: str, case: str, attention: str) -> None:
    stock, inputs = model(family, attention), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    theirs = masked(reader, inputs, keeps)
    truth = at_source(stock(**theirs).logits, source)
    assert ours["input_ids"].shape[1] < inputs["input_ids"].shape[1]
    assert (real(stock(**ours).logits, source) - truth).abs().max() < 1e-5
    whole = at_source(stock(**dense(inputs)).logits, source)
    assert (whole - truth).abs().max() > 1e-2  # dropping does change what is said
    if attention == "sdpa":
        assert torch.equal(greedy(stock, ours), greedy(stock, theirs))


@torch.no_grad()
@pytest.mark.parametrize(("family", "case"), RAGGED)
def test_renumbered_positions_fail_the_oracle(family: str, case: str) -> None:
    stock, inputs = model(family), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    wrong = ours | {"position_ids": positions(ours["attention_mask"])}
    assert (real(stock(**wrong).logits, source) - truth).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize(("family", "case"), [*RAGGED, ("llava_onevision", "video")])
def test_tokens_in_the_wrong_order_fail_the_oracle(family: str, case: str) -> None:
    stock, inputs = model(family), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    for output in ours["mm_encoder_outputs"].values():
        tokens = output.pooler_output
        output.pooler_output = tokens.flip(0) if isinstance(tokens, torch.Tensor) else tuple(t.flip(0) for t in tokens)
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize(("family", "case"), [*RAGGED, ("llava_onevision", "mixed")])
def test_nothing_kept_is_masking_every_cell(family: str, case: str) -> None:
    stock, inputs = model(family), prompt(family, case)
    reader = adapter(stock)
    keeps = [torch.zeros(0, dtype=torch.long) for _ in reader.visuals(inputs)]
    theirs = masked(reader, inputs, keeps)
    ours, source = sparse(reader, inputs, keeps)
    assert (real(stock(**ours).logits, source) - at_source(stock(**theirs).logits, source)).abs().max() < 1e-5
    assert torch.equal(greedy(stock, ours, 8), greedy(stock, theirs, 8))
    beams, _ = sparse(reader, inputs, keeps)
    assert torch.equal(greedy(stock, beams, 5, num_beams=2), greedy(stock, embedded(stock, theirs), 5, num_beams=2))


@torch.no_grad()
@pytest.mark.parametrize(("family", "case"), [*RAGGED, ("llava_onevision", "two videos")])
def test_beams_of_a_ragged_batch(family: str, case: str) -> None:
    stock, inputs = model(family), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    keeps[0] = keeps[0][:1]
    ours, _ = sparse(reader, inputs, keeps)
    theirs = embedded(stock, masked(reader, inputs, keeps))
    assert torch.equal(greedy(stock, ours, 8, num_beams=2), greedy(stock, theirs, 8, num_beams=2))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_one_picture_without_a_cell_beside_a_whole_one(family: str) -> None:
    stock, inputs = model(family), prompt(family, "ragged")
    reader = adapter(stock)
    keeps = [torch.arange(visual.n) for visual in reader.visuals(inputs)]
    keeps[1] = keeps[1][:0]
    ours, source = sparse(reader, inputs, keeps)
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_right_padded_rows_are_packed_to_the_left(family: str) -> None:
    stock = model(family)
    reader = adapter(stock)
    left, right = prompt(family, "ragged"), prompt(family, "ragged", side="right")
    keeps = choose(reader.visuals(left))
    ours, source = sparse(reader, left, keeps)
    again, source_again = sparse(reader, right, keeps)
    assert torch.equal(ours["input_ids"], again["input_ids"])
    assert (real(stock(**ours).logits, source) - real(stock(**again).logits, source_again)).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16(family: str) -> None:
    """Keeping all stays exact; keeping some differs from masking by rounding: sums run over other lengths."""
    stock = tiny.model(family).to(torch.bfloat16)
    reader = adapter(stock)
    inputs = prompt(family, "two images")
    ours, _ = sparse(reader, inputs)
    expected = stock(**dense(inputs)).logits
    assert torch.equal(stock(**ours).logits, expected)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() < 0.05 * expected.float().std()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_flows_to_the_pixels(family: str) -> None:
    stock, inputs = model(family), prompt(family, "image")
    reader = adapter(stock)
    pixels = inputs["pixel_values"].requires_grad_()
    ours, _ = sparse(reader, inputs, choose(reader.visuals(inputs)))
    stock(**ours).logits[:, -1].sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0
    stock.zero_grad()
