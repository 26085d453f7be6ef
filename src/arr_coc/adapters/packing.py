"""Taking dropped tokens out of a prompt, so that what is left reads as if they had been masked at every layer.

Every token keeps its own position. Rows that end up with different lengths are padded on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from arr_coc.adapters.base import Visual
from arr_coc.devices import placed


@dataclass(frozen=True, eq=False)
class Packed:
    """The prompt without its dropped tokens."""

    input_ids: torch.Tensor  # [B, L]
    attention_mask: torch.Tensor  # [B, L]
    position_ids: torch.Tensor  # [B, L] or [3, B, L]
    source: torch.Tensor  # [B, L] each token's place in the dense prompt; -1 for padding. Stays on the CPU.

    def on(self, device: torch.device) -> Packed:
        ids, mask, positions = (
            placed(part, device) for part in (self.input_ids, self.attention_mask, self.position_ids)
        )
        return Packed(ids, mask, positions, self.source)


def pack(
    ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, visuals: Sequence[Visual],
    keeps: Sequence[torch.Tensor], pad: int,
) -> Packed:  # fmt: skip
    """Drop every visual's cells that are not in its `keeps` from ids and mask `[B, T]` and positions `[.., B, T]`."""
    stay = mask.bool().clone()
    whole = bool(stay[:, -1].all())  # padding on the right would stand between prompt and answer
    for visual, keep in zip(visuals, keeps, strict=True):
        if len(keep) == visual.n:
            continue
        stay[visual.row, visual.places] = visual.tokens_kept(keep)
        whole = False
    if whole:  # nothing was dropped: the very same tensors
        source = torch.arange(ids.shape[1]).expand_as(stay).masked_fill(~stay, -1)
        return Packed(ids, mask, positions, source)
    length = max(1, int(stay.sum(1).max()))
    order = stay.int().argsort(dim=1, stable=True)[:, -length:]  # dropped first, kept in their order
    real = stay.gather(1, order)
    source = order.masked_fill(~real, -1)
    across = order.expand(*positions.shape[:-2], *order.shape) if positions.ndim == 3 else order
    return Packed(
        input_ids=ids.gather(1, order).masked_fill(~real, pad),
        attention_mask=real.to(mask.dtype),
        position_ids=positions.gather(-1, across) * real,
        source=source,
    )


def padded(rows: Sequence[Packed], pad: int) -> Packed:
    """Prompts of one row each as one batch, padded on the left."""
    length = max(row.input_ids.shape[1] for row in rows)

    def filled(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (length - tensor.shape[-1], 0), value=value)

    return Packed(
        torch.cat([filled(row.input_ids, pad) for row in rows]),
        torch.cat([filled(row.attention_mask, 0) for row in rows]),
        torch.cat([filled(row.position_ids, 0) for row in rows], dim=-2),
        torch.cat([filled(row.source, -1) for row in rows]),
    )
