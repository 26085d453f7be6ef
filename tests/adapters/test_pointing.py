"""Where an answer stands is where the model's own attention went."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters.attention_probe import answer_attention
from arr_coc.errors import PromptError
from tests.adapters import tiny
from tests.adapters.tiny_vlm import GREEDY, picture, wrapped


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
def test_a_map_is_the_mean_of_the_model_s_attention(family: str) -> None:
    vlm = wrapped(family, "eager")
    prepared = vlm.prepare([picture(), picture(40, 64, 1)], "Which?", budget=["40%", "all"])
    answer = vlm.generate(prepared, **GREEDY)[0]
    maps = answer_attention(vlm.adapter, prepared, answer.ids, since=0.0)
    given = dict(prepared)
    steps = torch.arange(1, 13)
    with torch.no_grad():
        dense = vlm.model(
            input_ids=torch.cat([given["input_ids"], answer.ids[None]], 1),
            attention_mask=torch.ones(1, prepared.length + 12, dtype=torch.long),
            position_ids=torch.cat([given["position_ids"], given["position_ids"][..., -1:] + steps], -1),
            mm_encoder_outputs=given["mm_encoder_outputs"],
            output_attentions=True,
        )
    attention = torch.stack(dense.attentions)[:, 0, :, prepared.length - 1 : -1].mean((0, 1, 2))
    columns = (given["input_ids"][0] == tiny.IMAGE).nonzero()[:, 0]
    start = 0
    for allocation, found in zip(prepared.allocations, maps, strict=True):
        expected = torch.zeros(allocation.n)
        expected[allocation.keep] = attention[columns[start : start + allocation.k]]
        start += allocation.k
        assert torch.allclose(found, expected / expected.max(), atol=1e-5)


def test_nothing_to_point_at(vlm: Any) -> None:
    prepared = vlm.prepare(None, "Hello")
    assert vlm.point(prepared, vlm.generate(prepared, **GREEDY)[0]) == []
    prepared = vlm.prepare([picture()], "What?", budget=0)
    assert vlm.point(prepared, vlm.generate(prepared, **GREEDY)[0])[0].tolist() == [0.0] * 63
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())


def test_a_batch_is_refused(vlm: Any) -> None:
    prepared = vlm.prepare([[picture()], [picture()]], ["a", "b"])
    with pytest.raises(PromptError, match="one row, got 2"):
        vlm.point(prepared, vlm.generate(prepared, **GREEDY)[0])
