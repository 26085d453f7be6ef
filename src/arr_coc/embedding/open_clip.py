"""Checkpoints of open_clip, from a folder: its names for the weights, put into the CLIP that transformers has.

open_clip itself is not needed (it would bring torchvision). The folder is as open_clip writes it to the hub:
`open_clip_config.json`, `open_clip_model.safetensors` or `open_clip_pytorch_model.bin`, and the tokenizer's files.
Towers are plain vision transformers with a class token, and CLIP's own text transformer; others are refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding.checkpoints import Contrastive
from arr_coc.embedding.towers import ClipTower
from arr_coc.errors import EncoderError, first_line

CONFIG = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")
HEAD_WIDTH = 64  # of the vision tower, unless its configuration says otherwise
MEAN, DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]  # open_clip's own default
VISION_KEYS = {"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size"}
TEXT_KEYS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}

BLOCK = {
    "ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj", "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}  # fmt: skip
PLAIN = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final": "text_model.final_layer_norm",
    "logit_scale": "logit_scale",
}  # fmt: skip
TURNED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}


def open_open_clip(name: str, device: torch.device, dtype: torch.dtype) -> Contrastive:
    """The encoder of a folder with an open_clip checkpoint."""
    from transformers import AutoTokenizer, CLIPModel

    folder = Path(name).expanduser()
    weights = next((folder / file for file in WEIGHTS if (folder / file).is_file()), None)
    if not (folder / CONFIG).is_file() or weights is None:
        raise EncoderError(f"expected a folder with {CONFIG} and {WEIGHTS[0]} or {WEIGHTS[-1]}, got {name!r}")
    try:
        given = json.loads((folder / CONFIG).read_text())
        model = CLIPModel(configuration(given["model_cfg"]))
        model.load_state_dict(renamed(_read(weights)))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except EncoderError:
        raise
    except Exception as error:  # broken files are reported in many ways
        raise EncoderError(f"cannot load the open_clip checkpoint {name!r}: {first_line(error)}") from error
    shown = given.get("preprocess_cfg", {})
    mean, deviation = shown.get("mean", MEAN), shown.get("std", DEVIATION)
    return Contrastive(ClipTower(model), tokenizer, list(mean), list(deviation), device, dtype)


def configuration(given: Mapping[str, Any]) -> Any:
    """transformers' configuration for open_clip's `model_cfg`."""
    from transformers import CLIPConfig

    vision, text = given["vision_cfg"], given["text_cfg"]
    strange = sorted((vision.keys() - VISION_KEYS) | (text.keys() - TEXT_KEYS))
    if strange or not isinstance(vision["layers"], int):
        what = ", ".join(strange) or "a ResNet"
        raise EncoderError(f"expected an open_clip model of two plain transformers, got one with {what}")
    activation = "quick_gelu" if given.get("quick_gelu") else "gelu"
    return CLIPConfig(
        projection_dim=given["embed_dim"],
        vision_config={
            "hidden_size": vision["width"], "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", HEAD_WIDTH),
            "intermediate_size": int(vision["width"] * vision.get("mlp_ratio", 4.0)),
            "image_size": vision["image_size"], "patch_size": vision["patch_size"], "hidden_act": activation,
        },
        text_config={
            "hidden_size": text["width"], "num_hidden_layers": text["layers"], "num_attention_heads": text["heads"],
            "intermediate_size": int(text["width"] * text.get("mlp_ratio", 4.0)),
            "max_position_embeddings": text.get("context_length", 77), "vocab_size": text.get("vocab_size", 49408),
            "hidden_act": activation,
            # With 2, transformers reads the text's vector at the largest token, as open_clip does.
            "eos_token_id": 2,
        },
    )  # fmt: skip


def renamed(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """open_clip's weights under transformers' names."""
    out: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        name = name.removeprefix("module.")
        stem, _, last = name.rpartition(".")
        block = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)", name)
        if name == "attn_mask":  # the triangle that the text transformer makes itself
            continue
        if name in TURNED:
            out[TURNED[name]] = tensor.T.contiguous()
        elif name in PLAIN:
            out[PLAIN[name]] = tensor
        elif stem in PLAIN:
            out[f"{PLAIN[stem]}.{last}"] = tensor
        elif block is not None:
            place = f"{'vision' if block[1] else 'text'}_model.encoder.layers.{block[2]}."
            out |= {place + inner: part for inner, part in _block(block[3], tensor)}
        else:
            raise EncoderError(f"expected an open_clip model of two plain transformers, got one with {name!r}")
    return out


def _block(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """One weight of a block under its names in transformers: three for the joint projection of attention."""
    if name in ("attn.in_proj_weight", "attn.in_proj_bias"):
        kind = name.rpartition("_")[2]
        return [(f"self_attn.{p}_proj.{kind}", part) for p, part in zip("qkv", tensor.chunk(3), strict=True)]
    stem, _, last = name.rpartition(".")
    if stem not in BLOCK:
        raise EncoderError(f"expected an open_clip model of two plain transformers, got blocks with {name!r}")
    return [(f"{BLOCK[stem]}.{last}", tensor)]


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return dict(stored.get("state_dict", stored))
