"""The second reader's network: a small Qwen3-VL with DeepStack and cells of 32 pixels, started from the first reader's weights.

Qwen3-VL differs from Qwen2-VL in five places. Each is started so that the new network computes what the old one did:

- Patches of 16 pixels instead of 14: the patch embedding is resampled so that it gives the same values for a patch that was enlarged.
- Queries and keys are normalised. Each head gets `EXTRA` more values, constant and large: so the norm hardly depends on the rest.
- Time, rows and columns take turns in the rotary frequencies instead of having a run of them each. The heads' values are
  reordered, and every frequency is set to the one that it had (`longrope` lets each be set).
- Learned positions and DeepStack's features are added: they start at zero.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen2VLForConditionalGeneration, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from recipes.reader import model as first
from recipes.reader import vocabulary
from recipes.reader.forward import MERGE, rotation_axes
from recipes.reader.model import ROPE_THETA, ReaderShape

PATCH = 16
CELL = PATCH * MERGE
CONSTANT = 3.0  # of the extra values, as a multiple of the largest mean length of a layer's queries or keys
_SAMPLES = 512  # random inputs that measure the mean length of queries and keys


@dataclass(frozen=True)
class SecondShape:
    """Sizes of the network: those of the first reader, where DeepStack takes its features, and the table of positions."""

    base: ReaderShape = first.STANDARD
    deepstack: tuple[int, ...] = (2,)
    positions: int = 16  # per side of the table of learned positions

    @property
    def head_width(self) -> int:
        """Of the language model: as many frequencies for time as for rows and for columns."""
        return 2 * sum(self.section)

    @property
    def section(self) -> list[int]:
        """Rotary frequencies of time, rows and columns. They take turns, so each gets as many as the one with the most."""
        return [max(first.mrope_section(self.base.head_width))] * 3


STANDARD = SecondShape()
TINY = SecondShape(base=dataclasses.replace(first.TINY, depth=2), deepstack=(0,), positions=4)


def _axis_places(axis: torch.Tensor, count: torch.Tensor) -> list[torch.Tensor]:
    return [(axis == number).nonzero()[: int(count[number]), 0] for number in range(3)]


def frequency_places(shape: SecondShape) -> torch.Tensor:
    """Where each frequency of the first reader is among those of the second, on the same axis: `[head_width / 2]`."""
    old = rotation_axes(first.mrope_section(shape.base.head_width), interleaved=False)
    new = rotation_axes(shape.section, interleaved=True)
    places = torch.empty_like(old)
    for number, found in enumerate(_axis_places(new, old.bincount(minlength=3))):
        places[old == number] = found
    return places


def rope_parameters(shape: SecondShape) -> dict[str, object]:
    """Rotary settings that give every frequency the value that it had in the first reader; the extra ones do not turn."""
    half, old = shape.head_width // 2, shape.base.head_width // 2
    plain = ROPE_THETA ** -(torch.arange(half, dtype=torch.float64) / half)
    wanted = torch.full((half,), 1e-6, dtype=torch.float64)
    wanted[frequency_places(shape)] = ROPE_THETA ** -(torch.arange(old, dtype=torch.float64) / old)
    factor = (plain / wanted).tolist()
    return {
        "rope_type": "longrope",
        "rope_theta": ROPE_THETA,
        "mrope_section": shape.section,
        "mrope_interleaved": True,
        "short_factor": factor,
        "long_factor": factor,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": shape.base.max_positions,
    }


def config(shape: SecondShape = STANDARD) -> Qwen3VLConfig:
    base = shape.base
    return Qwen3VLConfig(
        vision_config={
            "depth": base.vision_depth,
            "hidden_size": base.vision_width,
            "intermediate_size": 4 * base.vision_width,
            "num_heads": base.vision_width // base.head_width,
            "out_hidden_size": base.width,
            "hidden_act": "quick_gelu",
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "in_channels": 3,
            "num_position_embeddings": shape.positions**2,
            "deepstack_visual_indexes": list(shape.deepstack),
        },
        text_config={
            "hidden_size": base.width,
            "intermediate_size": base.width * 8 // 3 // 64 * 64,
            "num_hidden_layers": base.depth,
            "num_attention_heads": base.width // base.head_width,
            "num_key_value_heads": base.key_heads,
            "head_dim": shape.head_width,
            "attention_bias": True,
            "vocab_size": vocabulary.VOCABULARY_SIZE,
            "rope_parameters": rope_parameters(shape),
            "max_position_embeddings": base.max_positions,
            "bos_token_id": vocabulary.USER,
            "eos_token_id": vocabulary.END,
            "pad_token_id": vocabulary.PAD,
            "tie_word_embeddings": True,
        },
        image_token_id=vocabulary.IMAGE,
        video_token_id=vocabulary.VIDEO,
        vision_start_token_id=vocabulary.VISION_START,
        vision_end_token_id=vocabulary.VISION_END,
        tie_word_embeddings=True,
    )


def build(shape: SecondShape = STANDARD) -> Qwen3VLForConditionalGeneration:
    """A second reader with random weights in float32."""
    return Qwen3VLForConditionalGeneration._from_config(config(shape), attn_implementation="sdpa")


def enlarging(old: int, new: int) -> torch.Tensor:
    """The matrix `[new^2, old^2]` that enlarges a patch bilinearly."""
    basis = torch.eye(old * old).view(-1, 1, old, old)
    return F.interpolate(basis, (new, new), mode="bilinear", antialias=True, align_corners=False).flatten(1).T


def resampled(weight: torch.Tensor, size: int) -> torch.Tensor:
    """Weights `[out, 3, 2, p, p]` of a patch embedding for patches of `size`: an enlarged patch gives the same values."""
    inverse = torch.linalg.pinv(enlarging(weight.shape[-1], size).double())  # [old^2, new^2]
    return (weight.flatten(-2).double() @ inverse).unflatten(-1, (size, size)).to(weight.dtype)


@torch.no_grad()
def warm_start(
    model: Qwen3VLForConditionalGeneration, source: Qwen2VLForConditionalGeneration, shape: SecondShape
) -> None:
    """Give the model the first reader's weights; see the top of this file."""
    old, new = source.model.visual, model.model.visual
    new.patch_embed.proj.weight.copy_(resampled(old.patch_embed.proj.weight, PATCH))
    nn.init.zeros_(new.patch_embed.proj.bias)
    nn.init.zeros_(new.pos_embed.weight)
    for mine, theirs in zip(new.blocks, old.blocks, strict=True):
        for name in ("norm1", "norm2", "attn.qkv", "attn.proj"):
            mine.get_submodule(name).load_state_dict(theirs.get_submodule(name).state_dict())
        mine.mlp.linear_fc1.load_state_dict(theirs.mlp.fc1.state_dict())
        mine.mlp.linear_fc2.load_state_dict(theirs.mlp.fc2.state_dict())
    mergers = [new.merger, *new.deepstack_merger_list]
    for merger in mergers:
        merger.linear_fc1.load_state_dict(old.merger.mlp[0].state_dict())
    new.merger.norm.load_state_dict(old.merger.ln_q.state_dict())
    new.merger.linear_fc2.load_state_dict(old.merger.mlp[2].state_dict())
    for merger in mergers[1:]:
        nn.init.zeros_(merger.linear_fc2.weight)
        nn.init.zeros_(merger.linear_fc2.bias)
    _start_language(model, source, shape)
    model.tie_weights()


def _start_language(
    model: Qwen3VLForConditionalGeneration, source: Qwen2VLForConditionalGeneration, shape: SecondShape
) -> None:
    old, new = source.model.language_model, model.model.language_model
    new.embed_tokens.load_state_dict(old.embed_tokens.state_dict())
    new.norm.load_state_dict(old.norm.state_dict())
    places = frequency_places(shape)
    width, before = shape.head_width, shape.base.head_width
    places = torch.cat([places, places + width // 2])  # of a head's values
    for mine, theirs in zip(new.layers, old.layers, strict=True):
        for name in ("mlp", "input_layernorm", "post_attention_layernorm"):
            mine.get_submodule(name).load_state_dict(theirs.get_submodule(name).state_dict())
        a, b = mine.self_attn, theirs.self_attn
        typical = theirs.input_layernorm.weight * torch.randn(_SAMPLES, shape.base.width)
        for name in ("q", "k", "v"):
            target, given = a.get_submodule(f"{name}_proj"), b.get_submodule(f"{name}_proj")
            nn.init.zeros_(target.weight)
            nn.init.zeros_(target.bias)
            target.weight.view(-1, width, shape.base.width)[:, places] = given.weight.view(-1, before, shape.base.width)
            target.bias.view(-1, width)[:, places] = given.bias.view(-1, before)
            if name == "v":
                continue
            lengths = given(typical).unflatten(-1, (-1, before)).square().sum(-1).mean(0)  # [heads]
            constant = CONSTANT * math.sqrt(float(lengths.max()) / (width - before))
            extra = torch.ones(width, dtype=torch.bool).index_fill(0, places, False)
            target.bias.view(-1, width)[:, extra] = constant
            # The norm divides by the root of the mean square; logits are divided by the root of the head's width.
            length = math.sqrt((float(lengths.mean()) + constant**2 * (width - before)) / width)
            norm = a.get_submodule(f"{name}_norm")
            norm.weight.fill_(length * (width / before) ** 0.25)
            norm.weight[extra] = 0.0
        nn.init.zeros_(a.o_proj.bias)
        nn.init.zeros_(a.o_proj.weight)
        a.o_proj.weight.view(shape.base.width, -1, width)[..., places] = b.o_proj.weight.view(
            shape.base.width, -1, before
        )
