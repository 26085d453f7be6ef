"""Tiny random models of every family, and prompts for them: ids, masks, pixels, made by hand."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from arr_coc.reader import vocabulary

IMAGE, VIDEO, START, END, PAD = (
    vocabulary.IMAGE, vocabulary.VIDEO, vocabulary.VISION_START, vocabulary.VISION_END, vocabulary.PAD
)  # fmt: skip

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": vocabulary.VOCABULARY_SIZE,
    "max_position_embeddings": 4096,
    "pad_token_id": PAD,
    "eos_token_id": vocabulary.END,
    "bos_token_id": vocabulary.USER,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TOKENS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END,
}  # fmt: skip


def qwen2_vl() -> Any:
    return transformers.Qwen2VLConfig(
        vision_config={"depth": 3, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 4},
        text_config=TEXT | {"rope_parameters": MROPE},
        **TOKENS,
    )


def qwen2_5_vl() -> Any:
    return transformers.Qwen2_5_VLConfig(
        vision_config={
            "depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
            "patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2,
        },
        text_config=TEXT | {"rope_parameters": MROPE},
        **TOKENS,
    )  # fmt: skip


def qwen3_vl() -> Any:
    return transformers.Qwen3VLConfig(
        vision_config={
            "depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
            "patch_size": 4, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2],
        },
        text_config=TEXT | {"rope_parameters": MROPE, "head_dim": 8},
        **TOKENS,
    )  # fmt: skip


CONFIGS = {"qwen2_vl": qwen2_vl, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl}


def model(family: str, attention: str = "sdpa", seed: int = 0) -> Any:
    """A random model whose answers depend on what it sees: weights large enough that attention is not flat."""
    torch.manual_seed(seed)
    built = transformers.AutoModelForImageTextToText.from_config(CONFIGS[family](), attn_implementation=attention)
    for name, weights in built.named_parameters():
        if weights.ndim > 1:
            attends = any(part in name for part in ("qkv", "q_proj", "k_proj"))
            scale = 0.5 if "embed" in name else (1.8 if attends else 0.8) / weights.shape[-1] ** 0.5
            torch.nn.init.normal_(weights, std=scale)
        elif "bias" in name:
            torch.nn.init.normal_(weights, std=0.1)
    return built.eval()


# One row of a prompt: words, and visuals as (kind, t, h, w) in patches.
Row = list[Any]

PROMPTS: dict[str, list[Row]] = {
    "image": [[65, 66, ("image", 1, 8, 12), 67, 68, 69]],
    "two images": [[65, ("image", 1, 8, 6), 66, ("image", 1, 4, 10), 67, 68]],
    "video": [[65, ("video", 3, 6, 8), 67, 68]],
    "mixed": [[65, ("video", 2, 4, 8), 66, ("image", 1, 6, 6), 67, 68]],
    "ragged": [
        [65, 66, ("image", 1, 8, 12), 67, 68, 69],
        [70, ("image", 1, 4, 6), 71],
        [72, 73, 74, ("image", 1, 6, 6), 75, ("image", 1, 4, 4), 76, 77],
    ],
}


def prompt(rows: list[Row], family: str, side: str = "left", seed: int = 1) -> dict[str, torch.Tensor]:
    """What a processor would return for these rows."""
    merge = 2
    dice = torch.Generator().manual_seed(seed)
    ids: list[list[int]] = []
    grids: dict[str, list[list[int]]] = {"image": [], "video": []}
    for row in rows:
        tokens: list[int] = []
        for part in row:
            if isinstance(part, int):
                tokens.append(part)
                continue
            kind, t, h, w = part
            token = IMAGE if kind == "image" else VIDEO
            grids[kind].append([t, h, w])
            # Qwen3 sets each frame of a video apart.
            frames = t if family == "qwen3_vl" and kind == "video" else 1
            for frame in range(frames):
                tokens += (
                    [vocabulary.LAST_CHARACTER - frame] * (frames > 1)
                    + [START]
                    + [token] * (t * h * w // merge**2 // frames)
                    + [END]
                )
        ids.append(tokens)
    length = max(map(len, ids))
    padded = [[PAD] * (length - len(r)) + r if side == "left" else r + [PAD] * (length - len(r)) for r in ids]
    inputs = {"input_ids": torch.tensor(padded)}
    inputs["attention_mask"] = (inputs["input_ids"] != PAD).long()
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int() + 2 * (inputs["input_ids"] == VIDEO).int()
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw")
    ):  # fmt: skip
        if grids[kind]:
            inputs[grid] = torch.tensor(grids[kind])
            inputs[pixels] = torch.randn(int(inputs[grid].prod(1).sum()), 3 * 2 * 4 * 4, generator=dice)
    return inputs
