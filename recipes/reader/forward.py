"""The reader's forward pass for training: whole batches, missing cells, several questions per picture.

It runs on the modules of the `transformers` model and computes exactly what that model computes for one question at a
time (a test compares the two). What is different is the bookkeeping: pictures of a batch go through the encoder as one
tensor, any cells may be missing, and the questions of a picture share its keys and values. Blocks are compiled one by
one, so that all of them share the same few compiled kernels.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.reader import vocabulary
from arr_coc.reader.folder import IMAGE_MEAN, IMAGE_STD
from arr_coc.reader.model import CELL, PATCH, ROPE_THETA, mrope_section

PREFIX_EXTRA = 3  # <|user|> and <|vision_start|> before the picture, <|vision_end|> behind it
_FIRST_CELL = 2  # position of the picture in the sequence

Module = Any  # a block of the transformers model: its parts are found by name


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding: cosines and sines for every position, `[B, L, head_width]`."""

    cos: torch.Tensor
    sin: torch.Tensor


def to_patches(images: torch.Tensor) -> torch.Tensor:
    """Pictures `[B, 3, H, W]` from 0 to 1 as the encoder's input `[B, N, 4, 3 * PATCH * PATCH]`, cell by cell."""
    batch, channels, height, width = images.shape
    merge = CELL // PATCH
    split = ((images - IMAGE_MEAN) / IMAGE_STD).view(
        batch, channels, height // CELL, merge, PATCH, width // CELL, merge, PATCH
    )
    return split.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch, -1, merge * merge, channels * PATCH * PATCH)


def take_cells(values: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """Pick `cells` [B, M] out of `values` [B, N, ...]."""
    index = cells.view(*cells.shape, *[1] * (values.ndim - 2)).expand(*cells.shape, *values.shape[2:])
    return values.gather(1, index)


def vision_rotation(cells: torch.Tensor, columns: int, head_width: int) -> Rotation:
    """Rotation of the four patches of each cell: `cells` [B, M] -> [B, 4M, head_width]."""
    offset = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=cells.device)
    corner = torch.stack([cells // columns, cells % columns], -1) * (CELL // PATCH)  # [B, M, 2]
    positions = (corner[:, :, None] + offset).flatten(1, 2)  # [B, 4M, 2]
    quarter = head_width // 4
    frequencies = ROPE_THETA ** -(torch.arange(quarter, device=cells.device) / quarter)
    angles = (positions[..., None] * frequencies).flatten(2).repeat(1, 1, 2)  # [B, 4M, head_width]
    return Rotation(angles.cos(), angles.sin())


def text_rotation(positions: torch.Tensor, head_width: int) -> Rotation:
    """Rotation for positions `[B, L, 3]` of time, row and column."""
    half = head_width // 2
    frequencies = ROPE_THETA ** -(torch.arange(half, device=positions.device) / half)
    axis = torch.repeat_interleave(torch.arange(3), torch.tensor(mrope_section(head_width))).to(positions.device)
    angles = (positions[..., axis] * frequencies).repeat(1, 1, 2)  # [B, L, head_width]
    return Rotation(angles.cos(), angles.sin())


def prefix_positions(cells: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Positions of the picture and the tokens around it, `[B, M + PREFIX_EXTRA, 3]`; a missing cell leaves its place free."""
    columns, rows = grid
    seen = torch.stack([torch.zeros_like(cells), cells // columns, cells % columns], -1) + _FIRST_CELL
    before = torch.arange(_FIRST_CELL, device=cells.device)[None, :, None].expand(len(cells), -1, 3)
    behind = torch.full_like(seen[:, :1], _FIRST_CELL + max(columns, rows))
    return torch.cat([before, seen, behind], 1)


def text_positions(place: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Positions of text `place` [B, T] tokens behind the picture: `[B, T, 3]`."""
    return (place + _FIRST_CELL + max(grid) + 1)[..., None].expand(-1, -1, 3)


def segment_mask(segment: torch.Tensor, prefix: int) -> torch.Tensor:
    """Who sees whom: text sees the picture and what came before in its own segment. `[B, 1, T, prefix + T]` bool."""
    batch, length = segment.shape
    same = (segment[:, :, None] == segment[:, None, :]).tril()
    seen = torch.ones(batch, length, prefix, dtype=torch.bool, device=segment.device)
    return torch.cat([seen, same], -1)[:, None]


def _rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """`x` [B, heads, L, head_width]."""
    left, right = x.chunk(2, -1)
    turned = x * rotation.cos[:, None] + torch.cat([-right, left], -1) * rotation.sin[:, None]
    return turned.to(x.dtype)


def vision_block(block: Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotation = Rotation(cos, sin)
    q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    seen = F.scaled_dot_product_attention(_rotate(q, rotation), _rotate(k, rotation), v)
    x = x + block.attn.proj(seen.transpose(1, 2).flatten(2))
    return x + block.mlp(block.norm2(x))


def project(layer: Module, x: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of a language layer, `[B, heads, L, head_width]`, keys and values repeated for all heads."""
    attention = layer.self_attn
    y = layer.input_layernorm(x)
    heads = (attention.q_proj(y), attention.k_proj(y), attention.v_proj(y))
    q, k, v = (part.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2) for part in heads)
    repeats = q.shape[1] // k.shape[1]
    k, v = _rotate(k, rotation).repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    return _rotate(q, rotation), k, v


def finish(layer: Module, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The rest of a language layer: `seen` [B, heads, L, head_width] is what attention brought."""
    x = x + layer.self_attn.o_proj(seen.transpose(1, 2).flatten(2))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def language_layer(
    layer: Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One layer over picture and text, `x` [B, P + T, width]; `mask` [B, 1, T, P + T] is for the text's queries."""
    q, k, v = project(layer, x, Rotation(cos, sin))
    prefix = x.shape[1] - mask.shape[2]
    picture = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], is_causal=True)
    text = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=mask)
    return finish(layer, x, torch.cat([picture, text], 2))


class ReaderForward:
    """Runs a reader on batches; `compiled` speeds it up after a first slow step per shape."""

    def __init__(self, model: Qwen2VLForConditionalGeneration, compiled: bool = False):
        self.model = model
        self.vision, self.language = model.model.visual, model.model.language_model
        wrap = (lambda function: torch.compile(function, dynamic=False)) if compiled else (lambda function: function)
        self._vision_block, self._language_layer = wrap(vision_block), wrap(language_layer)

    def encode(self, patches: torch.Tensor, cells: torch.Tensor, columns: int) -> torch.Tensor:
        """Visual tokens `[B, M, width]` of `patches` [B, M, 4, 588], which stand at `cells` [B, M]."""
        # A still picture fills both frames of the encoder's input, so the frames' weights may be added up beforehand.
        weight = self.vision.patch_embed.proj.weight.sum(2).flatten(1)  # [width, 588]
        x = F.linear(patches.flatten(1, 2), weight)
        block = self.vision.blocks[0]
        rotation = vision_rotation(cells, columns, block.attn.head_dim)
        for block in self.vision.blocks:
            x = self._vision_block(block, x, rotation.cos, rotation.sin)
        return self.vision.merger(x.flatten(0, 1)).view(*cells.shape, -1)

    def prefix(self, visual: torch.Tensor) -> torch.Tensor:
        """The picture between its marks, `[B, M + PREFIX_EXTRA, width]`."""
        marks = torch.tensor([vocabulary.USER, vocabulary.VISION_START, vocabulary.VISION_END], device=visual.device)
        embedded = self.language.embed_tokens(marks).to(visual.dtype)[None].expand(len(visual), -1, -1)
        return torch.cat([embedded[:, :2], visual, embedded[:, 2:]], 1)

    def rotation(self, positions: torch.Tensor) -> Rotation:
        return text_rotation(positions, self.language.layers[0].self_attn.head_dim)

    def logits(
        self,
        visual: torch.Tensor,
        cells: torch.Tensor,
        grid: tuple[int, int],
        tokens: torch.Tensor,
        segment: torch.Tensor,
        place: torch.Tensor,
    ) -> torch.Tensor:
        """Next-token logits `[B, T, V]` of the text behind each picture."""
        start = self.prefix(visual)
        x = torch.cat([start, self.language.embed_tokens(tokens).to(start.dtype)], 1)  # [B, P + T, width]
        rotation = self.rotation(torch.cat([prefix_positions(cells, grid), text_positions(place, grid)], 1))
        mask = segment_mask(segment, start.shape[1])
        for layer in self.language.layers:
            x = self._language_layer(layer, x, rotation.cos, rotation.sin, mask)
        return self.model.lm_head(self.language.norm(x[:, start.shape[1] :]))
