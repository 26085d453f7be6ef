"""What a layer of the language model attends to, for a few of its tokens, whatever attention the model runs with."""

from __future__ import annotations

from typing import Any

import torch


def causal_attention(
    layer: Any, entered: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, queries: torch.Tensor
) -> torch.Tensor:
    """Attention of the tokens `queries` `[Q]` over what enters a decoder layer: `[T, D]` to `[heads, Q, T]`.

    `cos` and `sin` `[T, d]` are the tokens' rotary positions.
    """
    attention = layer.self_attn
    states = layer.input_layernorm(entered)
    query = _heads(attention, "q", states[queries], cos[queries], sin[queries])
    key = _heads(attention, "k", states, cos, sin).repeat_interleave(attention.num_key_value_groups, 0)
    scores = query @ key.transpose(1, 2) * attention.scaling
    ahead = torch.arange(len(states), device=queries.device)[None] > queries[:, None]
    return scores.float().masked_fill(ahead, -torch.inf).softmax(-1)


def _heads(attention: Any, which: str, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys with their positions: `[T, D]` to `[H, T, d]`."""
    heads = getattr(attention, f"{which}_proj")(states).view(len(states), -1, attention.head_dim)
    norm = getattr(attention, f"{which}_norm", None)
    heads = (heads if norm is None else norm(heads)).transpose(0, 1)
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
