"""Running a vision encoder on some patches: their indices, attention inside segments, and recording attention.

- `PatchIndex`: pixel rows, positions and segments of the patches of some cells, as the Qwen encoders take them. A cell is a
  group of `merge` x `merge` patches that becomes one token; the processor stores patches group by group.
- `Segments`: attention inside many short segments (windows, frames) in one call. One call per segment leaves an accelerator
  idle between launches.
- `Recorder`, `TileRecorder`: the attention that each cell receives. The encoder runs unchanged; at the requested layers,
  queries and keys are computed a second time, and their softmax is summed in slices, so that no P x P map is ever held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from arr_coc.adapters.base import pre_hooks
from arr_coc.types.grid import Grid

SLICE = 1024  # queries at a time
FEW = 8  # segments: of so many, each may have its own call
LONG_SEGMENT = 1024  # patches: from this mean length on, one call per segment is faster


@dataclass(frozen=True, eq=False)
class PatchIndex:
    """The patches of some cells of several pictures, in the processor's order."""

    rows: torch.Tensor  # [P] into the processor's pixel values
    places: torch.Tensor  # [P, 2] row and column in their picture's patch grid
    sizes: torch.Tensor  # [P, 2] height and width of that grid
    frames: torch.Tensor  # [F] number of patches of each frame that has any
    windows: tuple[torch.Tensor, torch.Tensor] | None = None  # [M] the cells by window, [W] number of patches of each


def index_patches(grids: Sequence[Grid], cells: Sequence[torch.Tensor], merge: int) -> PatchIndex:
    """The patches of `cells[i]` `[M_i]` of each of `grids`."""
    inner = torch.arange(merge * merge)
    rows, places, sizes, frames = [], [], [], []
    start = 0
    for grid, chosen in zip(grids, cells, strict=True):
        rows.append(((chosen + start)[:, None] * merge**2 + inner).flatten())
        corner = grid.thw(chosen)[:, None, 1:] * merge  # [M, 1, 2]
        inside = torch.stack([inner // merge, inner % merge], dim=-1)  # [merge^2, 2]
        places.append((corner + inside).reshape(-1, 2))
        sizes.append(torch.tensor([grid.h * merge, grid.w * merge]).expand(len(chosen) * merge**2, 2))
        frames.append(torch.bincount(chosen // (grid.h * grid.w), minlength=grid.t) * merge**2)
        start += grid.n
    lengths = torch.cat(frames)
    return PatchIndex(torch.cat(rows), torch.cat(places), torch.cat(sizes), lengths[lengths > 0])


def sort_by_window(
    grids: Sequence[Grid], cells: Sequence[torch.Tensor], side: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort cells by the window of `side` x `side` cells that contains them.

    Returns the order `[M]` over all pictures' chosen cells, and the number of cells of each window that has any `[W]`.
    """
    orders, lengths, start = [], [], 0
    for grid, chosen in zip(grids, cells, strict=True):
        frame, row, column = grid.thw(chosen).unbind(-1)
        down, across = -(-grid.h // side), -(-grid.w // side)
        window = (frame * down + row // side) * across + column // side
        orders.append(window.argsort(stable=True) + start)
        lengths.append(torch.bincount(window, minlength=grid.t * down * across))
        start += len(chosen)
    counts = torch.cat(lengths)
    return torch.cat(orders), counts[counts > 0]


def boundaries(lengths: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Cumulative lengths of segments, from 0: `[S]` to `[S + 1]`."""
    return F.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32)


class Segments:
    """A division of P patches into consecutive segments, with the indices that attention on one device needs."""

    def __init__(self, lengths: torch.Tensor, device: torch.device, dtype: torch.dtype) -> None:
        self.lengths: list[int] = lengths.tolist()
        self.count, self.longest = len(lengths), int(lengths.max())
        self.even = int(lengths.min()) == self.longest
        self.apart = self.count == 1 or sum(self.lengths) / self.count >= LONG_SEGMENT
        if self.apart:
            return
        self.packed = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and _varlen() is not None
        if self.packed:
            self.ends = boundaries(lengths, device)
        elif self.count <= FEW and self.count * self.longest**2 > 2 * sum(length**2 for length in self.lengths):
            self.apart = (
                True  # scales of one picture: padding the small ones to the largest would cost more than the calls
            )
        elif not self.even:
            within = torch.arange(self.longest)
            real = within < lengths[:, None]  # [S, L]
            self.slots = torch.where(real, (lengths.cumsum(0) - lengths)[:, None] + within, 0).to(device)
            self.real = real.to(device)
            self.back = real.flatten().nonzero()[:, 0].to(device)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Scaled dot-product attention inside each segment: `[P, H, D]` three times to `[P, H, D]`."""
        if self.apart:
            parts = zip(*(part.split(self.lengths) for part in (query, key, value)), strict=True)
            mixed = [self._dense(q[None], k[None], v[None])[0] for q, k, v in parts]
            return mixed[0] if self.count == 1 else torch.cat(mixed)
        if self.packed:
            query, key, value = (part.contiguous() for part in (query, key, value))
            together: torch.Tensor = _varlen()(query, key, value, self.ends, self.ends, self.longest, self.longest)
            return together
        if self.even:
            split = (self.count, self.longest, *query.shape[1:])
            return self._dense(query.view(split), key.view(split), value.view(split)).reshape(query.shape)
        padded = self._dense(query[self.slots], key[self.slots], value[self.slots], self.real[:, None, None])
        return padded.flatten(0, 1)[self.back]

    @staticmethod
    def _dense(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`[S, L, H, D]` three times to `[S, L, H, D]`."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


@cache
def _varlen() -> Any:
    """torch's attention over packed segments, None before torch 2.10. It is imported on first use: it loads Triton."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


class _BlockRecorder(ABC):
    """Records at some depths (0: first block, 1: last) of an encoder."""

    def __init__(self, blocks: Sequence[Any], depths: Sequence[float]) -> None:
        self.blocks = blocks
        self.layers = {depth: round(depth * (len(blocks) - 1)) for depth in depths}

    def attached(self) -> AbstractContextManager[None]:
        """Inside the `with`, record what goes into the stock encoder's blocks."""
        return pre_hooks({number: self.blocks[number] for number in self.layers.values()}, self._hook)

    @abstractmethod
    def _hook(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record from the arguments of block `number`."""


class Recorder(_BlockRecorder):
    """Records in an encoder that attends inside segments of patches (Qwen)."""

    def __init__(self, blocks: Sequence[Any], depths: Sequence[float], group: int) -> None:
        super().__init__(blocks, depths)
        self.group = group  # patches per cell
        self._received: dict[int, torch.Tensor] = {}

    def record(
        self, number: int, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], lengths: Sequence[int]
    ) -> None:
        """Take block `number`'s input: hidden states `[P, D]`, rotary tables, and the lengths of its segments."""
        if number not in self.layers.values():
            return
        block = self.blocks[number]
        with torch.no_grad():
            parts = project_qkv(block.attn, block.norm1(hidden))
            query, key = (apply_rotary(part, rotary).split(list(lengths)) for part in parts[:2])  # [P, H, D]
            self._received[number] = torch.cat([received_attention(q, k) for q, k in zip(query, key, strict=True)])

    def _hook(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        lengths = [end - start for start, end in pairwise(kwargs["cu_seqlens"].tolist())]
        self.record(number, args[0], kwargs["position_embeddings"], lengths)

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


class TileRecorder(_BlockRecorder):
    """Records in a plain ViT, in which each tile is an entry of the batch."""

    def __init__(self, blocks: Sequence[Any], names: BlockNames, depths: Sequence[float]) -> None:
        super().__init__(blocks, depths)
        self.names = names
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

    def _hook(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.record(number, args[0], range(len(args[0])))

    def tile(self, tile: int) -> dict[float, torch.Tensor]:
        """Depth -> what each token of a tile receives `[s]`; empty tensors for a tile that was not encoded."""
        device = next(iter(self._received.values())).device if self._received else None
        none = torch.zeros(0, device=device)
        return {depth: self._received.get((number, tile), none) for depth, number in self.layers.items()}


def project_qkv(attention: Any, hidden: torch.Tensor) -> Sequence[torch.Tensor]:
    """Queries, keys and values `[P, H, D]` of `[P, C]`, from one projection or from three."""
    if hasattr(attention, "qkv"):
        return attention.qkv(hidden).view(len(hidden), 3, attention.num_heads, -1).unbind(1)
    return [getattr(attention, name)(hidden).view(len(hidden), attention.num_heads, -1) for name in "qkv"]


def apply_rotary(heads: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions applied to `[P, H, D]`, computed in float32 as the stock encoders do."""
    cos, sin = (table.to(heads.device).unsqueeze(-2).float() for table in rotary)
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
