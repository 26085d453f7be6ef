"""FlashAttention's code path in transformers, with a slow implementation of its two functions on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash

import arr_coc
from arr_coc.adapters import llava
from arr_coc.adapters.families import adapter
from arr_coc.errors import ModelError
from tests.adapters import families
from tests.adapters.oracle import at_source, choose, dense, greedy, masked, real, sparse
from tests.adapters.tiny_vlm import GREEDY, picture, processor, wrapped

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
@pytest.mark.parametrize(("family", "case"), [(f, c) for f, c in families.CASES if c in ("image", "ragged", "video")])
def test_the_oracles_hold_under_flash_attention(family: str, case: str) -> None:
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
@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_selections_under_flash_attention_are_those_of_sdpa(family: str, options: dict[str, Any]) -> None:
    ours = arr_coc.wrap(flash_model(family), processor(family))
    given = {"budget": "40%", **options, **GREEDY}
    plain, found = (vlm.ask(picture(), QUESTION, **given) for vlm in (wrapped(family), ours))
    assert found.allocation.keep.tolist() == plain.allocation.keep.tolist()
    assert found.ids.tolist() == plain.ids.tolist()


@pytest.mark.usefixtures("flash_attention")
@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_rows_that_differ_after_a_layer_get_a_padding_mask(family: str) -> None:
    ours = arr_coc.wrap(flash_model(family), processor(family))
    given: Any = {"budget": [4, 11], "selector": "fastv", **GREEDY}
    pictures = [[picture(seed=1)], [picture(seed=2)]]
    plain, found = (vlm.generate(pictures, [QUESTION, QUESTION], **given) for vlm in (wrapped(family), ours))
    assert [answer.ids.tolist() for answer in found] == [answer.ids.tolist() for answer in plain]
    assert [answer.allocation.k for answer in found] == [4, 11]


@pytest.fixture
def splitting_at_gaps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A transformers that reads a gap in the positions as the start of another text."""

    def split(positions: torch.Tensor) -> Any:
        gaps = (positions[0].diff() != 1).nonzero()[:, 0] + 1
        ends = torch.tensor([0, *gaps.tolist(), positions.shape[1]], dtype=torch.int32)
        return (ends, ends), (ends.diff().max(), ends.diff().max())

    monkeypatch.setattr(flash, "prepare_fa_kwargs_from_position_ids", split)
    check = llava._flash_allows_gaps
    check.cache_clear()
    yield
    check.cache_clear()


@pytest.mark.usefixtures("splitting_at_gaps")
@pytest.mark.parametrize("name", ["flash_attention_2", "kernels-community/flash-attn2"])
def test_a_transformers_that_splits_at_gaps_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"got '{name}', .*reads a gap in the positions"):
        arr_coc.wrap(flash_model("llava", text=name))


@torch.no_grad()
@pytest.mark.usefixtures("flash_attention", "splitting_at_gaps")
def test_the_oracle_fails_where_transformers_splits_at_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llava, "_flash_allows_gaps", lambda: True)
    model, inputs = flash_model("llava"), families.prompt("llava", "image")
    reader = adapter(model)
    keeps = choose(reader.visuals(inputs))
    ours, source = sparse(reader, inputs, keeps)
    truth = families.shared_model("llava")(**masked(reader, inputs, keeps)).logits
    assert (real(model(**ours).logits, source) - at_source(truth, source)).abs().max() > 1e-2
