"""Writing a reader as a model folder that `transformers` loads without this package.

The folder holds the configuration, half-precision weights, a character-level tokenizer, the image processor's settings,
the chat template and generation defaults.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import Qwen2VLForConditionalGeneration, Qwen3VLForConditionalGeneration

from recipes.reader import vocabulary

# White paper becomes 0.83 and black ink -2.5: most of a page is near one value, and ink differs strongly from it.
IMAGE_MEAN, IMAGE_STD = 0.75, 0.3
MIN_CELLS, MAX_CELLS = 64, 900
MAX_ANSWER = 160

NAMED_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "user_token": "<|user|>",
    "assistant_token": "<|assistant|>",
    "system_token": "<|system|>",
}
GENERATION = {
    "bos_token_id": vocabulary.USER,
    "eos_token_id": vocabulary.END,
    "pad_token_id": vocabulary.PAD,
    "do_sample": False,
    "max_new_tokens": MAX_ANSWER,
}


def tokenizer() -> Tokenizer:
    """A tokenizer with one token per character."""
    tokens = Tokenizer(models.WordLevel(vocabulary.vocabulary(), unk_token="<|unknown|>"))
    tokens.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokens.decoder = decoders.Fuse()
    tokens.add_special_tokens(list(vocabulary.SPECIAL_TOKENS))
    return tokens


def _tokenizer_config() -> dict[str, Any]:
    roles = {"pad_token": "<|pad|>", "eos_token": "<|end|>", "unk_token": "<|unknown|>"}
    names = [name for name in vocabulary.SPECIAL_TOKENS if name not in roles.values()]
    flags = {"special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "extra_special_tokens": NAMED_TOKENS,
        "padding_side": "left",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(vocabulary.SPECIAL_TOKENS[name]): {"content": name, **flags} for name in [*names, *roles.values()]
        },
    }


def _image_processor(vision: Any, processor: str, max_cells: int) -> dict[str, Any]:
    """The image processor's settings, for an encoder with the configuration `vision`."""
    cell = vision.patch_size * vision.spatial_merge_size
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": processor,
        "size": {"shortest_edge": MIN_CELLS * cell**2, "longest_edge": max_cells * cell**2},
        "image_mean": [IMAGE_MEAN] * 3,
        "image_std": [IMAGE_STD] * 3,
        "rescale_factor": 1 / 255,
        "resample": 3,
        "do_convert_rgb": True,
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
    }


def write(
    model: Qwen2VLForConditionalGeneration | Qwen3VLForConditionalGeneration,
    folder: Path,
    dtype: torch.dtype = torch.float16,
    max_cells: int = MAX_CELLS,
) -> Path:
    """Write `model` to `folder`, its weights in `dtype`; larger pictures are shrunk to `max_cells`. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture = type(model).__name__
    processor = architecture.replace("ForConditionalGeneration", "Processor")
    config: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch."),
        "architectures": [architecture],
        "max_images": 1,  # of a prompt: it was trained on single images
        "single_turn": True,  # trained on single questions: `ask(..., after=)` asks each by itself
    }
    for name, content in (
        ("config.json", model.config.to_dict() | config),
        ("tokenizer_config.json", _tokenizer_config()),
        ("preprocessor_config.json", _image_processor(model.config.vision_config, processor, max_cells)),
        ("generation_config.json", GENERATION),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    # The output layer is tied to the embedding, so it is not stored a second time.
    weights = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable for its owner only
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(vocabulary.CHAT_TEMPLATE)
    return folder
