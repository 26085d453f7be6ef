"""Gaze: keeping everything is the stock model, keeping some is the dense model with the others masked at every layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters.families import adapter
from tests.adapters import tiny
from tests.adapters.oracle import at_source, choose, greedy, masked, real, sparse

FAMILIES = list(tiny.CONFIGS)
CASES = list(tiny.PROMPTS)


@pytest.fixture(scope="module", params=[(f, a) for f in FAMILIES for a in ("sdpa", "eager")], ids="-".join)
def model(request: Any) -> Any:
    return tiny.model(*request.param)


@pytest.fixture(params=CASES)
def inputs(request: Any, model: Any) -> dict[str, torch.Tensor]:
    return tiny.prompt(tiny.PROMPTS[request.param], model.config.model_type)


@torch.no_grad()
def test_keeping_all_is_the_stock_model(model: Any, inputs: dict[str, Any]) -> None:
    ours, _ = sparse(adapter(model), inputs)
    stock = model(**inputs).logits
    assert torch.equal(model(**ours).logits, stock)
    assert stock.std() > 0.1  # not all the same


@torch.no_grad()
def test_keeping_all_generates_what_the_stock_model_generates(model: Any, inputs: dict[str, Any]) -> None:
    ours, _ = sparse(adapter(model), inputs)
    assert torch.equal(greedy(model, ours), greedy(model, inputs))


@torch.no_grad()
def test_keeping_some_is_masking_the_others(model: Any, inputs: dict[str, Any]) -> None:
    reader = adapter(model)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    theirs = masked(reader, inputs, keeps)
    assert ours["input_ids"].shape[1] < inputs["input_ids"].shape[1]
    difference = real(model(**ours).logits, source) - at_source(model(**theirs).logits, source)
    assert difference.abs().max() < 1e-5
    assert torch.equal(greedy(model, ours), greedy(model, theirs))


@torch.no_grad()
def test_dropping_changes_the_answer(model: Any, inputs: dict[str, Any]) -> None:
    """Else none of the other tests would say anything."""
    reader = adapter(model)
    ours, source = sparse(reader, inputs, choose(reader.visuals(inputs)))
    assert (real(model(**ours).logits, source) - at_source(model(**inputs).logits, source)).abs().max() > 1e-2


@torch.no_grad()
def test_renumbered_positions_fail_the_oracle(model: Any, inputs: dict[str, Any]) -> None:
    reader = adapter(model)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    rising = (ours["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    wrong = model(**ours | {"position_ids": rising.expand(3, *rising.shape)}).logits
    truth = at_source(model(**masked(reader, inputs, keeps)).logits, source)
    assert (real(wrong, source) - truth).abs().max() > 1e-2


@torch.no_grad()
def test_tokens_in_the_wrong_order_fail_the_oracle(model: Any, inputs: dict[str, Any]) -> None:
    reader = adapter(model)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    for output in ours["mm_encoder_outputs"].values():
        output.pooler_output = tuple(tokens.flip(0) for tokens in output.pooler_output)
    truth = at_source(model(**masked(reader, inputs, keeps)).logits, source)
    assert (real(model(**ours).logits, source) - truth).abs().max() > 1e-2


@torch.no_grad()
def test_lost_deepstack_fails_the_oracle() -> None:
    model = tiny.model("qwen3_vl")
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["image"], "qwen3_vl")
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    output = ours["mm_encoder_outputs"]["image"]
    output.deepstack_features = [tuple(torch.zeros_like(part) for part in level) for level in output.deepstack_features]
    truth = at_source(model(**masked(reader, inputs, keeps)).logits, source)
    assert (real(model(**ours).logits, source) - truth).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_right_padded_rows_are_packed_to_the_left(family: str) -> None:
    model = tiny.model(family)
    reader = adapter(model)
    left = tiny.prompt(tiny.PROMPTS["ragged"], family)
    right = tiny.prompt(tiny.PROMPTS["ragged"], family, side="right")
    keeps = choose(reader.visuals(left))
    ours, source = sparse(reader, left, keeps)
    again, source_again = sparse(reader, right, keeps)
    assert torch.equal(ours["input_ids"], again["input_ids"])
    difference = real(model(**ours).logits, source) - real(model(**again).logits, source_again)
    assert difference.abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_right_padding_is_packed_even_when_all_is_kept(family: str) -> None:
    """The next token goes behind the prompt, not behind its padding."""
    model = tiny.model(family)
    inputs = tiny.prompt(tiny.PROMPTS["ragged"], family, side="right")
    ours, source = sparse(adapter(model), inputs)
    assert ours["attention_mask"][:, -1].all()
    difference = real(model(**ours).logits, source) - at_source(model(**inputs).logits, source)
    assert difference.abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ["image", "two images", "mixed", "ragged"])
def test_nothing_kept_is_masking_every_visual_token(family: str, case: str) -> None:
    model = tiny.model(family)
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS[case], family)
    keeps = [torch.zeros(0, dtype=torch.long) for _ in reader.visuals(inputs)]
    ours, source = sparse(reader, inputs, keeps)
    theirs = masked(reader, inputs, keeps)
    assert (real(model(**ours).logits, source) - at_source(model(**theirs).logits, source)).abs().max() < 1e-5
    assert torch.equal(greedy(model, ours), greedy(model, theirs))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.12), (torch.float16, 0.02)])
def test_half_precision(family: str, dtype: torch.dtype, tolerance: float) -> None:
    """Keeping all stays exact; keeping some differs from masking by rounding: sums run over other lengths."""
    model = tiny.model(family).to(dtype)
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["two images"], family)
    ours, _ = sparse(reader, inputs)
    assert torch.equal(model(**ours).logits, model(**inputs).logits)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = at_source(model(**masked(reader, inputs, keeps)).logits, source)
    assert (real(model(**ours).logits, source) - truth).abs().max() < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_flows_to_the_kept_features_only(family: str) -> None:
    model = tiny.model(family)
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["image"], family)
    pixels = inputs["pixel_values"].requires_grad_()
    keeps = choose(reader.visuals(inputs))
    encoded = reader.encode(inputs, reader.visuals(inputs), keeps, ())
    ours, _ = sparse(reader, inputs, keeps, encoded)
    model(**ours).logits[:, -1].sum().backward()
    assert pixels.grad is not None
    touched = pixels.grad.view(-1, 4 * pixels.shape[-1]).abs().sum(1) > 0  # by cell
    assert touched.nonzero()[:, 0].tolist() == keeps[0].tolist()
