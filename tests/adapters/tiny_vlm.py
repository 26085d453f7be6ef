"""Tiny wrapped models with their processors, pictures for them, and the stock model's answer to the same question.

One token per character, no torchvision. The Qwen processors make patches of 4 pixels, the others tiles of 32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import transformers
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import arr_coc
from arr_coc.adapters.loading import without_video
from arr_coc.adapters.video_processor import QwenVideoProcessor, SquareVideoProcessor
from recipes.reader import folder, vocabulary
from tests.adapters import families

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
# The families whose tokens have one position each; "llava_padded" is LLaVA with a processor that pads to a square.
FLAT = ["llava", "llava_padded", "llava_next", "llava_onevision", "internvl", "idefics3"]
FLAT += ["smolvlm"] * ("smolvlm" in families.FAMILIES)
QWEN_PROCESSORS = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}
CELL = 8
QWEN_SIZE = {"shortest_edge": 4 * CELL**2, "longest_edge": 64 * CELL**2}
SQUARE = {"height": 32, "width": 32}
CHAT = (
    "{% for message in messages %}{{ message['role'].upper() }}:"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part['type'] }}>\n"
    "{% endif %}{% endfor %}{% endif %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def build(family: str, attention: str = "sdpa") -> Any:
    """A wrapped model that a test may change."""
    return arr_coc.wrap(families.model(family.removesuffix("_padded"), attention), processor(family))


wrapped = lru_cache(build)


def picture(width: int = 72, height: int = 56, seed: int = 0) -> Image.Image:
    """Noise: every cell differs from every other."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def chat(question: str, images: int = 0, videos: int = 0) -> list[dict[str, Any]]:
    parts = [{"type": "image"}] * images + [{"type": "video"}] * videos
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]


def stock_inputs(
    vlm: Any, question: str, images: list[Any], videos: list[Any] | None = None, fps: float = 2.0
) -> dict[str, Any]:
    """The output of the model's own processor."""
    text = vlm.processor.apply_chat_template(chat(question, len(images), len(videos or [])), add_generation_prompt=True)
    given: dict[str, Any] = {"images": [images] if vlm.adapter.images_by_row else images} if images else {}
    if videos:
        data = [{"total_num_frames": len(v), "fps": fps, "frames_indices": list(range(len(v)))} for v in videos]
        given |= {"videos": videos, "video_metadata": data, "do_sample_frames": False}
    return dict(vlm.processor(text=[text], **given, return_tensors="pt"))


def answer_of(model: Any, inputs: dict[str, Any], **options: Any) -> list[int]:
    """The tokens that the stock model generates greedily."""
    length = inputs["input_ids"].shape[1]
    return model.generate(**inputs, **GREEDY | options)[0, length:].tolist()


def processor(family: str) -> Any:
    if families.FAMILIES[family.removesuffix("_padded")].mrope:
        return _qwen_processor(family)
    words, given = tokenizer(), {"chat_template": CHAT}
    shortest = {"size": {"shortest_edge": 32}, "crop_size": SQUARE}
    clip = given | {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    if family == "llava":
        return transformers.LlavaProcessor(CLIPImageProcessorPil(**shortest), words, **clip)
    if family == "llava_padded":
        return transformers.LlavaProcessor(LlavaImageProcessorPil(**shortest, do_pad=True), words, **clip)
    if family == "llava_next":
        images = LlavaNextImageProcessorPil(**shortest, image_grid_pinpoints=families.PINPOINTS)
        return transformers.LlavaNextProcessor(images, words, **clip)
    if family == "llava_onevision":
        images = LlavaOnevisionImageProcessorPil(size=SQUARE, image_grid_pinpoints=families.PINPOINTS)
        more = {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_4"}
        made = without_video(transformers.LlavaOnevisionProcessor)(images, words, **given, **more)
        made.video_processor = SquareVideoProcessor.from_settings(images, {})
        return made
    if family == "internvl":
        images = GotOcr2ImageProcessorPil(size=SQUARE, max_patches=6)
        return without_video(transformers.InternVLProcessor)(images, words, **given, image_seq_length=16)
    if family == "smolvlm":
        processing_smolvlm.num2words = processing_smolvlm.num2words or str  # a package that only its videos need
        images = SmolVLMImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
        return without_video(transformers.SmolVLMProcessor)(images, words, **given, image_seq_len=4)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    return transformers.Idefics3Processor(images, words, **given, image_seq_len=16)


def _qwen_processor(family: str) -> Any:
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=folder.tokenizer(), pad_token="<|pad|>", eos_token="<|end|>", unk_token="<|unknown|>"
    )
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=QWEN_SIZE)
    base = getattr(transformers, QWEN_PROCESSORS.get(family, "Qwen3VLProcessor"))
    made = without_video(base)(images, words, chat_template=vocabulary.CHAT_TEMPLATE)
    made.video_processor = QwenVideoProcessor.from_settings(family, images, {"size": QWEN_SIZE})
    return made


def tokenizer() -> Any:
    """Special tokens first, then every printable character; a start token before every text."""
    words = {name: number for number, name in enumerate(families.SPECIAL)}
    words |= {chr(code): code for code in range(32, 127)}
    text = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    text.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    text.decoder = decoders.Fuse()
    text.add_special_tokens([name for name in families.SPECIAL if name != "\n"])
    text.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=text, pad_token="<pad>", eos_token="</s>", bos_token="<s>",
        extra_special_tokens={
            "image_token": "<image>", "context_image_token": "<image>", "start_image_token": "<img>",
            "end_image_token": "</img>", "video_token": "<video>",
        },
    )  # fmt: skip
