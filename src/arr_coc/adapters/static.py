"""Encoder, prefill and decoding as functions of tensors of fixed shape, for CUDA graphs: the Qwen-VL families.

What Python works out for an ordinary call is an input here: positions, windows, places in the prompt, padding. Counts are
rounded up, and what is too much is masked: patches that pad a picture are no keys, tokens that pad a prompt are neither keys nor
positions, and the cache's free places are no keys. So every shape gives what the ordinary call gives, up to the order of sums.

    SparseEncoder   pixels of P patches of each picture -> tokens of P / 4 cells
    Prefill         a prompt of L tokens, K of them visual -> logits of the next token, and the cache
    DecodeStep      one token -> logits of the next one

Modules are called as they are, so adapters (peft) and quantised weights count. Everything runs on a CPU, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from arr_coc.adapters.base import Adapter, Inputs, Visual
from arr_coc.adapters.encoder import apply_rotary, project_qkv
from arr_coc.adapters.processor import read_patches
from arr_coc.adapters.qwen2_vl import PIXELS, Qwen2VL, Qwen3VL, Qwen25VL, Qwen35
from arr_coc.types.grid import Grid

Tensors = tuple[torch.Tensor, ...]
FAMILIES = (Qwen2VL, Qwen25VL, Qwen3VL)


def unsupported_reason(adapter: Adapter) -> str:
    """Why a model cannot be recorded; empty if it can."""
    if type(adapter) not in FAMILIES or isinstance(adapter, Qwen35):
        return f"recording is for {', '.join(one.family for one in FAMILIES)}, and this is {adapter.family}"
    for name, part in (("encoder", adapter.core.visual), ("language model", adapter.text_model)):
        if (kind := part.config._attn_implementation) not in ("sdpa", "eager"):
            return f"recording needs attention that takes a mask (sdpa or eager), and the {name} has {kind!r}"
    if adapter.semantics != "masked":
        return "recording needs full attention in every layer"
    return ""


@dataclass(frozen=True)
class EncoderShape:
    """`pictures` of at most `cells` encoded cells each. `exact`: of exactly so many, which needs no mask of the padding."""

    pictures: int
    cells: int
    exact: bool


@dataclass(frozen=True)
class PromptShape:
    """`rows` prompts of at most `length` tokens, at most `visual` of them visual, and at most `new` tokens of an answer."""

    rows: int
    visual: int
    length: int
    new: int


class SparseEncoder:
    """The vision encoder on some patches of still pictures, each picture padded to the same number."""

    def __init__(self, adapter: Qwen2VL, shape: EncoderShape) -> None:
        self.adapter, self.shape = adapter, shape
        self.windows = hasattr(adapter.encoder, "fullatt_block_indexes")
        self.learned = isinstance(adapter, Qwen3VL)

    def buffers(self) -> Tensors:
        """Valid inputs: pixels `[R, P, C]`, places `[R, P, 2]`, which patches are real `[R, P]`, windows `[R, P]`, and the
        corners and weights of learned positions `[R, P, 4]`."""
        encoder, device, shape = self.adapter.encoder, self.adapter.device, self.shape
        config = encoder.config
        channels = getattr(config, "in_channels", getattr(config, "in_chans", 3))
        size = shape.pictures, shape.cells * self.adapter.merge**2
        values = channels * config.temporal_patch_size * config.patch_size**2
        return (
            torch.zeros(*size, values, dtype=encoder.dtype, device=device),
            torch.zeros(*size, 2, dtype=torch.long, device=device),
            torch.ones(*size, dtype=torch.bool, device=device),
            torch.zeros(*size, dtype=torch.long, device=device),
            torch.zeros(*size, 4, dtype=torch.long, device=device),
            torch.zeros(*size, 4, device=device),
        )

    def inputs(self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor]) -> Tensors:
        """What `load` takes for some cells of pictures, which must be all pictures of the prompt, in order."""
        adapter, shape = self.adapter, self.shape
        grids = [visual.grid.views[0] for visual in visuals]
        found = adapter._index(grids, cells)
        pixels = read_patches(inputs[PIXELS["image"][0]], found.rows, adapter.device, adapter.encoder.dtype)
        counts = [len(some) * adapter.merge**2 for some in cells]
        most = shape.cells * adapter.merge**2

        def padded(values: torch.Tensor) -> torch.Tensor:
            return torch.stack(
                [F.pad(part, (0, 0) * (part.ndim - 1) + (0, most - len(part))) for part in values.split(counts)]
            )

        real = torch.arange(most) < torch.tensor(counts)[:, None]
        window = torch.zeros(shape.pictures, most, dtype=torch.long)
        if self.windows:
            window = padded(_windows(adapter, grids, cells)).masked_fill(~real, -1)
        if isinstance(adapter, Qwen3VL):
            corners, weights = (padded(part) for part in adapter._interpolation(found))
        else:
            corners, weights = torch.zeros(0, 0, 4, dtype=torch.long), torch.zeros(0, 0, 4)
        return padded(pixels), padded(found.places), real, window, corners, weights

    def __call__(
        self, pixels: torch.Tensor, places: torch.Tensor, real: torch.Tensor, window: torch.Tensor,
        corners: torch.Tensor, weights: torch.Tensor,
    ) -> Tensors:  # fmt: skip
        """Tokens `[R, P / 4, D]`, then the deep features, by cell."""
        encoder = self.adapter.encoder
        pictures, patches = real.shape
        hidden = encoder.patch_embed(pixels.flatten(0, 1))
        if self.learned:
            learned = (encoder.pos_embed(corners.flatten(0, 1)) * weights.flatten(0, 1)[:, :, None]).sum(1)
            hidden = hidden + learned.to(hidden.dtype)
        rotary = encoder.rotary_pos_emb(hidden, places.flatten(0, 1))
        padding = None if self.shape.exact else real[:, None, None]
        inside = window[:, None, :, None] == window[:, None, None, :] if self.windows else padding
        across = getattr(encoder, "fullatt_block_indexes", ())
        deep_blocks = list(getattr(encoder, "deepstack_visual_indexes", ()))
        deep = []
        for number, block in enumerate(encoder.blocks):
            query, key, value = project_qkv(block.attn, block.norm1(hidden))
            query, key = apply_rotary(query, rotary), apply_rotary(key, rotary)
            query, key, value = (part.unflatten(0, (pictures, patches)).transpose(1, 2) for part in (query, key, value))
            mask = padding if number in across else inside
            mixed = F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
            hidden = hidden + block.attn.proj(mixed.reshape(len(hidden), -1))
            hidden = hidden + block.mlp(block.norm2(hidden))
            if number in deep_blocks:
                deep.append(encoder.deepstack_merger_list[deep_blocks.index(number)](hidden))
        return tuple(made.unflatten(0, (pictures, -1)) for made in (encoder.merger(hidden), *deep))


def _windows(adapter: Qwen2VL, grids: Sequence[Grid], cells: Sequence[torch.Tensor]) -> torch.Tensor:
    """The window of each patch of the chosen cells `[P]`."""
    found = []
    for grid, some in zip(grids, cells, strict=True):
        windows = adapter._index([grid], [some]).windows
        assert windows is not None
        order, lengths = windows
        number = torch.empty(len(some), dtype=torch.long)
        number[order] = torch.arange(len(lengths)).repeat_interleave(lengths // adapter.merge**2)
        found.append(number.repeat_interleave(adapter.merge**2))
    return torch.cat(found)


class StaticCache:
    """Keys and values in buffers `[B, heads, L + new, d]` of each layer: an attention's `past_key_values`."""

    def __init__(self, adapter: Adapter, shape: PromptShape) -> None:
        self._adapter, self._shape = adapter, shape
        self.keys: list[torch.Tensor] = []  # made from the first layer output, which knows its shape and dtype
        self.values: list[torch.Tensor] = []
        self.place: torch.Tensor | None = None  # [1] of the token that comes; None: the prompt

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any) -> Tensors:
        if self.place is None:
            if layer == len(self.keys):
                size = (*key.shape[:2], self._shape.length + self._shape.new, key.shape[3])
                self.keys.append(key.new_zeros(size))
                self.values.append(value.new_zeros(size))
            self.keys[layer][:, :, : key.shape[2]].copy_(key)
            self.values[layer][:, :, : key.shape[2]].copy_(value)
            return key, value
        self.keys[layer].index_copy_(2, self.place, key)
        self.values[layer].index_copy_(2, self.place, value)
        return self.keys[layer], self.values[layer]


class Prefill:
    """Prompts, padded on the left, to the logits of their next token. Fills `cache`."""

    def __init__(self, adapter: Adapter, shape: PromptShape, cache: StaticCache) -> None:
        self.adapter, self.shape, self.cache = adapter, shape, cache

    def buffers(self) -> Tensors:
        """Valid inputs: ids, whether a token is real, its place among the visual tokens (-1: text) `[B, L]`, positions
        `[3, B, L]`, visual tokens `[B, K, D]`, and their deep features."""
        shape, device = self.shape, self.adapter.device
        dtype = self.adapter.model.get_input_embeddings().weight.dtype
        size = shape.rows, shape.length
        features = torch.zeros(shape.rows, max(1, shape.visual), self.adapter.width, dtype=dtype, device=device)
        return (
            torch.zeros(size, dtype=torch.long, device=device),
            torch.ones(size, dtype=torch.bool, device=device),
            torch.full(size, -1, dtype=torch.long, device=device),
            torch.zeros(3, *size, dtype=torch.long, device=device),
            *(features.clone() for _ in range(1 + self.adapter.deep_layers)),
        )

    def inputs(
        self, ids: torch.Tensor, attention: torch.Tensor, positions: torch.Tensor, tokens: Sequence[torch.Tensor],
        deep: Sequence[Sequence[torch.Tensor]],
    ) -> Tensors:  # fmt: skip
        """What `load` takes for a packed prompt `[B, l]` and each row's visual tokens `[k, D]` and deep features by level."""
        room = self.shape.length - ids.shape[1]
        visual = ids == self.adapter.token_id("image")
        slots = (visual.long().cumsum(-1) - 1).masked_fill(~visual, -1)
        most = max(1, self.shape.visual)

        def stacked(rows: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.stack([F.pad(row, (0, 0, 0, most - len(row))) for row in rows])

        return (
            F.pad(ids, (room, 0)),
            F.pad(attention.bool(), (room, 0)),
            F.pad(slots, (room, 0), value=-1),
            F.pad(positions, (room, 0)),
            stacked(tokens),
            *(stacked(level) for level in deep),
        )

    def __call__(
        self, ids: torch.Tensor, real: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
        tokens: torch.Tensor, *deep: torch.Tensor,
    ) -> Tensors:  # fmt: skip
        place, is_text = slots.clamp(min=0)[..., None].expand(-1, -1, tokens.shape[-1]), (slots < 0)[..., None]
        words = self.adapter.model.get_input_embeddings()(ids)
        hidden = torch.where(is_text, words, tokens.gather(1, place).to(words.dtype))
        levels = [level.gather(1, place).to(words.dtype).masked_fill(is_text, 0.0) for level in deep]
        order = torch.arange(ids.shape[1], device=ids.device)
        # A token that pads attends to itself alone, so that no softmax is over nothing.
        seen = ((order[:, None] >= order) & real[:, None]) | (order[:, None] == order)
        self.cache.place = None
        return (_language(self.adapter, hidden, positions, seen[:, None], self.cache, levels),)


class DecodeStep:
    """One token of each row, at the same place of the cache, to the logits of the next."""

    def __init__(self, adapter: Adapter, shape: PromptShape, cache: StaticCache) -> None:
        self.adapter, self.shape, self.cache = adapter, shape, cache

    def buffers(self) -> Tensors:
        """Valid inputs: tokens `[B]`, positions `[3, B]`, the place `[1]`, and which tokens of the prompt are real `[B, L]`."""
        shape, device = self.shape, self.adapter.device
        return (
            torch.zeros(shape.rows, dtype=torch.long, device=device),
            torch.zeros(3, shape.rows, dtype=torch.long, device=device),
            torch.full((1,), shape.length, dtype=torch.long, device=device),
            torch.ones(shape.rows, shape.length, dtype=torch.bool, device=device),
        )

    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, place: torch.Tensor, real: torch.Tensor
    ) -> Tensors:
        hidden = self.adapter.model.get_input_embeddings()(tokens[:, None])
        answer = torch.arange(self.shape.length, self.shape.length + self.shape.new, device=tokens.device) <= place
        seen = torch.cat([real, answer.expand(len(tokens), -1)], 1)[:, None, None]
        self.cache.place = place
        return (_language(self.adapter, hidden, positions[..., None], seen, self.cache, ()),)


def repetition_penalty(penalty: float) -> Any:
    """The processor of logits that `generate` uses: a function of ids `[B, T]` and logits `[B, V]`."""
    from transformers import RepetitionPenaltyLogitsProcessor

    return RepetitionPenaltyLogitsProcessor(penalty)


def _language(
    adapter: Adapter, hidden: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor, cache: StaticCache,
    deep: Sequence[torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Logits `[B, V]` of the token after the last of `[B, T, D]`; `seen` `[B, 1, T, S]`: which keys it attends to."""
    text = adapter.text_model
    mask = seen
    if text.config._attn_implementation == "eager":
        mask = torch.zeros_like(seen, dtype=hidden.dtype).masked_fill(~seen, torch.finfo(hidden.dtype).min)
    rotary = text.rotary_emb(hidden, positions)
    for number, layer in enumerate(text.layers):
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache, use_cache=True)
        if number < len(deep):
            hidden = hidden + deep[number]
    return adapter.model.get_output_embeddings()(text.norm(hidden[:, -1:]))[:, 0].float()
