"""How much attention each cell receives inside the vision encoder, without asking the encoder for its attention maps.

The encoder runs as it always does. At the layers that a selector wants to see, queries and keys are computed once more
from what goes into the layer, and summed up in slices, so that no P x P map is ever held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

SLICE = 1024  # queries at a time


class Watch:
    """Collects the attention that patches receive at some depths (0: first block, 1: last) of an encoder's blocks."""

    def __init__(self, blocks: Any, depths: Sequence[float], group: int) -> None:
        self.blocks = blocks
        self.group = group  # patches per cell
        self.layers = {depth: round(depth * (len(blocks) - 1)) for depth in depths}
        self._seen: dict[int, torch.Tensor] = {}

    def see(
        self, number: int, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], lengths: Sequence[int]
    ) -> None:
        """Called with what goes into block `number`: hidden states `[P, D]` and the lengths of its segments."""
        if number not in self.layers.values():
            return
        block = self.blocks[number]
        attention = block.attn
        with torch.no_grad():
            parts = attention.qkv(block.norm1(hidden)).view(len(hidden), 3, attention.num_heads, -1)
            query, key = rotated(parts[:, 0], rotary), rotated(parts[:, 1], rotary)  # [P, H, D]
            received = [
                _received(q, k) for q, k in zip(query.split(list(lengths)), key.split(list(lengths)), strict=True)
            ]
        self._seen[number] = torch.cat(received)

    def cells(self) -> dict[float, torch.Tensor]:
        """Depth to each cell's mean over its patches: `[M]`, in the order in which the blocks hold them."""
        return {depth: self._seen[layer].view(-1, self.group).mean(1) for depth, layer in self.layers.items()}


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Let `watch` see what goes into the stock encoder's blocks, in this thread only and only inside the `with`."""
    thread = threading.get_ident()

    def seeing(number: int) -> Any:
        def hook(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() == thread:
                ends = kwargs["cu_seqlens"].tolist()
                lengths = [after - before for before, after in pairwise(ends)]
                watch.see(number, args[0], kwargs["position_embeddings"], lengths)

        return hook

    handles = [
        watch.blocks[number].register_forward_pre_hook(seeing(number), with_kwargs=True)
        for number in sorted(set(watch.layers.values()))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def rotated(heads: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions applied to `[P, H, D]`, computed in float32 as the stock encoders do."""
    cos, sin = (table.unsqueeze(-2).float() for table in rotary)
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(heads.dtype)


def _received(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Mean over heads and queries of the attention each key gets: `[P, H, D]` twice to `[P]`."""
    keys = key.permute(1, 2, 0).float()  # [H, D, P]
    total = torch.zeros(len(key), device=key.device)
    for some in query.split(SLICE):
        scores = some.transpose(0, 1).float() @ keys * query.shape[-1] ** -0.5  # [H, slice, P]
        total += scores.softmax(-1).mean(0).sum(0)
    return total / len(query)
