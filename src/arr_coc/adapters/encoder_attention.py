"""The attention that each cell receives inside the vision encoder, without the encoder's attention maps.

The encoder runs unchanged. At the layers that a selector asks for, queries and keys are computed a second time from the
layer's input. Their softmax is summed in slices, so no P x P map is ever held.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from arr_coc.adapters.base import pre_hooks

SLICE = 1024  # queries at a time


class Recorder:
    """Records at some depths (0: first block, 1: last) of an encoder that attends inside segments of patches (Qwen)."""

    def __init__(self, blocks: Any, depths: Sequence[float], group: int) -> None:
        self.blocks = blocks
        self.group = group  # patches per cell
        self.layers = {depth: round(depth * (len(blocks) - 1)) for depth in depths}
        self._received: dict[int, torch.Tensor] = {}

    def record(
        self, number: int, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], lengths: Sequence[int]
    ) -> None:
        """Take block `number`'s input: hidden states `[P, D]`, rotary tables, and the lengths of its segments."""
        if number not in self.layers.values():
            return
        block = self.blocks[number]
        with torch.no_grad():
            parts = block.attn.qkv(block.norm1(hidden)).view(len(hidden), 3, block.attn.num_heads, -1)
            query, key = (apply_rotary(parts[:, i], rotary).split(list(lengths)) for i in (0, 1))  # [P, H, D]
            self._received[number] = torch.cat([received_attention(q, k) for q, k in zip(query, key, strict=True)])

    def attached(self) -> AbstractContextManager[None]:
        """Inside the `with`, record what goes into the stock encoder's blocks."""

        def hook(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            lengths = [end - start for start, end in pairwise(kwargs["cu_seqlens"].tolist())]
            self.record(number, args[0], kwargs["position_embeddings"], lengths)

        return pre_hooks({number: self.blocks[number] for number in self.layers.values()}, hook)

    def cells(self) -> dict[float, torch.Tensor]:
        """Depth -> each cell's mean over its patches `[M]`, in the blocks' order."""
        return {depth: self._received[layer].view(-1, self.group).mean(1) for depth, layer in self.layers.items()}


@dataclass(frozen=True)
class BlockNames:
    """The attribute names inside a plain ViT block, and whether its `forward` takes an attention mask."""

    norm: str
    attention: str
    takes_mask: bool


CLIP_BLOCK = BlockNames("layer_norm1", "self_attn", takes_mask=True)  # CLIP, SigLIP, Idefics3, SmolVLM
INTERN_BLOCK = BlockNames("layernorm_before", "attention", takes_mask=False)


class TileRecorder:
    """Records at some depths of a plain ViT, in which each tile is an entry of the batch."""

    def __init__(self, blocks: Sequence[Any], names: BlockNames, depths: Sequence[float]) -> None:
        self.blocks = blocks
        self.names = names
        self.layers = {depth: round(depth * (len(blocks) - 1)) for depth in depths}
        self._received: dict[tuple[int, int], torch.Tensor] = {}  # (block, tile) -> [s]

    def record(self, number: int, hidden: torch.Tensor, tiles: Sequence[int]) -> None:
        """Take block `number`'s input `[G, s, D]`, one entry for each of `tiles`."""
        if number not in self.layers.values():
            return
        block = self.blocks[number]
        attention = getattr(block, self.names.attention)
        with torch.no_grad():
            for tile, tokens in zip(tiles, getattr(block, self.names.norm)(hidden), strict=True):
                query, key = (_project(attention, which, tokens) for which in "qk")
                self._received[number, tile] = received_attention(query, key)

    def attached(self) -> AbstractContextManager[None]:
        """Inside the `with`, record what goes into the stock encoder's blocks."""

        def hook(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.record(number, args[0], range(len(args[0])))

        return pre_hooks({number: self.blocks[number] for number in self.layers.values()}, hook)

    def tile(self, tile: int) -> dict[float, torch.Tensor]:
        """Depth -> what each token of a tile receives `[s]`; empty tensors for a tile that was not encoded."""
        device = next(iter(self._received.values())).device if self._received else None
        none = torch.zeros(0, device=device)
        return {depth: self._received.get((number, tile), none) for depth, number in self.layers.items()}


def apply_rotary(heads: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions applied to `[P, H, D]`, computed in float32 as the stock encoders do."""
    cos, sin = (table.unsqueeze(-2).float() for table in rotary)
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(heads.dtype)


def received_attention(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Mean over heads and queries of the attention that each key receives: two `[P, H, D]` to `[P]`."""
    keys = key.permute(1, 2, 0).float()  # [H, D, P]
    total = torch.zeros(len(key), device=key.device)
    for some in query.split(SLICE):
        scores = some.transpose(0, 1).float() @ keys * query.shape[-1] ** -0.5  # [H, slice, P]
        total += scores.softmax(-1).mean(0).sum(0)
    return total / len(query)


def _project(attention: Any, which: str, tokens: torch.Tensor) -> torch.Tensor:
    """Queries or keys of a plain ViT: `[s, D]`, normalised, to `[s, H, d]`."""
    heads = getattr(attention, f"{which}_proj")(tokens)
    norm = getattr(attention, f"{which}_norm", None)
    return (heads if norm is None else norm(heads)).view(len(tokens), attention.num_heads, -1)
