"""Every model family once: a tiny random model, prompts made by hand, and what the tests need to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import transformers

from arr_coc.adapters.families import adapter
from arr_coc.errors import ModelError
from recipes.reader import vocabulary

PAD = vocabulary.PAD
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": vocabulary.VOCABULARY_SIZE, "max_position_embeddings": 4096,
    "pad_token_id": PAD, "eos_token_id": vocabulary.END, "bos_token_id": vocabulary.USER,
}  # fmt: skip
# The Qwen models have the shipped reader's vocabulary.
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
QWEN_TOKENS = {
    "image_token_id": vocabulary.IMAGE, "video_token_id": vocabulary.VIDEO,
    "vision_start_token_id": vocabulary.VISION_START, "vision_end_token_id": vocabulary.VISION_END,
}  # fmt: skip
QWEN_VISION = {
    "depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4
}  # fmt: skip
# The special tokens of the others; a token's id is its index. The ids of printable characters follow.
SPECIAL = (
    ["<pad>", "</s>", "<s>", "<image>", "<video>", "<img>", "</img>", "<fake_token_around_image>", "<end_of_utterance>"]
    + ["\n", "<global-img>"]
    + [f"<row_{r}_col_{c}>" for r in (1, 2, 3) for c in (1, 2, 3)]
)
IMAGE, VIDEO, START, END, BORDER, NEWLINE, WHOLE, TILE = map(
    SPECIAL.index,
    ("<image>", "<video>", "<img>", "</img>", "<fake_token_around_image>", "\n", "<global-img>", "<row_1_col_1>"),
)
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
PINPOINTS = [[32, 64], [64, 32], [64, 64], [32, 96], [96, 96]]  # height, width
VIT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 32}
CLIP = VIT | {"model_type": "clip_vision_model", "num_hidden_layers": 4, "patch_size": 8, "projection_dim": 16}
SIGLIP = CLIP | {"model_type": "siglip_vision_model", "vision_use_head": False}
LLAMA = TEXT | {"model_type": "llama"}
QWEN2 = TEXT | {"model_type": "qwen2"}


def qwen2_vl() -> Any:
    return transformers.Qwen2VLConfig(
        vision_config={"depth": 3, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 4},
        text_config=TEXT | {"rope_parameters": MROPE},
        **QWEN_TOKENS,
    )


def qwen2_5_vl() -> Any:
    windows = {"window_size": 16, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2}
    return transformers.Qwen2_5_VLConfig(
        vision_config=QWEN_VISION | windows, text_config=TEXT | {"rope_parameters": MROPE}, **QWEN_TOKENS
    )


def qwen3_vl() -> Any:
    return transformers.Qwen3VLConfig(
        vision_config=QWEN_VISION | {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
        text_config=TEXT | {"rope_parameters": MROPE, "head_dim": 8},
        **QWEN_TOKENS,
    )


def qwen3_vl_moe() -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return transformers.Qwen3VLMoeConfig(
        vision_config=qwen3_vl().vision_config.to_dict() | {"model_type": "qwen3_vl_moe_vision"},
        text_config=TEXT | {"rope_parameters": MROPE, "head_dim": 8} | experts,
        **QWEN_TOKENS,
    )


def llava(**changes: Any) -> Any:
    given = {"vision_config": CLIP, "vision_feature_layer": -2, "vision_feature_select_strategy": "default"} | changes
    return transformers.LlavaConfig(text_config=LLAMA, image_token_id=IMAGE, **given)


def llava_siglip() -> Any:
    return llava(vision_config=SIGLIP, vision_feature_layer=[1, -1], vision_feature_select_strategy="full")


def llava_class_token() -> Any:
    """The language model reads the class token, too."""
    return llava(vision_feature_select_strategy="full")


def llava_next(**changes: Any) -> Any:
    return transformers.LlavaNextConfig(
        vision_config=CLIP, text_config=LLAMA, image_token_id=IMAGE, image_grid_pinpoints=PINPOINTS, **changes
    )


def llava_onevision(**changes: Any) -> Any:
    given = {"vision_aspect_ratio": "anyres_max_4"} | changes
    return transformers.LlavaOnevisionConfig(
        vision_config=SIGLIP, text_config=QWEN2, image_grid_pinpoints=PINPOINTS, **TOKENS, **given
    )


def internvl(**changes: Any) -> Any:
    vision = VIT | {"num_hidden_layers": 4, "image_size": [32, 32], "patch_size": [4, 4]}
    norms = {"use_qk_norm": True, "norm_type": "rms_norm"} | changes.pop("vision", {})
    return transformers.InternVLConfig(vision_config=vision | norms, text_config=QWEN2, image_token_id=IMAGE, **changes)


def internvl_normed() -> Any:
    """The tower ends with a norm."""
    return internvl(vision={"use_mean_pooling": False, "norm_type": "layer_norm", "use_qk_norm": False})


def idefics3(kind: Any = transformers.Idefics3Config, merge: int = 2) -> Any:
    vision = VIT | {"num_hidden_layers": 3, "patch_size": 4}
    return kind(vision_config=vision, text_config=LLAMA, image_token_id=IMAGE, scale_factor=merge, pad_token_id=PAD)


def smolvlm() -> Any:
    return idefics3(transformers.SmolVLMConfig, 4)


@dataclass(frozen=True)
class Family:
    config: Callable[[], Any]
    mrope: bool = False  # positions [3, B, T] for time, row and column, as in Qwen; else one position per token
    videos: bool = False
    glances: bool = True  # whether the encoder can run on some of the cells
    merge: int = 1  # patches along a cell's side
    class_tokens: int = 0  # tokens of the vision tower before the first patch


FAMILIES = {
    "qwen2_vl": Family(qwen2_vl, mrope=True, videos=True, merge=2),
    "qwen2_5_vl": Family(qwen2_5_vl, mrope=True, videos=True, merge=2),
    "qwen3_vl": Family(qwen3_vl, mrope=True, videos=True, merge=2),
    "qwen3_vl_moe": Family(qwen3_vl_moe, mrope=True, videos=True, merge=2),
    "llava": Family(llava, class_tokens=1),
    "llava_siglip": Family(llava_siglip),
    "llava_class_token": Family(llava_class_token, class_tokens=1),
    "llava_next": Family(llava_next, glances=False),
    "llava_onevision": Family(llava_onevision, videos=True, glances=False),
    "internvl": Family(internvl, merge=2, class_tokens=1),
    "internvl_normed": Family(internvl_normed, merge=2, class_tokens=1),
    "idefics3": Family(idefics3, merge=2),
    "smolvlm": Family(smolvlm, merge=4),
}
QWEN = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def model(family: str, attention: str = "sdpa", seed: int = 0) -> Any:
    """A random model whose answers depend on the picture: the weights are large enough that attention is not flat."""
    torch.manual_seed(seed)
    built = transformers.AutoModelForImageTextToText.from_config(
        FAMILIES[family].config(), attn_implementation=attention
    )
    initialise = _initialise_qwen if FAMILIES[family].mrope else _initialise_others
    for name, weights in built.named_parameters():
        initialise(name, weights, experts=family == "qwen3_vl_moe")
    return built.eval()


shared_model = lru_cache(model)  # for tests that do not change it


def _initialise_qwen(name: str, weights: torch.Tensor, experts: bool) -> None:
    if weights.ndim > 1:
        attends = any(part in name for part in ("qkv", "q_proj", "k_proj"))
        gain = 0.6 if experts else 1.8 if attends else 0.8
        torch.nn.init.normal_(weights, std=0.5 if "embed" in name else gain / weights.shape[-1] ** 0.5)
    elif "bias" in name and not experts:
        torch.nn.init.normal_(weights, std=0.1)


def _initialise_others(name: str, weights: torch.Tensor, experts: bool) -> None:
    if "embed" in name or "newline" in name or "cls_token" in name:
        torch.nn.init.normal_(weights, std=0.5)
    elif weights.ndim > 1:
        torch.nn.init.normal_(weights, std=0.6 / weights[0].numel() ** 0.5)
    elif "bias" in name:
        torch.nn.init.normal_(weights, std=0.1)
    elif "lambda" in name:
        torch.nn.init.constant_(weights, 0.5)


try:
    adapter(model("smolvlm"))
except ModelError:  # some versions of transformers cannot read a part of a tile
    del FAMILIES["smolvlm"]


# One row of a prompt: token ids, and visuals as ("image", width, height) or ("video", frames).
Row = list[Any]

IMAGES: dict[str, list[Row]] = {
    "image": [[65, 66, ("image", 80, 50), 67, 68, 69]],
    "two images": [[65, ("image", 64, 64), 66, ("image", 30, 70), 67, 68]],
    "ragged": [
        [65, 66, ("image", 96, 40), 67, 68, 69],
        [70, ("image", 40, 50), 71],
        [72, 73, 74, ("image", 64, 33), 75, ("image", 100, 90), 76, 77],
    ],
    "a row without": [[65, ("image", 50, 50), 66, 67], [68, 69]],
}
VIDEOS: dict[str, list[Row]] = {
    "video": [[65, ("video", 3), 67, 68]],
    "mixed": [[65, ("video", 2), 66, ("image", 64, 70), 67, 68]],
    "two videos": [[65, ("video", 2), 66], [67, 68, 69, ("video", 2), 70]],
}
PROMPTS = IMAGES | VIDEOS
CASES = [(family, case) for family, known in FAMILIES.items() for case in (PROMPTS if known.videos else IMAGES)]


def prompt(family: str, rows: str | list[Row], side: str = "left", seed: int = 1) -> dict[str, torch.Tensor]:
    """What a processor would return for these rows, or for a case of `PROMPTS`."""
    build = (_QwenPrompt if FAMILIES[family].mrope else _Prompt)(family, torch.Generator().manual_seed(seed))
    ids = [build.row(row) for row in (PROMPTS[rows] if isinstance(rows, str) else rows)]
    length = max(map(len, ids))
    padded = [[PAD] * (length - len(r)) + r if side == "left" else r + [PAD] * (length - len(r)) for r in ids]
    inputs = {"input_ids": torch.tensor(padded)}
    inputs["attention_mask"] = (inputs["input_ids"] != PAD).long()
    return inputs | build.tensors(inputs["input_ids"])


class _QwenPrompt:
    def __init__(self, family: str, dice: torch.Generator) -> None:
        self.family = family
        self.dice = dice
        self.grids: dict[str, list[list[int]]] = {"image": [], "video": []}

    def row(self, parts: Row) -> list[int]:
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else self._visual(*part)
        return ids

    def _visual(self, kind: str, *size: int) -> list[int]:
        t, h, w = (size[0], 3, 4) if kind == "video" else (1, *(max(2, side // 16) for side in reversed(size)))
        self.grids[kind].append([t, 2 * h, 2 * w])
        token = vocabulary.IMAGE if kind == "image" else vocabulary.VIDEO
        # Qwen3 has a timestamp before each frame.
        frames = t if self.family.startswith("qwen3") and kind == "video" else 1
        ids: list[int] = []
        for frame in range(frames):
            stamp = [vocabulary.LAST_CHARACTER - frame] * (frames > 1)
            ids += [*stamp, vocabulary.VISION_START, *[token] * (t * h * w // frames), vocabulary.VISION_END]
        return ids

    def tensors(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {"mm_token_type_ids": (ids == vocabulary.IMAGE).int() + 2 * (ids == vocabulary.VIDEO).int()}
        names = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
        for kind, (pixels, grid) in names.items():
            if self.grids[kind]:
                made[grid] = torch.tensor(self.grids[kind])
                made[pixels] = torch.randn(int(made[grid].prod(1).sum()), 3 * 2 * 4 * 4, generator=self.dice)
        return made


class _Prompt:
    def __init__(self, family: str, dice: torch.Generator) -> None:
        self.family = family
        self.dice = dice
        self.tiles: list[list[torch.Tensor]] = []  # by row
        self.views: list[torch.Tensor] = []  # by picture
        self.videos: list[torch.Tensor] = []
        self.sizes: list[tuple[int, int]] = []
        self.counts: list[int] = []  # images of each row that has any

    def row(self, parts: Row) -> list[int]:
        self.tiles.append([])
        count = sum(isinstance(part, tuple) and part[0] == "image" for part in parts)
        self.counts += [count] * (count > 0)
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else getattr(self, f"_{part[0]}")(count > 1, *part[1:])
        return ids

    def pixels(self, count: int) -> torch.Tensor:
        return torch.randn(count, 3, 32, 32, generator=self.dice)

    def _video(self, many: bool, frames: int) -> list[int]:
        self.videos.append(self.pixels(frames))
        return [VIDEO] * (frames * 2 * 2 + 1)

    def _image(self, many: bool, width: int, height: int) -> list[int]:
        self.sizes.append((height, width))
        kind = self.family.split("_")[0]
        if self.family in ("llava_next", "llava_onevision"):
            tiled = self.family == "llava_next" or not many
            count, tokens = anyres(width, height, 4 if self.family == "llava_onevision" else None) if tiled else (1, 17)
            self.views.append(self.pixels(count))
            return [IMAGE] * tokens
        if kind == "llava":
            self.views.append(self.pixels(1))
            return [IMAGE] * (16 + (self.family == "llava_class_token"))
        columns, rows = (3, 2) if width > height else (1, 1) if width == height else (1, 2)
        count = columns * rows + (columns * rows > 1)
        self.tiles[-1] += list(self.pixels(count))
        if kind == "internvl":
            return [START] + [IMAGE] * 16 * count + [END]
        cells = 16 if kind == "idefics3" else 4
        ids: list[int] = []
        for r in range(rows if count > 1 else 0):
            for c in range(columns):
                ids += [BORDER, TILE + r * columns + c] + [IMAGE] * cells
            ids.append(NEWLINE)
        return [*ids, *[NEWLINE] * (count > 1), BORDER, WHOLE, *[IMAGE] * cells, BORDER]

    def tensors(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        if self.videos:
            made["pixel_values_videos"] = torch.stack(self.videos)
        if self.views and self.family in ("llava_next", "llava_onevision"):
            most = max(map(len, self.views))
            made["pixel_values"] = torch.stack(
                [torch.cat([view, torch.zeros(most - len(view), 3, 32, 32)]) for view in self.views]
            )
            made["image_sizes"] = torch.tensor(self.sizes)
            if self.family == "llava_onevision":
                made["batch_num_images"] = torch.tensor(self.counts)
        elif self.views:
            made["pixel_values"] = torch.cat(self.views)
        if any(self.tiles) and self.family in ("idefics3", "smolvlm"):
            most = max(map(len, self.tiles))
            zero = torch.zeros(3, 32, 32)
            made["pixel_values"] = torch.stack([torch.stack(row + [zero] * (most - len(row))) for row in self.tiles])
        elif any(self.tiles):
            made["pixel_values"] = torch.stack([tile for row in self.tiles for tile in row])
        return made


def anyres(width: int, height: int, most: int | None) -> tuple[int, int]:
    """Tiles and tokens of a picture, as the family's own processor counts them."""
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

    best = select_best_resolution([height, width], PINPOINTS)
    scale = best[0] // 32, best[1] // 32
    if most is None:
        counter: Any = LlavaNextProcessor.__new__(LlavaNextProcessor)
    else:
        counter = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
        counter.vision_aspect_ratio = f"anyres_max_{most}"
    return scale[0] * scale[1] + 1, 16 + sum(counter._get_unpadded_features(height, width, 4, 4, *scale))
