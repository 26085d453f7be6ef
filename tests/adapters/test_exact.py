"""Keeping every token is the stock model, bit for bit. Keeping some is the dense model with the others masked at every layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters.families import adapter
from tests.adapters.families import CASES, FAMILIES, model, prompt, shared_model
from tests.adapters.oracle import at_source, choose, dense, embedded, greedy, masked, positions, real, sparse

TOKENS = 20  # generated, under either attention

every_family = pytest.mark.parametrize("family", list(FAMILIES))
every_case = pytest.mark.parametrize(("family", "case"), CASES)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])


def some_cases(*names: str) -> Any:
    return pytest.mark.parametrize(("family", "case"), [(f, c) for f, c in CASES if c in names])


def error(reader: Any, inputs: dict[str, Any], keeps: list[torch.Tensor]) -> torch.Tensor:
    """The largest difference between the pruned prompt's logits and those of masking."""
    ours, source = sparse(reader, inputs, keeps)
    truth = reader.model(**masked(reader, inputs, keeps)).logits
    return (real(reader.model(**ours).logits, source) - at_source(truth, source)).abs().max()


@torch.no_grad()
@every_attention
@every_case
def test_keeping_all_is_the_stock_model(family: str, case: str, attention: str) -> None:
    stock, inputs = shared_model(family, attention), prompt(family, case)
    reader = adapter(stock)
    expected = stock(**dense(reader, inputs)).logits
    ours, _ = sparse(reader, inputs)
    assert torch.equal(stock(**ours).logits, expected)
    assert expected.std() > 0.1  # the logits are not all the same
    ours, _ = sparse(reader, inputs)
    assert torch.equal(greedy(stock, ours, TOKENS), greedy(stock, inputs, TOKENS))


@torch.no_grad()
@every_attention
@every_case
def test_keeping_some_is_masking_the_others(family: str, case: str, attention: str) -> None:
    stock, inputs = shared_model(family, attention), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, _ = sparse(reader, inputs, keeps)
    assert ours["input_ids"].shape[1] < inputs["input_ids"].shape[1]
    assert error(reader, inputs, keeps) < 1e-5
    theirs = masked(reader, inputs, keeps)
    assert torch.equal(greedy(stock, ours, TOKENS), greedy(stock, theirs, TOKENS))


@torch.no_grad()
@every_attention
@every_case
def test_the_oracle_fails_on_mistakes(family: str, case: str, attention: str) -> None:
    """Control: without these differences the other tests would prove nothing."""
    stock, inputs = shared_model(family, attention), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)

    def differs(logits: torch.Tensor) -> bool:
        return bool((logits - truth).abs().max() > 1e-2)

    assert differs(at_source(stock(**dense(reader, inputs)).logits, source)), "nothing dropped"
    rising = positions(ours["attention_mask"])
    rising = rising.expand(3, *rising.shape) if FAMILIES[family].mrope else rising
    assert differs(real(stock(**ours | {"position_ids": rising}).logits, source)), "positions renumbered"
    for output in ours["mm_encoder_outputs"].values():
        tokens = output.pooler_output
        output.pooler_output = tokens.flip(0) if isinstance(tokens, torch.Tensor) else tuple(t.flip(0) for t in tokens)
    assert differs(real(stock(**ours).logits, source)), "tokens in the wrong order"


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
def test_the_oracle_fails_without_deepstack(family: str) -> None:
    stock, inputs = shared_model(family), prompt(family, "image")
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    output = ours["mm_encoder_outputs"]["image"]
    output.deepstack_features = [tuple(torch.zeros_like(part) for part in level) for level in output.deepstack_features]
    truth = at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() > 1e-2


@torch.no_grad()
@some_cases("image", "two images", "mixed", "ragged")
def test_keeping_nothing_is_masking_every_cell(family: str, case: str) -> None:
    stock, inputs = shared_model(family), prompt(family, case)
    reader = adapter(stock)
    keeps = [torch.zeros(0, dtype=torch.long) for _ in reader.visuals(inputs)]
    assert error(reader, inputs, keeps) < 1e-5
    ours, theirs = sparse(reader, inputs, keeps)[0], masked(reader, inputs, keeps)
    assert torch.equal(greedy(stock, ours), greedy(stock, theirs))
    ours, theirs = sparse(reader, inputs, keeps)[0], embedded(reader, masked(reader, inputs, keeps))
    assert torch.equal(greedy(stock, ours, 5, num_beams=2), greedy(stock, theirs, 5, num_beams=2))


@torch.no_grad()
@some_cases("ragged", "two videos")
def test_beams_over_a_ragged_batch(family: str, case: str) -> None:
    stock, inputs = shared_model(family), prompt(family, case)
    reader = adapter(stock)
    keeps = choose(reader.visuals(inputs))
    keeps[0] = keeps[0][:1]
    ours, _ = sparse(reader, inputs, keeps)
    theirs = embedded(reader, masked(reader, inputs, keeps))
    assert torch.equal(greedy(stock, ours, 8, num_beams=2), greedy(stock, theirs, 8, num_beams=2))


@torch.no_grad()
@every_family
def test_one_picture_without_cells_among_whole_ones(family: str) -> None:
    inputs, reader = prompt(family, "ragged"), adapter(shared_model(family))
    keeps = [torch.arange(visual.n) for visual in reader.visuals(inputs)]
    keeps[1] = keeps[1][:0]
    assert error(reader, inputs, keeps) < 1e-5


@torch.no_grad()
@every_family
def test_right_padded_rows_are_packed_to_the_left(family: str) -> None:
    stock, left, right = shared_model(family), prompt(family, "ragged"), prompt(family, "ragged", side="right")
    reader = adapter(stock)
    keeps = choose(reader.visuals(left))
    ours, source = sparse(reader, left, keeps)
    again, source_again = sparse(reader, right, keeps)
    assert torch.equal(ours["input_ids"], again["input_ids"])
    assert (real(stock(**ours).logits, source) - real(stock(**again).logits, source_again)).abs().max() < 1e-5


@torch.no_grad()
@every_family
def test_right_padding_is_packed_even_when_all_is_kept(family: str) -> None:
    """The next token comes after the prompt, not after its padding."""
    stock, inputs = shared_model(family), prompt(family, "ragged", side="right")
    reader = adapter(stock)
    ours, source = sparse(reader, inputs)
    assert ours["attention_mask"][:, -1].all()
    truth = at_source(stock(**dense(reader, inputs)).logits, source)
    assert (real(stock(**ours).logits, source) - truth).abs().max() < 1e-5


@torch.no_grad()
@every_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(family: str, dtype: torch.dtype) -> None:
    """Keeping all stays exact. Keeping some differs from masking by rounding: sums run over other lengths."""
    stock, inputs = model(family).to(dtype), prompt(family, "two images")
    reader = adapter(stock)
    ours, _ = sparse(reader, inputs)
    expected = stock(**dense(reader, inputs)).logits
    assert torch.equal(stock(**ours).logits, expected)
    tolerance = {torch.bfloat16: 0.12, torch.float16: 0.02}[dtype]
    if not FAMILIES[family].mrope:
        tolerance = 0.05 * float(expected.float().std())
    assert error(reader, inputs, choose(reader.visuals(inputs))) < tolerance


@every_family
def test_gradients_reach_the_kept_pixels(family: str) -> None:
    stock, inputs = model(family), prompt(family, "image")
    reader = adapter(stock)
    pixels = inputs["pixel_values"].requires_grad_()
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    encoded = reader.encode(inputs, visuals, keeps if FAMILIES[family].glances else None, ())
    ours, _ = sparse(reader, inputs, keeps, encoded)
    stock(**ours).logits[:, -1].sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0
    if FAMILIES[family].mrope:
        touched = pixels.grad.view(-1, 4 * pixels.shape[-1]).abs().sum(1) > 0  # by cell
        assert touched.nonzero()[:, 0].tolist() == keeps[0].tolist()
