"""Processors for some of `more_families.py`: transformers' own classes, without torchvision, one token per character."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

import arr_coc
from arr_coc.adapters.loading import without_video
from tests.adapters.more_families import LISTED, model
from tests.adapters.tiny_vlm import CHAT

SQUARE = {"height": 32, "width": 32}
PATCHES = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 4 * 64, "longest_edge": 16 * 64}}
TILES = {"size": SQUARE, "crop_to_patches": True, "max_patches": 4}
CROP = {"size": {"shortest_edge": 32}, "crop_size": SQUARE}
PINPOINTS = {"image_grid_pinpoints": [[32, 64], [64, 64]]}
ENDS = {"boi_token": "<img>", "eoi_token": "</img>"}
BOTH = {"image_token": "<image>", "video_token": "<video>"}


def words(named: dict[int, str] | None = None, **attributes: str) -> Any:
    """A tokenizer: special tokens first, `named` by their number, then every printable character."""
    special = [
        "<pad>",
        "</s>",
        "<s>",
        "<image>",
        "<video>",
        "<img>",
        "</img>",
        "<7>",
        "<8>",
        "\n",
        "<10>",
        "<11>",
        "<sep>",
    ]
    for number, name in (named or {}).items():
        special[number] = name
    known = {name: number for number, name in enumerate(special)} | {chr(code): code for code in range(32, 127)}
    text = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    text.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    text.decoder = decoders.Fuse()
    text.add_special_tokens([name for name in special if name != "\n"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=text, pad_token="<pad>", eos_token="</s>", bos_token="<s>", extra_special_tokens=attributes
    )


def pictures(family: str, name: str, **settings: Any) -> Any:
    """An image processor that needs Pillow alone."""
    module = import_module(f"transformers.models.{family}.image_processing_pil_{family}")
    return getattr(module, f"{name}ImageProcessorPil")(**settings)


def _qwen(family: str, name: str) -> Any:
    return pictures(family, name, **PATCHES, temporal_patch_size=2)


BUILDERS: dict[str, Callable[[], Any]] = {
    "qwen3_5": lambda: without_video(transformers.Qwen3VLProcessor)(
        _qwen("qwen2_vl", "Qwen2VL"), words(**BOTH, vision_start_token="<img>", vision_end_token="</img>")
    ),
    "glm4v": lambda: without_video(transformers.Glm4vProcessor)(_qwen("glm4v", "Glm4v"), words(**BOTH)),
    "glm46v": lambda: without_video(transformers.Glm46VProcessor)(_qwen("glm46v", "Glm46V"), words(**BOTH)),
    "paddleocr_vl": lambda: transformers.PaddleOCRVLProcessor(
        pictures("paddleocr_vl", "PaddleOCRVL", **PATCHES, temporal_patch_size=1), words(image_token="<image>")
    ),
    "hunyuan_vl": lambda: transformers.HunYuanVLProcessor(
        pictures("hunyuan_vl", "HunYuanVL", **PATCHES, temporal_patch_size=1),
        words(image_token="<image>", image_start_token="<img>", image_end_token="</img>"),
    ),
    "lighton_ocr": lambda: transformers.LightOnOcrProcessor(
        pictures("pixtral", "Pixtral", size={"longest_edge": 32}, patch_size=4),
        words(image_token="<image>", image_break_token="<11>", image_end_token="</img>"),
        patch_size=4, spatial_merge_size=2,
    ),
    "ernie4_5_vl_moe": lambda: without_video(transformers.Ernie4_5_VLMoeProcessor)(
        pictures("ernie4_5_vl_moe", "Ernie4_5_VLMoe", **PATCHES),
        words(**BOTH, image_start_token="<img>", image_end_token="</img>", video_start_token="<7>", video_end_token="<8>"),
    ),
    "video_llama_3": lambda: without_video(transformers.VideoLlama3Processor)(
        pictures("video_llama_3", "VideoLlama3", **PATCHES), words(**BOTH)
    ),
    "gemma3": lambda: transformers.Gemma3Processor(
        pictures("gemma3", "Gemma3", size=SQUARE), words(image_token="<image>", **ENDS), image_seq_length=4
    ),
    "aya_vision": lambda: transformers.AyaVisionProcessor(
        pictures("got_ocr2", "GotOcr2", **TILES),
        words({3: "<|IMG_PATCH|>", 4: "<image>", 5: "<|START_OF_IMG|>", 6: "<|END_OF_IMG|>"}),
        patch_size=8, img_size=32, downsample_factor=2,
    ),
    "qianfan_ocr": lambda: transformers.QianfanOCRProcessor(
        pictures("got_ocr2", "GotOcr2", **TILES),
        words(start_image_token="<img>", end_image_token="</img>", context_image_token="<image>"), image_seq_length=16,
    ),
    "ovis2": lambda: transformers.Ovis2Processor(
        pictures("ovis2", "Ovis2", **TILES),
        words({3: "<IMG_ATOM>", 4: "<image>", 5: "<IMG_START>", 6: "<IMG_END>", 7: "<IMG_GRID>", 8: "<IMG_COL>",
               10: "<IMG_ROW>"}, image_token="<image>"), image_seq_length=16,
    ),
    "deepseek_vl": lambda: transformers.DeepseekVLProcessor(
        pictures("deepseek_vl", "DeepseekVL", size=SQUARE), words(image_token="<image>"), num_image_tokens=16
    ),
    "janus": lambda: transformers.JanusProcessor(
        pictures("janus", "Janus", size=SQUARE), words(image_token="<image>", **ENDS), num_image_tokens=16
    ),
    "chameleon": lambda: transformers.ChameleonProcessor(
        pictures("chameleon", "Chameleon", **CROP), words(image_token="<image>", **ENDS, sep_token="<sep>"),
        image_seq_length=256,
    ),
    "granite4_vision": lambda: transformers.Granite4VisionProcessor(
        pictures("llava_next", "LlavaNext", **CROP, **PINPOINTS), words(image_token="<image>"), patch_size=4,
        vision_feature_select_strategy="full", downsample_rate="4/8",
    ),
}  # fmt: skip
WRAPPED = [name for name in BUILDERS if name in LISTED]


@lru_cache
def wrapped(family: str) -> Any:
    processor = BUILDERS[family]()
    vlm = arr_coc.wrap(model(family), processor)
    processor.chat_template = CHAT.replace("<{{ part['type'] }}>", vlm.prompter.units["image"])
    return vlm
