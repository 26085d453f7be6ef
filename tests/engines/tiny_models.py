"""Folders of tiny random models that vLLM can serve: its attention on CPUs needs heads of 32 dimensions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from arr_coc import reader
from recipes.reader import vocabulary
from tests.adapters.families import QWEN_TOKENS, QWEN_VISION, TEXT, _initialise_qwen

HEADS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 4, 4]}
VISION = QWEN_VISION | {"out_hidden_size": 64}
PIXELS = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 25600}}  # a cell is 8 x 8 px; 4 to 400 cells


def config(family: str) -> Any:
    text = TEXT | HEADS | {"rope_parameters": MROPE}
    if family == "qwen2_vl":
        vision = {"depth": 3, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "patch_size": 4}
        return transformers.Qwen2VLConfig(vision_config=vision, text_config=text, **QWEN_TOKENS)
    if family == "qwen2_5_vl":
        windows = {"window_size": 16, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2}
        return transformers.Qwen2_5_VLConfig(vision_config=VISION | windows, text_config=text, **QWEN_TOKENS)
    text |= {"head_dim": 32, "rope_parameters": MROPE | {"mrope_interleaved": True}}
    deep = {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]}
    return transformers.Qwen3VLConfig(vision_config=VISION | deep, text_config=text, **QWEN_TOKENS)


def write(family: str, folder: Path) -> Path:
    """A random model whose answers depend on the picture, with the shipped reader's tokenizer and chat template."""
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config(family))
    for name, weights in model.named_parameters():
        _initialise_qwen(name, weights.data, experts=False)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(reader.WEIGHTS / name, folder / name)
    settings = json.loads((reader.WEIGHTS / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | PIXELS))
    assert model.config.get_text_config().vocab_size == vocabulary.VOCABULARY_SIZE
    return folder


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise with a dark frame: some cells have more to show than others."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 2] //= 4
    return Image.fromarray(pixels)
