"""Tiny random CLIP, SigLIP and SigLIP 2 checkpoints, in memory and as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers.processors import TemplateProcessing

from arr_coc.embedding.checkpoints import TOWERS, ContrastiveEncoder
from recipes.reader import folder, vocabulary

CELL, SIDE = 4, 24
MEAN, DEVIATION = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
BODY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = BODY | {"vocab_size": vocabulary.VOCABULARY_SIZE, "max_position_embeddings": 40, "eos_token_id": vocabulary.END}
CPU = torch.device("cpu")


def config(kind: str) -> Any:
    if kind == "clip":
        vision = BODY | {"image_size": SIDE, "patch_size": CELL}
        return transformers.CLIPConfig(text_config=TEXT, vision_config=vision, projection_dim=24)
    if kind == "siglip":
        vision = BODY | {"image_size": SIDE, "patch_size": CELL}
        return transformers.SiglipConfig(text_config=TEXT, vision_config=vision)
    vision = BODY | {"num_patches": (SIDE // CELL) ** 2, "patch_size": CELL}
    return transformers.Siglip2Config(text_config=TEXT, vision_config=vision)


def model(kind: str, seed: int = 0) -> Any:
    """Random weights large enough that every part of the model matters."""
    torch.manual_seed(seed)
    built = transformers.AutoModel.from_config(config(kind))
    for weights in built.parameters():
        torch.nn.init.normal_(weights, std=0.1 if weights.ndim < 2 else 1.0 / weights[0].numel() ** 0.5)
    return built.eval()


def tokenizer() -> Any:
    characters = folder.tokenizer()
    characters.post_processor = TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", vocabulary.END)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<|pad|>", eos_token="<|end|>", unk_token="<|unknown|>"
    )


def encoder(kind: str, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> ContrastiveEncoder:
    return ContrastiveEncoder(TOWERS[kind](model(kind)), tokenizer(), MEAN, DEVIATION, device, dtype)


def checkpoint(kind: str, place: Path) -> Path:
    """The same as files."""
    model(kind).save_pretrained(place)
    tokenizer().save_pretrained(place)
    (place / "preprocessor_config.json").write_text(json.dumps({"image_mean": MEAN, "image_std": DEVIATION}))
    return place
