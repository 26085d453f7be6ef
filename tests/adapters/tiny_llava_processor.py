"""Processors for the tiny models with one position per token: one token a character, tiles of 32 pixels, no torchvision."""

from __future__ import annotations

from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import arr_coc
from arr_coc.adapters.loading import without_video
from arr_coc.adapters.video_processor import SquareVideoProcessor
from tests.adapters import tiny_llava as tiny

SPECIAL = (
    ["<pad>", "</s>", "<s>", "<image>", "<video>", "<img>", "</img>", "<fake_token_around_image>", "<end_of_utterance>"]
    + ["\n", "<global-img>"]
    + [f"<row_{r}_col_{c}>" for r in (1, 2, 3) for c in (1, 2, 3)]
)
FAMILIES = ["llava", "llava_padded", "llava_next", "llava_onevision", "internvl", "idefics3"]
FAMILIES += ["smolvlm"] * ("smolvlm" in tiny.FAMILIES)
SQUARE = {"height": 32, "width": 32}
CHAT = (
    "{% for message in messages %}{{ message['role'].upper() }}:"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part['type'] }}>\n"
    "{% endif %}{% endfor %}{% endif %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def tokenizer() -> Any:
    """Special tokens first, then every printable character; a start token before every text."""
    words = {name: number for number, name in enumerate(SPECIAL)}
    words |= {chr(code): code for code in range(32, 127)}
    text = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    text.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    text.decoder = decoders.Fuse()
    text.add_special_tokens([name for name in SPECIAL if name != "\n"])
    text.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", SPECIAL.index("<s>"))])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=text, pad_token="<pad>", eos_token="</s>", bos_token="<s>",
        extra_special_tokens={
            "image_token": "<image>", "context_image_token": "<image>", "start_image_token": "<img>",
            "end_image_token": "</img>", "video_token": "<video>",
        },
    )  # fmt: skip


def processor(family: str) -> Any:
    words, given = tokenizer(), {"chat_template": CHAT}
    shortest = {"size": {"shortest_edge": 32}, "crop_size": SQUARE}
    clip = given | {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    if family == "llava":
        return transformers.LlavaProcessor(CLIPImageProcessorPil(**shortest), words, **clip)
    if family == "llava_padded":
        return transformers.LlavaProcessor(LlavaImageProcessorPil(**shortest, do_pad=True), words, **clip)
    if family == "llava_next":
        images = LlavaNextImageProcessorPil(**shortest, image_grid_pinpoints=tiny.PINPOINTS)
        return transformers.LlavaNextProcessor(images, words, **clip)
    if family == "llava_onevision":
        images = LlavaOnevisionImageProcessorPil(size=SQUARE, image_grid_pinpoints=tiny.PINPOINTS)
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


def wrapped(family: str) -> Any:
    model = tiny.model(family.removesuffix("_padded"))
    model.config.image_token_id = SPECIAL.index("<image>")
    model.config.video_token_id = SPECIAL.index("<video>")
    return arr_coc.wrap(model, processor(family))
