"""Where an answer stands: the cells that the model looked at while it wrote the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from arr_coc.adapters.attention_probe import attention_maps
from arr_coc.adapters.base import Adapter
from arr_coc.errors import PromptError
from arr_coc.types.answer import Prepared

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
    given = answered(prepared, answer)
    layers, queries = late_layers(adapter, since), writing(prepared, answer)
    total = together(attention_maps(adapter, given, layers, lambda tokens: queries))
    return [seen / seen.max().clamp_min(1e-12) for seen in by_picture(prepared, total)]


def answered(prepared: Prepared, answer: torch.Tensor) -> dict[str, Any]:
    """The model's keywords for a prompt of one row and the answer `[A]` behind it."""
    given = prepared.make()
    answer = answer.to(given["input_ids"].device)[None]
    steps = torch.arange(1, answer.shape[1] + 1, device=answer.device)
    given["input_ids"] = torch.cat([given["input_ids"], answer], 1)
    given["attention_mask"] = torch.cat([given["attention_mask"], torch.ones_like(answer)], 1)
    given["position_ids"] = torch.cat([given["position_ids"], given["position_ids"][..., -1:] + steps], -1)
    return given


def writing(prepared: Prepared, answer: torch.Tensor) -> torch.Tensor:
    """The tokens `[A]` that look for the answer's: the one before each."""
    first = prepared.length - 1
    return torch.arange(first, first + len(answer), device=prepared["input_ids"].device)


def late_layers(adapter: Adapter, since: float = LATE) -> range:
    """The layers from depth `since` on."""
    count = len(adapter.text_model.layers)
    return range(round(since * (count - 1)), count)


def together(maps: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """The attention that each token `[T]` gets, averaged over layers, heads and queries."""
    return torch.stack([one.mean((0, 1)) for one in maps.values()]).mean(0)


def by_picture(prepared: Prepared, tokens: torch.Tensor) -> list[torch.Tensor]:
    """What the tokens `[T]` got, for each picture by cell `[N]`; 0 where a cell was not kept."""
    maps = []
    for allocation, places in zip(prepared.allocations, prepared.places, strict=True):
        seen = torch.zeros(allocation.n)
        seen[allocation.keep] = tokens[torch.searchsorted(prepared.source[0], places)]
        maps.append(seen)
    return maps
