"""Encoder, prefill and decoding can be captured as CUDA graphs, and recorded answers make the host wait for nothing: on a GPU
that does not exist."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from arr_coc.adapters import static
from arr_coc.adapters.base import Encoded
from arr_coc.adapters.families import adapter
from arr_coc.adapters.static import DecodeStep, EncoderShape, Prefill, PromptShape, SparseEncoder, StaticCache
from arr_coc.devices import Stopwatch
from arr_coc.vlm.recording import Recordings
from tests.adapters.families import QWEN, Row, prompt, shared_model
from tests.adapters.oracle import choose
from tests.capturing import DEVICE, FakeGpu, Refused, Waits, capture, fake_gpu, weights_of

ROWS: list[Row] = [[("image", 96, 80), 40, 41, 42, 43], [("image", 64, 128), 50, 51]]
PROMPT = PromptShape(2, 12, 40, 8)

every_family = pytest.mark.parametrize("family", QWEN)


@every_family
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_encoder_can_be_captured(family: str, exact: bool, dtype: torch.dtype) -> None:
    real = copy.deepcopy(shared_model(family)).to(dtype)
    with fake_gpu() as gpu:
        model = gpu.module(real)
        encoder = SparseEncoder(adapter(model), EncoderShape(2, 12, exact))
        tokens, *_ = capture(encoder, encoder.buffers(), weights_of(model))
        assert (tokens.shape[:2], tokens.dtype, tokens.device) == ((2, 12), dtype, DEVICE)


@every_family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_prefill_and_decoding_can_be_captured(family: str, attention: str) -> None:
    real = shared_model(family, attention)
    with fake_gpu() as gpu:
        model = gpu.module(real)
        reader, cache = adapter(model), StaticCache(adapter(model), PROMPT)
        for maker in (Prefill(reader, PROMPT, cache), DecodeStep(reader, PROMPT, cache)):
            (logits,) = capture(maker, maker.buffers(), weights_of(model), cache)
            assert logits.shape == (2, model.config.text_config.vocab_size)


KEPT: list[torch.Tensor] = []


def branch(hidden: torch.Tensor) -> torch.Tensor:
    return hidden + 1 if hidden.sum() > 0 else hidden


FAULTS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a value": (lambda hidden: hidden * hidden.sum().item(), "item waits"),
    "a branch": (branch, "__bool__ waits"),
    "a size": (lambda hidden: hidden.nonzero(), "nonzero waits"),
    "a mask": (lambda hidden: hidden[hidden > 0], "index by a mask waits"),
    "a filled mask": (lambda hidden: hidden.clone().__setitem__(hidden > 0, hidden.sum()), "index_put_ by a mask waits"),
    "distinct values": (lambda hidden: hidden.unique(), "_unique2 waits"),
    "repeats": (lambda hidden: hidden.flatten().repeat_interleave(torch.ones(hidden.numel(), device=DEVICE).long()), "repeat"),
    "a list of indices": (lambda hidden: hidden[[0, 0]], "_to_copy copies from cpu to cuda|index by a tensor on cpu"),
    "a constant": (lambda hidden: hidden + torch.tensor([1.0], device=DEVICE), "copies from cpu to cuda"),
    "a copy to the host": (lambda hidden: hidden.to("cpu"), "copies from cuda to cpu"),
    "chance": (lambda hidden: hidden + torch.rand(hidden.shape, device=DEVICE), "rand draws random numbers"),
    "kept memory": (lambda hidden: KEPT.append(hidden * 2), "is kept after the capture"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """Control: in a layer of the language model, where nobody would look for it."""
    plant, message = FAULTS[fault]
    real = shared_model("qwen2_vl")
    with fake_gpu() as gpu:
        model = gpu.module(real)
        reader = adapter(model)
        norm = reader.text_model.layers[1].input_layernorm
        forward = norm.forward

        def faulty(hidden: torch.Tensor) -> Any:
            plant(hidden)
            return forward(hidden)

        norm.forward = faulty
        cache = StaticCache(reader, PROMPT)
        prefill = Prefill(reader, PROMPT, cache)
        with pytest.raises(Refused, match=message):
            capture(prefill, prefill.buffers(), weights_of(model), cache)
    KEPT.clear()


def test_memory_that_the_graph_does_not_hold_is_found() -> None:
    """Control: a cache that nobody keeps would be freed, and the graph would write to it."""
    real = shared_model("qwen2_vl")
    with fake_gpu() as gpu:
        model = gpu.module(real)
        cache = StaticCache(adapter(model), PROMPT)
        prefill = Prefill(adapter(model), PROMPT, cache)
        with pytest.raises(Refused, match="neither an input nor made in the capture"):
            capture(prefill, prefill.buffers(), weights_of(model))


@every_family
@pytest.mark.parametrize("ends", [None, [5, 7]])
def test_the_host_waits_for_nothing(family: str, ends: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding, prefill and decoding from recordings. With end tokens the host asks once a token, after the next one's launch."""
    inputs, real = prompt(family, ROWS), shared_model(family)
    on_host = adapter(real)
    visuals = on_host.visuals(inputs)
    keeps = [keep[:6] for keep in choose(visuals)]
    grids = [visual.grid.views[0] for visual in visuals]
    index, windows = on_host._index(grids, keeps), None  # the host's work, whose values decide about shapes
    if family == "qwen2_5_vl":
        windows = static._windows(on_host, grids, keeps)
    with fake_gpu() as gpu, torch.no_grad():
        reader = adapter(gpu.module(real))
        fake = {name: gpu.mode.from_tensor(one) for name, one in vars(index).items() if isinstance(one, torch.Tensor)}
        monkeypatch.setattr(type(reader), "_index", lambda *given: replace(index, **fake))
        monkeypatch.setattr(static, "_windows", lambda *given: gpu.mode.from_tensor(windows))
        recordings = Recordings(reader, 8)
        cost = recordings.add([EncoderShape(2, 6, True), EncoderShape(2, 8, False), PROMPT])
        assert (cost.graphs, gpu.graphs) == (3, 4)
        there = {name: gpu.mode.from_tensor(one) for name, one in inputs.items()}
        cells = [gpu.mode.from_tensor(keep) for keep in keeps]
        with Waits():
            encoded = recordings.encode(there, visuals, cells, ())
        assert encoded is not None, recordings.skipped
        given, deep = _packed(gpu, reader, encoded)
        options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": ends, "pad_token_id": 0}
        with Waits():
            made = recordings._decode(
                PROMPT, recordings._entries[PROMPT], given, ([one.tokens for one in encoded], deep),  # type: ignore[arg-type]
                Stopwatch(torch.device("cpu")), options, lambda ids, scores: None,
            )  # fmt: skip
        assert made.shape == (2, 20 + 6)
        assert gpu.asked == (5 if ends else 0)


def _packed(
    gpu: FakeGpu, reader: Any, encoded: list[Encoded]
) -> tuple[dict[str, torch.Tensor], list[list[torch.Tensor]]]:
    given = {
        "input_ids": torch.zeros(2, 20, dtype=torch.long, device=DEVICE),
        "attention_mask": torch.ones(2, 20, dtype=torch.long, device=DEVICE),
        "position_ids": torch.zeros(3, 2, 20, dtype=torch.long, device=DEVICE),
    }
    return given, [[one.deep[level] for one in encoded] for level in range(reader.deep_layers)]
