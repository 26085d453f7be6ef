"""From kept cells to what the model reads: the prompt without its dropped tokens, and the features that fill it.

Every kept token keeps its own position. With full attention the result equals masking the dropped tokens at every layer;
other layers read the prompt as if they had never been there (`Adapter.semantics`).
Rows of different length are padded on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.adapters.base import Adapter, Encoded, Features, Inputs, Visual
from arr_coc.devices import to_device
from arr_coc.errors import SelectorError

KeptFeatures = dict[str, list[Features]]  # kind -> one entry for each row that has visuals of that kind


@dataclass(frozen=True, eq=False)
class Packed:
    """The prompt without its dropped tokens."""

    input_ids: torch.Tensor  # [B, L]
    attention_mask: torch.Tensor  # [B, L]
    position_ids: torch.Tensor  # [B, L] or [3, B, L]
    source: torch.Tensor  # [B, L] each token's index in the dense prompt; -1 for padding. Stays on the CPU.

    def on(self, device: torch.device) -> Packed:
        return Packed(
            to_device(self.input_ids, device),
            to_device(self.attention_mask, device),
            to_device(self.position_ids, device),
            self.source,
        )


def assemble(
    adapter: Adapter, inputs: Inputs, visuals: Sequence[Visual], encoded: Sequence[Encoded],
    keeps: Sequence[torch.Tensor], replaced: Sequence[torch.Tensor | None] | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[Packed, KeptFeatures]:  # fmt: skip
    """Pack the prompt and gather each row's kept features.

    `replaced`: features `[K, D]` to use in place of a visual's own. `positions`: every token's, where already known.
    """
    if not adapter.replaces and any(features is not None for features in replaced or ()):
        raise SelectorError(
            f"expected a selector that keeps the encoder's features, because {adapter.family} reads others than its tokens, "
            "got one that merges them: choose another selector"
        )
    positions = adapter.positions(inputs) if positions is None else positions
    packed = pack(inputs["input_ids"], inputs["attention_mask"], positions, visuals, keeps, adapter.pad_token)
    features = gather_features(visuals, encoded, keeps, len(inputs["input_ids"]), replaced or [None] * len(visuals))
    return packed.on(adapter.device), features


def model_kwargs(adapter: Adapter, packed: Packed, kept: KeptFeatures) -> dict[str, Any]:
    """Keyword arguments for the model's `forward` and `generate`. Beam search writes into them: call this for each run."""
    made: dict[str, Any] = {
        "input_ids": packed.input_ids,
        "attention_mask": packed.attention_mask,
        "position_ids": packed.position_ids,
    }
    made |= adapter.token_kwargs(packed.input_ids)
    if kept:
        made["mm_encoder_outputs"] = adapter.encoder_outputs(kept)
    return made


def pack(
    ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, visuals: Sequence[Visual],
    keeps: Sequence[torch.Tensor], pad: int,
) -> Packed:  # fmt: skip
    """Drop the cells that are not in `keeps` from ids and mask `[B, T]` and positions `[.., B, T]`."""
    stay = mask.bool().clone()
    whole = bool(stay[:, -1].all())  # padding on the right would come between prompt and answer
    for visual, keep in zip(visuals, keeps, strict=True):
        if len(keep) == visual.n:
            continue
        stay[visual.row, visual.places] = visual.tokens_kept(keep)
        whole = False
    if whole:  # nothing is dropped: return the same tensors
        source = torch.arange(ids.shape[1]).expand_as(stay).masked_fill(~stay, -1)
        return Packed(ids, mask, positions, source)
    length = max(1, int(stay.sum(1).max()))
    order = stay.int().argsort(dim=1, stable=True)[:, -length:]  # dropped tokens first, kept ones in their order
    real = stay.gather(1, order)
    across = order.expand(*positions.shape[:-2], *order.shape) if positions.ndim == 3 else order
    return Packed(
        input_ids=ids.gather(1, order).masked_fill(~real, pad),
        attention_mask=real.to(mask.dtype),
        position_ids=positions.gather(-1, across) * real,
        source=order.masked_fill(~real, -1),
    )


def pad_rows(rows: Sequence[Packed], pad: int) -> Packed:
    """Join prompts of one row each into a batch, padded on the left."""
    length = max(row.input_ids.shape[1] for row in rows)

    def padded(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (length - tensor.shape[-1], 0), value=value)

    return Packed(
        torch.cat([padded(row.input_ids, pad) for row in rows]),
        torch.cat([padded(row.attention_mask, 0) for row in rows]),
        torch.cat([padded(row.position_ids, 0) for row in rows], dim=-2),
        torch.cat([padded(row.source, -1) for row in rows]),
    )


def gather_features(
    visuals: Sequence[Visual], encoded: Sequence[Encoded], keeps: Sequence[torch.Tensor], rows: int,
    replaced: Sequence[torch.Tensor | None],
) -> KeptFeatures:  # fmt: skip
    """Each row's kept tokens and deep features, in the order of the prompt."""
    gathered: dict[str, list[list[Features]]] = {}
    for visual, seen, keep, features in zip(visuals, encoded, keeps, replaced, strict=True):
        # A visual that is kept whole is not copied.
        index = None if len(keep) == len(seen.cells) else to_device(seen.rows(keep), seen.tokens.device)
        tokens = seen.tokens if index is None else seen.tokens[index]
        tokens = tokens if features is None else features.to(seen.tokens)
        deep = seen.deep if index is None else tuple(level[index] for level in seen.deep)
        if seen.extra is not None and visual.cells is not None:  # these tokens are the same at every level
            tokens, *levels = (_interleave(visual, seen.extra, level, keep) for level in (tokens, *deep))
            deep = tuple(levels)
        gathered.setdefault(visual.kind, [[] for _ in range(rows)])[visual.row].append((tokens, deep))
    return {kind: [_join(parts) for parts in by_row if parts] for kind, by_row in gathered.items()}


def _interleave(visual: Visual, extra: torch.Tensor, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Kept cells and the tokens that always stay, in the order of the prompt."""
    is_cell = torch.zeros(len(visual.places), dtype=torch.bool)
    assert visual.cells is not None
    is_cell[visual.cells] = True
    is_cell = is_cell[visual.tokens_kept(keep)].to(tokens.device)
    out = tokens.new_empty(len(is_cell), tokens.shape[-1])
    out[is_cell] = tokens
    out[~is_cell] = extra.to(tokens)
    return out


def _join(parts: list[Features]) -> Features:
    if len(parts) == 1:
        return parts[0]
    tokens, deep = zip(*parts, strict=True)
    return torch.cat(tokens), tuple(torch.cat(levels) for levels in zip(*deep, strict=True))
