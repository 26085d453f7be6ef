"""FlashAttention's code path in transformers, with a slow implementation of its two functions on the CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash

import arr_coc
from arr_coc.adapters.families import adapter
from arr_coc.adapters.llava import Llava
from arr_coc.errors import ModelError
from tests.adapters import families
from tests.adapters.oracle import at_source, choose, dense, greedy, masked, real, sparse
from tests.adapters.tiny_vlm import FLAT, GREEDY, picture, processor, wrapped

QUESTION = "How many grey cats sit on the table?"


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`flash_attn_func`: `[B, S, H, D]`; a causal mask is aligned to the last query and key."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    mask = mask.tril(k.shape[2] - q.shape[2]) if causal else mask
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=softmax_scale)
    return out.transpose(1, 2)


def attend_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`flash_attn_varlen_func`: `[S, H, D]`, sequences one after another."""
    bounds = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    parts = [
        attend(q[None, a:b], k[None, c:d], v[None, c:d], softmax_scale=softmax_scale, causal=causal)[0]
        for (a, b), (c, d) in bounds
    ]
    return torch.cat(parts)


@pytest.fixture
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = (attend, attend_varlen, None, flash._pad_input, flash._unpad_input)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: functions)
    monkeypatch.setattr(flash, "_loaded_implementation", None)


def flash_model(family: str, text: str = "flash_attention_2", vision: str = "flash_attention_2") -> Any:
    model = families.model(family)
    for config in (model.config, model.config.get_text_config()):
        config._attn_implementation = text
    model.config.vision_config._attn_implementation = vision
    return model


@torch.no_grad()
@pytest.mark.usefixtures("flash_attention")
@pytest.mark.parametrize("case", ["image", "ragged", "video"])
@pytest.mark.parametrize("family", families.QWEN)
def test_qwen_under_flash_attention_is_exact(family: str, case: str) -> None:
    model, inputs = flash_model(family), families.prompt(family, case)
    reader = adapter(model)
    ours, source = sparse(reader, inputs)
    expected = model(**dense(reader, inputs)).logits
    assert torch.equal(real(model(**ours).logits, source), at_source(expected, source))
    plain = families.shared_model(family)
    assert (at_source(plain(**dense(reader, inputs)).logits - expected, source)).abs().max() < 1e-4
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = plain(**masked(adapter(plain), inputs, keeps)).logits
    assert (real(model(**ours).logits, source) - at_source(truth, source)).abs().max() < 1e-4
    theirs = masked(adapter(plain), inputs, keeps)
    assert torch.equal(greedy(model, ours, 8), greedy(plain, theirs, 8))


@pytest.mark.usefixtures("flash_attention")
@pytest.mark.parametrize("options", [{}, {"glance": "60%"}, {"selector": "fastv"}, {"selector": "visionzip"}])
def test_selections_under_flash_attention_are_those_of_sdpa(options: dict[str, Any]) -> None:
    ours = arr_coc.wrap(flash_model("qwen2_5_vl"), processor("qwen2_5_vl"))
    given = {"budget": "40%", **options, **GREEDY}
    plain, found = (vlm.ask(picture(), QUESTION, **given) for vlm in (wrapped("qwen2_5_vl"), ours))
    assert found.allocation.keep.tolist() == plain.allocation.keep.tolist()
    assert found.ids.tolist() == plain.ids.tolist()


@pytest.mark.parametrize("family", [name for name in FLAT if name != "llava_padded"])
@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2"])
def test_families_with_one_position_per_token_are_refused(family: str, name: str) -> None:
    with pytest.raises(ModelError, match="reads a gap in the positions"):
        arr_coc.wrap(flash_model(family, text=name))


@torch.no_grad()
@pytest.mark.usefixtures("flash_attention")
def test_the_reason_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the refusal, dropped tokens split the prompt in two."""
    monkeypatch.setattr(Llava, "_check_attention", lambda self: None)
    model, inputs = flash_model("llava"), families.prompt("llava", "image")
    reader = adapter(model)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = families.shared_model("llava")(**masked(reader, inputs, keeps)).logits
    assert (real(model(**ours).logits, source) - at_source(truth, source)).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.usefixtures("flash_attention")
@pytest.mark.parametrize("family", ["llava", "internvl", "idefics3"])
def test_their_encoders_may_use_it(family: str) -> None:
    model, inputs = flash_model(family, text="sdpa"), families.prompt(family, "image")
    reader, plain = adapter(model), adapter(families.shared_model(family))
    visuals = reader.visuals(inputs)
    for cells in (None, choose(visuals)):
        [ours], [theirs] = (one.encode(inputs, visuals, cells, (0.5,)) for one in (reader, plain))
        assert (ours.tokens - theirs.tokens).abs().max() < 1e-4
        assert (ours.attention[0.5] - theirs.attention[0.5]).abs().max() < 1e-5
