"""Plain vision transformers (CLIP, SigLIP, InternViT): some tokens of each tile through their blocks.

Every token attends to every other one of its tile and carries its own learned position, so leaving a token out is the
same as masking it in every layer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Layout:
    """What a block calls its parts, and whether it wants to be told that nothing is masked."""

    norm: str
    attention: str
    masked: bool


SIGLIP = Layout("layer_norm1", "self_attn", masked=True)  # CLIP, SigLIP, Idefics3, SmolVLM
INTERN = Layout("layernorm_before", "attention", masked=False)


def run(
    blocks: Sequence[Any], layout: Layout, hidden: torch.Tensor, chosen: Sequence[torch.Tensor], wanted: Sequence[int],
    received: Received,
) -> list[torch.Tensor]:  # fmt: skip
    """The chosen tokens `[s]` of each tile through the blocks, tiles with equally many of them together.

    `hidden` `[T, S, D]` goes into the first block. For each tile, what goes into the blocks of the `wanted` numbers
    (their count: what comes out of the last), side by side: `[s, D * len(wanted)]`.
    """
    out = [hidden.new_zeros(0, hidden.shape[-1] * len(wanted))] * len(chosen)
    alike: dict[int, list[int]] = {}
    for tile, tokens in enumerate(chosen):
        alike.setdefault(len(tokens), []).append(tile)
    alike.pop(0, None)
    for tiles in alike.values():
        state = torch.stack([hidden[tile, chosen[tile].to(hidden.device)] for tile in tiles])  # [G, s, D]
        states = [state]
        for number in range(max(wanted)):
            received.see(number, state, tiles)
            block = blocks[number]
            state = block(state, None) if layout.masked else block(state)
            states.append(state)
        for tile, features in zip(tiles, torch.cat([states[number] for number in wanted], -1), strict=True):
            out[tile] = features
    return out


class Received:
    """Collects the attention that the tokens of each tile receive, at some depths (0: first block, 1: last)."""

    def __init__(self, blocks: Sequence[Any], layout: Layout, depths: Sequence[float]) -> None:
        self.blocks = blocks
        self.layout = layout
        self.layers = {depth: round(depth * (len(blocks) - 1)) for depth in depths}
        self._seen: dict[tuple[int, int], torch.Tensor] = {}  # block and tile

    def see(self, number: int, hidden: torch.Tensor, tiles: Sequence[int]) -> None:
        """Called with what goes into block `number`: `[G, s, D]`, one entry for each of `tiles`."""
        if number not in self.layers.values():
            return
        block = self.blocks[number]
        attention = getattr(block, self.layout.attention)
        with torch.no_grad():
            normed = getattr(block, self.layout.norm)(hidden)
            for tile, tokens in zip(tiles, normed, strict=True):
                self._seen[number, tile] = _column_means(attention, tokens)

    def of(self, tile: int) -> dict[float, torch.Tensor]:
        """Depth to the mean over heads and queries of the attention each token gets: `[s]`; without the tile: empty."""
        device = next(iter(self._seen.values())).device if self._seen else None
        none = torch.zeros(0, device=device)
        return {depth: self._seen.get((number, tile), none) for depth, number in self.layers.items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what goes into the stock encoder's blocks, in this thread only and only inside the `with`."""
        thread = threading.get_ident()

        def seeing(number: int) -> Any:
            def hook(block: Any, args: tuple[Any, ...]) -> None:
                if threading.get_ident() == thread:
                    self.see(number, args[0], range(len(args[0])))

            return hook

        handles = [
            self.blocks[number].register_forward_pre_hook(seeing(number))
            for number in sorted(set(self.layers.values()))
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _column_means(attention: Any, tokens: torch.Tensor) -> torch.Tensor:
    """`[s, D]`, normed, to `[s]`."""
    parts = []
    for name in "qk":
        heads = getattr(attention, f"{name}_proj")(tokens)
        norm = getattr(attention, f"{name}_norm", None)
        heads = heads if norm is None else norm(heads)
        parts.append(heads.view(len(tokens), attention.num_heads, -1).transpose(0, 1).float())  # [H, s, d]
    query, key = parts
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    return scores.softmax(-1).mean((0, 1))
