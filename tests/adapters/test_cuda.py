"""The same oracles on an accelerator, where other kernels run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.adapters.encoder import Segments
from arr_coc.adapters.families import adapter
from tests.adapters.families import QWEN, model, prompt
from tests.adapters.oracle import at_source, choose, encoder_truth, masked, on_host, real, sparse
from tests.adapters.tiny_vlm import GREEDY, picture, processor
from tests.precision import full_precision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture
def exact() -> Iterator[None]:
    with full_precision():
        yield


@torch.no_grad()
@pytest.mark.parametrize("family", QWEN)
@pytest.mark.parametrize("case", ["image", "two images", "ragged", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeping_all_is_the_stock_model(family: str, case: str, dtype: torch.dtype) -> None:
    stock = model(family).to("cuda", dtype)
    inputs = {name: value.cuda() for name, value in prompt(family, case).items()}
    ours, _ = sparse(adapter(stock), inputs)
    assert torch.equal(stock(**ours).logits, stock(**inputs).logits)


@torch.no_grad()
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("family", QWEN)
@pytest.mark.parametrize("case", ["image", "ragged"])
def test_keeping_some_is_masking_the_others(family: str, case: str) -> None:
    stock = model(family).cuda()
    reader = adapter(stock)
    inputs = {name: value.cuda() for name, value in prompt(family, case).items()}
    keeps = choose(reader.visuals(on_host(reader, inputs)))
    ours, source = sparse(reader, inputs, keeps)
    difference = real(stock(**ours).logits, source) - at_source(stock(**masked(reader, inputs, keeps)).logits, source)
    assert difference.abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("family", QWEN)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_encoding_some_cells_is_masking_the_other_patches(family: str, dtype: torch.dtype, tolerance: float) -> None:
    reader = adapter(model(family).to("cuda", dtype))
    inputs = {name: value.cuda() for name, value in prompt(family, "ragged").items()}
    inputs = on_host(reader, inputs)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected = encoder_truth(family, adapter(model(family)), prompt(family, "ragged"), keeps)
    for seen, (tokens, _) in zip(reader.encode(inputs, visuals, keeps, ()), expected, strict=True):
        assert (seen.tokens.cpu().float() - tokens).abs().max() < tolerance


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[64], [64] * 9, [64, 3, 17, 1, 40]])
def test_packed_segments_are_separate_segments(lengths: list[int]) -> None:
    parts = torch.randn(3, sum(lengths), 4, 80, device="cuda", dtype=torch.bfloat16)
    fast = Segments(torch.tensor(lengths), parts.device, parts.dtype).attend(*parts)
    slow = Segments(torch.tensor(lengths), torch.device("cpu"), torch.float32).attend(*parts.cpu().float())
    assert (fast.cpu().float() - slow).abs().max() < 0.05


@pytest.mark.parametrize("family", QWEN)
def test_an_answer_on_the_device_is_the_answer_on_the_cpu(family: str) -> None:
    """Every stage once, in float32: glance, gaze, a look, a follow-up, the answer's place."""
    slow = arr_coc.wrap(model(family), processor(family))
    fast = arr_coc.wrap(model(family).cuda(), processor(family))
    options: dict[str, Any] = {"budget": "30%", "glance": "60%", **GREEDY}
    first = [vlm.ask(picture(), "What is it?", remember=True, **options) for vlm in (slow, fast)]
    assert first[0].ids.tolist() == first[1].ids.tolist()
    second = [vlm.ask(None, "Why?", after=one, **GREEDY) for vlm, one in zip((slow, fast), first, strict=True)]
    assert second[0].ids.tolist() == second[1].ids.tolist()
    several = [vlm.ask(vlm.look(picture()), ["What?", "Where is it?"], **options) for vlm in (slow, fast)]
    assert [a.ids.tolist() for a in several[0]] == [a.ids.tolist() for a in several[1]]
    assert all(milliseconds >= 0 for milliseconds in first[1].timings.values())
    prepared = fast.prepare([picture()], "What?", budget="30%")
    assert fast.point(prepared, fast.generate(prepared, **GREEDY)[0])[0].max() == 1
