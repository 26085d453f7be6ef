"""The same oracles on an accelerator, where other kernels run."""

from __future__ import annotations

import pytest
import torch

from arr_coc.adapters.families import adapter
from arr_coc.adapters.segments import Segments
from tests.adapters import tiny
from tests.adapters.oracle import at_source, choose, masked, real, sparse
from tests.adapters.test_glance import truth

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
FAMILIES = list(tiny.CONFIGS)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ["image", "two images", "ragged", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeping_all_is_the_stock_model(family: str, case: str, dtype: torch.dtype) -> None:
    model = tiny.model(family).to("cuda", dtype)
    inputs = {name: value.cuda() for name, value in tiny.prompt(tiny.PROMPTS[case], family).items()}
    ours, _ = sparse(adapter(model), inputs)
    assert torch.equal(model(**ours).logits, model(**inputs).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ["image", "ragged"])
def test_keeping_some_is_masking_the_others(family: str, case: str) -> None:
    model = tiny.model(family).cuda()
    reader = adapter(model)
    inputs = {name: value.cuda() for name, value in tiny.prompt(tiny.PROMPTS[case], family).items()}
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    difference = real(model(**ours).logits, source) - at_source(model(**masked(reader, inputs, keeps)).logits, source)
    assert difference.abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_encoding_some_cells_is_masking_the_other_patches(family: str, dtype: torch.dtype, tolerance: float) -> None:
    reader = adapter(tiny.model(family).to("cuda", dtype))
    inputs = {name: value.cuda() for name, value in tiny.prompt(tiny.PROMPTS["ragged"], family).items()}
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    slow = tiny.model(family)
    expected = truth(slow, tiny.prompt(tiny.PROMPTS["ragged"], family), keeps)
    for visual, seen in zip(visuals, reader.encode(inputs, visuals, keeps, ()), strict=True):
        assert (seen.tokens.cpu().float() - expected["image", visual.number][0]).abs().max() < tolerance


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[64], [64] * 9, [64, 3, 17, 1, 40]])
def test_packed_segments_are_separate_segments(lengths: list[int]) -> None:
    parts = torch.randn(3, sum(lengths), 4, 80, device="cuda", dtype=torch.bfloat16)
    fast = Segments(torch.tensor(lengths), parts.device, parts.dtype).attend(*parts)
    slow = Segments(torch.tensor(lengths), torch.device("cpu"), torch.float32).attend(*parts.cpu().float())
    assert (fast.cpu().float() - slow).abs().max() < 0.05
