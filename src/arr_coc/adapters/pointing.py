"""Where an answer stands: the cells that the model looked at while it wrote the answer."""

from __future__ import annotations

from typing import Any

import torch

from arr_coc.adapters.base import Adapter
from arr_coc.adapters.scouting import attention_maps
from arr_coc.answer import Prepared
from arr_coc.errors import PromptError

LATE = 0.5  # layers from this depth on: the earlier ones gather the question


def point(adapter: Adapter, prepared: Prepared, answer: torch.Tensor, since: float = LATE) -> list[torch.Tensor]:
    """For each picture the attention `[N]` that its cells got from the answer's tokens `[A]`; 0 where nothing was kept.

    The prompt and the answer are read once more. Averaged over the answer's tokens, the heads, and the layers from depth
    `since` on; every picture's map is scaled to a largest value of 1.
    """
    if prepared.rows != 1:
        raise PromptError(f"expected a prompt of one row to point into, got {prepared.rows}")
    if not prepared.allocations or len(answer) == 0:
        return [torch.zeros(allocation.n) for allocation in prepared.allocations]
    given = prepared.make()
    answer = answer.to(adapter.device)[None]
    steps = torch.arange(1, answer.shape[1] + 1, device=adapter.device)
    given["input_ids"] = torch.cat([given["input_ids"], answer], 1)
    given["attention_mask"] = torch.cat([given["attention_mask"], torch.ones_like(answer)], 1)
    given["position_ids"] = torch.cat([given["position_ids"], given["position_ids"][..., -1:] + steps], -1)
    # The token before each of the answer's looks for it.
    queries = torch.arange(prepared.length - 1, prepared.length + answer.shape[1] - 1, device=adapter.device)
    total = _looked(adapter, given, queries, since)
    maps = []
    for allocation, places in zip(prepared.allocations, prepared.places, strict=True):
        seen = torch.zeros(allocation.n)
        seen[allocation.keep] = total[torch.searchsorted(prepared.source[0], places)]
        maps.append(seen / seen.max().clamp_min(1e-12))
    return maps


def _looked(adapter: Adapter, given: dict[str, Any], queries: torch.Tensor, since: float) -> torch.Tensor:
    """The attention that each token `[T]` gets from `queries`, averaged over heads, queries and late layers."""
    count = len(adapter.text_model.layers)
    maps = attention_maps(adapter, given, range(round(since * (count - 1)), count), lambda tokens: queries)
    return torch.stack([one.mean((0, 1)) for one in maps.values()]).mean(0)
