"""The readers' forward pass for training and validation: whole batches, dropped cells, several questions per picture.

It runs on the modules of the `transformers` model, a Qwen2-VL or a Qwen3-VL, and computes exactly what that model computes
for one question at a time (tests compare the two). The difference: the pictures of a batch go through the encoder as one tensor, any cells may be
dropped, and the questions of a picture share its keys and values. Blocks are compiled one by one, so that all of them share
the same few compiled kernels. `answer` decodes greedily with a key-value cache.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen2VLForConditionalGeneration, Qwen3VLForConditionalGeneration

from recipes.reader import vocabulary
from recipes.reader.folder import IMAGE_MEAN, IMAGE_STD
from recipes.reader.model import PATCH, ROPE_THETA

PREFIX_EXTRA = 3  # <|user|> and <|vision_start|> before the picture, <|vision_end|> behind it
MERGE = 2  # patches per side of a cell
_FIRST_CELL = 2  # position of the picture in the sequence

Module = Any  # a block of the transformers model: its parts are found by name
Model = Qwen2VLForConditionalGeneration | Qwen3VLForConditionalGeneration


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding: cosines and sines for every position, `[B, L, head_width]`."""

    cos: torch.Tensor
    sin: torch.Tensor


def to_patches(images: torch.Tensor, patch: int = PATCH) -> torch.Tensor:
    """Pictures `[B, 3, H, W]` from 0 to 1 as the encoder's input `[B, N, 4, 3 * patch * patch]`, cell by cell."""
    batch, channels, height, width = images.shape
    cell = MERGE * patch
    split = ((images - IMAGE_MEAN) / IMAGE_STD).view(
        batch, channels, height // cell, MERGE, patch, width // cell, MERGE, patch
    )
    return split.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch, -1, MERGE * MERGE, channels * patch * patch)


def take_cells(values: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """Pick `cells` [B, M] out of `values` [B, N, ...]."""
    index = cells.view(*cells.shape, *[1] * (values.ndim - 2)).expand(*cells.shape, *values.shape[2:])
    return values.gather(1, index)


def patch_positions(cells: torch.Tensor, columns: int) -> torch.Tensor:
    """Row and column of the four patches of each cell: `cells` [B, M] -> [B, 4M, 2]."""
    offset = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=cells.device)
    corner = torch.stack([cells // columns, cells % columns], -1) * MERGE  # [B, M, 2]
    return (corner[:, :, None] + offset).flatten(1, 2)


def learned_positions(table: torch.Tensor, positions: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Qwen3-VL's position embeddings `[B, 4M, width]`: `table` [side^2, width] stretched over the picture's patches."""
    side = math.isqrt(len(table))
    longest = torch.tensor([grid[1] * MERGE - 1, grid[0] * MERGE - 1], device=positions.device).clamp(min=1)
    exact = positions * ((side - 1) / longest)  # [B, 4M, 2] row and column in the table
    low = exact.floor().clamp(max=side - 1).long()
    share = exact - low
    row, column = low.unbind(-1)
    found = torch.zeros((), device=table.device)
    for down in (0, 1):
        for right in (0, 1):
            weight = (share[..., 0] if down else 1 - share[..., 0]) * (share[..., 1] if right else 1 - share[..., 1])
            place = (row + down).clamp(max=side - 1) * side + (column + right).clamp(max=side - 1)
            found = found + table[place] * weight[..., None]
    return found


def vision_rotation(cells: torch.Tensor, columns: int, head_width: int) -> Rotation:
    """Rotation of the four patches of each cell: `cells` [B, M] -> [B, 4M, head_width]."""
    positions = patch_positions(cells, columns)
    quarter = head_width // 4
    frequencies = ROPE_THETA ** -(torch.arange(quarter, device=cells.device) / quarter)
    angles = (positions[..., None] * frequencies).flatten(2).repeat(1, 1, 2)  # [B, 4M, head_width]
    return Rotation(angles.cos(), angles.sin())


def rotation_axes(section: list[int], interleaved: bool) -> torch.Tensor:
    """Which of time (0), row (1) and column (2) turns each frequency: `[head_width / 2]`.

    Qwen2-VL gives each a run of frequencies; Qwen3-VL takes turns, and time has what is left.
    """
    if not interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(section))
    axis = torch.zeros(sum(section), dtype=torch.long)
    for number in (1, 2):
        axis[number : 3 * section[number] : 3] = number
    return axis


def text_rotation(positions: torch.Tensor, frequencies: torch.Tensor, axis: torch.Tensor) -> Rotation:
    """Rotation for positions `[B, L, 3]` of time, row and column; frequencies and their axes `[head_width / 2]`."""
    angles = (positions[..., axis] * frequencies).repeat(1, 1, 2)  # [B, L, head_width]
    return Rotation(angles.cos(), angles.sin())


def prefix_positions(cells: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Positions of the picture and the tokens around it, `[B, M + PREFIX_EXTRA, 3]`; a dropped cell leaves a gap."""
    columns, rows = grid
    seen = torch.stack([torch.zeros_like(cells), cells // columns, cells % columns], -1) + _FIRST_CELL
    before = torch.arange(_FIRST_CELL, device=cells.device)[None, :, None].expand(len(cells), -1, 3)
    behind = torch.full_like(seen[:, :1], _FIRST_CELL + max(columns, rows))
    return torch.cat([before, seen, behind], 1)


def text_positions(place: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Positions of text `place` [B, T] tokens behind the picture: `[B, T, 3]`."""
    return (place + _FIRST_CELL + max(grid) + 1)[..., None].expand(-1, -1, 3)


def segment_mask(segment: torch.Tensor, prefix: int) -> torch.Tensor:
    """Attention mask `[B, 1, T, prefix + T]`: text attends to the picture and to earlier text of its own segment."""
    batch, length = segment.shape
    same = (segment[:, :, None] == segment[:, None, :]).tril()
    seen = torch.ones(batch, length, prefix, dtype=torch.bool, device=segment.device)
    return torch.cat([seen, same], -1)[:, None]


def _rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """`x` [B, heads, L, head_width]."""
    left, right = x.chunk(2, -1)
    turned = x * rotation.cos[:, None] + torch.cat([-right, left], -1) * rotation.sin[:, None]
    return turned.to(x.dtype)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False
) -> torch.Tensor:
    """Attention `[B, heads, L, head_width]`. In bfloat16 on a CPU plain products take half the time of torch's kernel."""
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
    return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def vision_block(block: Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotation = Rotation(cos, sin)
    q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    seen = attend(_rotate(q, rotation), _rotate(k, rotation), v)
    x = x + block.attn.proj(seen.transpose(1, 2).flatten(2))
    return x + block.mlp(block.norm2(x))


def project(layer: Module, x: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of a language layer, `[B, heads, L, head_width]`, keys and values repeated for all heads."""
    attention = layer.self_attn
    y = layer.input_layernorm(x)
    heads = (attention.q_proj(y), attention.k_proj(y), attention.v_proj(y))
    q, k, v = (part.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2) for part in heads)
    if hasattr(attention, "q_norm"):  # Qwen3-VL
        q, k = attention.q_norm(q).to(v.dtype), attention.k_norm(k).to(v.dtype)
    repeats = q.shape[1] // k.shape[1]
    k, v = _rotate(k, rotation).repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    return _rotate(q, rotation), k, v


def finish_layer(layer: Module, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The rest of a language layer: `seen` [B, heads, L, head_width] is the attention output."""
    x = x + layer.self_attn.o_proj(seen.transpose(1, 2).flatten(2))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def language_layer(
    layer: Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One layer over picture and text, `x` [B, P + T, width]; `mask` [B, 1, T, P + T] is for the text's queries."""
    q, k, v = project(layer, x, Rotation(cos, sin))
    prefix = x.shape[1] - mask.shape[2]
    picture = attend(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], causal=True)
    text = attend(q[:, :, prefix:], k, v, mask)
    return finish_layer(layer, x, torch.cat([picture, text], 2))


def all_cells(batch: int, cells: int, device: torch.device) -> torch.Tensor:
    return torch.arange(cells, device=device).expand(batch, -1)


class ReaderForward:
    """Runs a reader on batches; `compiled` speeds it up after a first slow step per shape."""

    def __init__(self, model: Model, compiled: bool = False):
        self.model = model
        self.vision, self.language = model.model.visual, model.model.language_model
        self.patch = int(self.vision.config.patch_size)
        self.width = int(self.language.config.hidden_size)
        qwen3 = isinstance(model, Qwen3VLForConditionalGeneration)
        self.deepened = tuple(self.vision.deepstack_visual_indexes) if qwen3 else ()
        self._axes = rotation_axes(self.language.config.rope_parameters["mrope_section"], interleaved=qwen3)
        wrap = (lambda function: torch.compile(function, dynamic=False)) if compiled else (lambda function: function)
        self._vision_block, self._language_layer = wrap(vision_block), wrap(language_layer)

    def encode(self, patches: torch.Tensor, cells: torch.Tensor, columns: int, rows: int | None = None) -> torch.Tensor:
        """Visual tokens `[B, M, width]` of `patches` [B, M, 4, 3 * patch^2], at `cells` [B, M].

        Qwen3-VL's learned positions need the picture's `rows`. Behind each of its tokens come those of its DeepStack:
        `[B, M, width * (1 + D)]`.
        """
        # A still picture fills both frames of the encoder's input, so the weights of the frames can be added.
        weight = self.vision.patch_embed.proj.weight.sum(2).flatten(1)  # [width, 3 * patch^2]
        x = F.linear(patches.flatten(1, 2), weight, self.vision.patch_embed.proj.bias)
        if hasattr(self.vision, "pos_embed"):
            if rows is None:
                raise ValueError("this encoder has learned positions: expected the rows of the grid, got None")
            places = patch_positions(cells, columns)
            x = x + learned_positions(self.vision.pos_embed.weight, places, (columns, rows)).to(x.dtype)
        rotation = vision_rotation(cells, columns, self.vision.blocks[0].attn.head_dim)
        found = []
        for number, block in enumerate(self.vision.blocks):
            x = self._vision_block(block, x, rotation.cos, rotation.sin)
            if number in self.deepened:
                merger = self.vision.deepstack_merger_list[self.deepened.index(number)]
                found.append(merger(x.flatten(0, 1)))
        return torch.cat([self.vision.merger(x.flatten(0, 1)), *found], -1).view(*cells.shape, -1)

    def prefix(self, visual: torch.Tensor) -> torch.Tensor:
        """The picture between its marks, `[B, M + PREFIX_EXTRA, width]`."""
        marks = torch.tensor([vocabulary.USER, vocabulary.VISION_START, vocabulary.VISION_END], device=visual.device)
        embedded = self.language.embed_tokens(marks).to(visual.dtype)[None].expand(len(visual), -1, -1)
        return torch.cat([embedded[:, :2], visual[..., : self.width], embedded[:, 2:]], 1)

    def deepen(self, number: int, x: torch.Tensor, visual: torch.Tensor) -> torch.Tensor:
        """`x` [B, L, width] behind a language layer, with the picture's features that DeepStack adds there."""
        if number >= len(self.deepened):
            return x
        features = visual[..., self.width * (number + 1) : self.width * (number + 2)]
        return x + F.pad(features, (0, 0, _FIRST_CELL, x.shape[1] - _FIRST_CELL - features.shape[1])).to(x.dtype)

    def rotation(self, positions: torch.Tensor) -> Rotation:
        frequencies = self.language.rotary_emb.inv_freq.float().to(positions.device)
        return text_rotation(positions, frequencies, self._axes.to(positions.device))

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
        for number, layer in enumerate(self.language.layers):
            x = self._language_layer(layer, x, rotation.cos, rotation.sin, mask)
            x = self.deepen(number, x, visual)
        return self.model.lm_head(self.language.norm(x[:, start.shape[1] :]))


# Greedy decoding for validation

_KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]  # layer by layer
_ROWS = 256  # questions in a batch


class _KeyValueCache:
    """Keys and values of every layer: those of the picture, then those of the text so far."""

    def __init__(self, prefix: _KeysAndValues, pictures: torch.Tensor, room: int):
        self.used = prefix[0][0].shape[2]
        self.keys, self.values = [], []
        for keys, values in prefix:
            self.keys.append(F.pad(keys[pictures], (0, 0, 0, room)))
            self.values.append(F.pad(values[pictures], (0, 0, 0, room)))

    def extend(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the text's new keys and values behind `used`; returns all of the layer's so far."""
        end = self.used + keys.shape[2]
        self.keys[layer][:, :, self.used : end] = keys
        self.values[layer][:, :, self.used : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


def _encode_pictures(
    forward: ReaderForward, patches: torch.Tensor, cells: torch.Tensor, grid: tuple[int, int]
) -> _KeysAndValues:
    """Keys and values of the pictures, layer by layer."""
    visual = forward.encode(patches, cells, *grid)
    x = forward.prefix(visual)
    rotation = forward.rotation(prefix_positions(cells, grid))
    prefix = []
    for number, layer in enumerate(forward.language.layers):
        q, k, v = project(layer, x, rotation)
        prefix.append((k, v))
        x = finish_layer(layer, x, attend(q, k, v, causal=True))
        x = forward.deepen(number, x, visual)
    return prefix


def _step(
    forward: ReaderForward, cache: _KeyValueCache, tokens: torch.Tensor, rotation: Rotation, mask: torch.Tensor
) -> torch.Tensor:
    """Logits `[R, V]` behind the last of `tokens` [R, L]."""
    x = forward.language.embed_tokens(tokens)
    for number, layer in enumerate(forward.language.layers):
        q, k, v = project(layer, x, rotation)
        k, v = cache.extend(number, k, v)
        x = finish_layer(layer, x, attend(q, k, v, mask))
    cache.used += tokens.shape[1]
    return forward.model.lm_head(forward.language.norm(x[:, -1]))


@torch.no_grad()
def answer(
    forward: ReaderForward,
    patches: torch.Tensor,
    questions: list[list[str]],
    grid: tuple[int, int],
    cells: torch.Tensor | None = None,
    longest: int = 130,
) -> list[list[str]]:
    """Answers to `questions[i]` about picture i of `patches` [B, M, 4, 3 * patch^2], all of one `grid`.

    `cells` [B, M] are the patches' cells when some are dropped; without it they are the whole picture.
    """
    device = patches.device
    cells = all_cells(len(patches), grid[0] * grid[1], device) if cells is None else cells
    prefix = _encode_pictures(forward, patches, cells, grid)
    asked = [(number, text) for number, texts in enumerate(questions) for text in texts]
    answers: list[str] = []
    for start in range(0, len(asked), _ROWS):
        rows = asked[start : start + _ROWS]
        answers += _answer_rows(
            forward, prefix, torch.tensor([n for n, _ in rows], device=device), [t for _, t in rows], grid, longest
        )
    found = iter(answers)
    return [[next(found) for _ in texts] for texts in questions]


def _answer_rows(
    forward: ReaderForward,
    prefix: _KeysAndValues,
    pictures: torch.Tensor,
    texts: list[str],
    grid: tuple[int, int],
    longest: int,
) -> list[str]:
    device = pictures.device
    prompts = [[*vocabulary.encode(text), vocabulary.ASSISTANT] for text in texts]
    width = max(map(len, prompts))
    padding = torch.tensor(
        [width - len(prompt) for prompt in prompts], device=device
    )  # on the left, so that answers start together
    tokens = torch.tensor([[vocabulary.PAD] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    cache = _KeyValueCache(prefix, pictures, width + longest)
    count, columns = cache.used, torch.arange(width + longest, device=device)
    real = torch.cat(
        [torch.ones(len(texts), count, dtype=torch.bool, device=device), columns >= padding[:, None]], 1
    )  # [R, P + width + longest]
    place = (columns[:width] - padding[:, None]).clamp(min=0)
    earlier = torch.ones(width, count + width, dtype=torch.bool, device=device).tril(count)
    logits = _step(
        forward,
        cache,
        tokens,
        forward.rotation(text_positions(place, grid)),
        (earlier & real[:, None, : count + width])[:, None],
    )
    written, done = [], torch.zeros(len(texts), dtype=torch.bool, device=device)
    for number in range(longest):
        latest = torch.where(done, vocabulary.PAD, logits.argmax(-1))
        written.append(latest)
        done |= latest == vocabulary.END
        if number % 8 == 7 and done.all():  # checking at every token would synchronise the device
            break
        place = (width + number - padding)[:, None]
        mask = real[:, None, None, : cache.used + 1]
        logits = _step(forward, cache, latest[:, None], forward.rotation(text_positions(place, grid)), mask)
    return [vocabulary.decode(row) for row in torch.stack(written, 1).tolist()]
