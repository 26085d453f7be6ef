"""A processor for the tiny models: one token a character, patches of 4 pixels, no torchvision."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arr_coc.adapters.loading import without_video
from arr_coc.adapters.video_processor import QwenVideoProcessor
from arr_coc.reader import folder, vocabulary

PROCESSORS = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}
CELL = 8
SIZE = {"shortest_edge": 4 * CELL**2, "longest_edge": 64 * CELL**2}


def processor(family: str) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=folder.tokenizer(), pad_token="<|pad|>", eos_token="<|end|>", unk_token="<|unknown|>"
    )
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=SIZE)
    base = getattr(transformers, PROCESSORS[family])
    made = without_video(base)(images, tokenizer, chat_template=vocabulary.CHAT_TEMPLATE)
    made.video_processor = QwenVideoProcessor.from_settings(family, images, {"size": SIZE})
    return made
