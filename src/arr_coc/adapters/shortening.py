"""What a language layer is told about a prompt's tokens, where some of them are gone."""

from __future__ import annotations

from typing import Any

import torch

from arr_coc.errors import SelectorError


def shortened(
    given: dict[str, Any], index: torch.Tensor, alive: torch.Tensor, length: int, prefill: bool
) -> dict[str, Any]:
    """A layer's keywords, made for a whole prompt of `length` tokens, cut to the places `index` `[B, L']` that are left.

    `alive` `[B, L']`: those that are not padding. `prefill`: the prompt itself is read, not what was generated after it.
    """
    made = dict(given)
    cache = given.get("past_key_values")
    if cache is not None and type(cache).__name__ != "DynamicCache":
        raise SelectorError(
            f"dropping tokens inside the language model needs a dynamic cache, got {type(cache).__name__}"
        )
    device = given["position_embeddings"][0].device
    index, alive = index.to(device), alive.to(device)
    if prefill:
        made["position_embeddings"] = tuple(
            table.expand(len(index), -1, -1).gather(1, index[..., None].expand(-1, -1, table.shape[-1]))
            for table in given["position_embeddings"]
        )
        if isinstance(given.get("position_ids"), torch.Tensor) and given["position_ids"].ndim == 2:
            made["position_ids"] = given["position_ids"].expand(len(index), -1).gather(1, index)
    made["attention_mask"] = _mask(given.get("attention_mask"), index, alive, length, prefill, cache)
    return made


def _mask(
    mask: torch.Tensor | None, index: torch.Tensor, alive: torch.Tensor, length: int, prefill: bool, cache: Any
) -> torch.Tensor | None:
    whole = bool(alive.all())
    if mask is None and whole:
        return None
    if mask is None:  # no padding before, but rows of different length now
        if prefill:
            square = torch.ones(index.shape[1], index.shape[1], dtype=torch.bool, device=index.device).tril()
            return _open_diagonal(square & alive[:, None, None])
        new = torch.ones(len(alive), _generated(cache, length), dtype=torch.bool, device=index.device)
        return torch.cat([alive, new], 1)[:, None, None]
    if mask.ndim == 2:
        return torch.cat([mask.gather(1, index) * alive, mask[:, length:]], 1)
    old, new = mask[..., :length].expand(len(index), -1, -1, -1), mask[..., length:]
    columns = old.gather(3, index[:, None, None].expand(-1, 1, old.shape[2], -1))
    dead = ~alive[:, None, None]
    columns = columns & ~dead if mask.dtype == torch.bool else columns.masked_fill(dead, torch.finfo(mask.dtype).min)
    if not prefill:
        return torch.cat([columns, new.expand(len(index), -1, -1, -1)], 3)
    rows = columns.gather(2, index[:, None, :, None].expand(-1, 1, -1, columns.shape[3]))
    return _open_diagonal(rows) if mask.dtype == torch.bool else rows


def _generated(cache: Any, length: int) -> int:
    """Tokens after the prompt, the one being read included; the first layer's cache has it already."""
    return int(cache.get_seq_length()) - length


def _open_diagonal(mask: torch.Tensor) -> torch.Tensor:
    """A padded query sees at least itself: attention over nothing is not a number."""
    return mask | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
