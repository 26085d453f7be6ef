"""Tiny random models of the families with one position per token, and prompts for them: ids, masks, pixels, by hand."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from arr_coc.adapters.families import adapter
from arr_coc.errors import ModelError
from tests.adapters.tiny import PAD, TEXT

IMAGE, VIDEO, START, END, BORDER, WHOLE, NEWLINE, TILE = 120, 121, 122, 123, 100, 101, 102, 103
PINPOINTS = [[32, 64], [64, 32], [64, 64], [32, 96], [96, 96]]  # height, width
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "projection_dim": 16,
}  # fmt: skip
SIGLIP = CLIP | {"model_type": "siglip_vision_model", "vision_use_head": False}
LLAMA = TEXT | {"model_type": "llama"}
QWEN = TEXT | {"model_type": "qwen2"}
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO}


def llava(**changes: Any) -> Any:
    given = {"vision_config": CLIP, "vision_feature_layer": -2, "vision_feature_select_strategy": "default"} | changes
    return transformers.LlavaConfig(text_config=LLAMA, image_token_id=IMAGE, **given)


def llava_siglip() -> Any:
    return llava(vision_config=SIGLIP, vision_feature_layer=[1, -1], vision_feature_select_strategy="full")


def llava_class_token() -> Any:
    """The class token is read by the language model, too."""
    return llava(vision_feature_select_strategy="full")


def llava_next(**changes: Any) -> Any:
    return transformers.LlavaNextConfig(
        vision_config=CLIP, text_config=LLAMA, image_token_id=IMAGE, image_grid_pinpoints=PINPOINTS, **changes
    )


def llava_onevision(**changes: Any) -> Any:
    given = {"vision_aspect_ratio": "anyres_max_4"} | changes
    return transformers.LlavaOnevisionConfig(
        vision_config=SIGLIP, text_config=QWEN, image_grid_pinpoints=PINPOINTS, **TOKENS, **given
    )


def internvl(**changes: Any) -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
        "image_size": [32, 32], "patch_size": [4, 4], "use_qk_norm": True, "norm_type": "rms_norm",
    }  # fmt: skip
    return transformers.InternVLConfig(
        vision_config=vision | changes.pop("vision", {}), text_config=QWEN, image_token_id=IMAGE, **changes
    )


def internvl_normed() -> Any:
    """The tower ends with a norm."""
    return internvl(vision={"use_mean_pooling": False, "norm_type": "layer_norm", "use_qk_norm": False})


def idefics3() -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 4,
    }  # fmt: skip
    return transformers.Idefics3Config(
        vision_config=vision, text_config=LLAMA, image_token_id=IMAGE, scale_factor=2, pad_token_id=PAD
    )


def smolvlm() -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 4,
    }  # fmt: skip
    return transformers.SmolVLMConfig(
        vision_config=vision, text_config=LLAMA, image_token_id=IMAGE, scale_factor=4, pad_token_id=PAD
    )


CONFIGS = {
    "llava": llava, "llava_siglip": llava_siglip, "llava_class_token": llava_class_token, "llava_next": llava_next,
    "llava_onevision": llava_onevision, "internvl": internvl, "internvl_normed": internvl_normed, "idefics3": idefics3,
    "smolvlm": smolvlm,
}  # fmt: skip


def model(family: str, attention: str = "sdpa", seed: int = 0) -> Any:
    """A random model whose answers depend on what it sees: weights large enough that attention is not flat."""
    torch.manual_seed(seed)
    built = transformers.AutoModelForImageTextToText.from_config(CONFIGS[family](), attn_implementation=attention)
    for name, weights in built.named_parameters():
        if "embed" in name or "newline" in name or "cls_token" in name:
            torch.nn.init.normal_(weights, std=0.5)
        elif weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.6 / weights[0].numel() ** 0.5)
        elif "bias" in name:
            torch.nn.init.normal_(weights, std=0.1)
        elif "lambda" in name:
            torch.nn.init.constant_(weights, 0.5)
    return built.eval()


def _readable(family: str) -> bool:
    """Whether the installed transformers can be asked for this: SmolVLM cannot be in some versions."""
    try:
        adapter(model(family))
    except ModelError:
        return False
    return True


FAMILIES = [family for family in CONFIGS if family != "smolvlm" or _readable(family)]

# One row of a prompt: words, and pictures as ("image", width, height) or ("video", frames).
Row = list[Any]

PROMPTS: dict[str, list[Row]] = {
    "image": [[5, 6, ("image", 80, 50), 7, 8, 9]],
    "two images": [[5, ("image", 64, 64), 6, ("image", 30, 70), 7, 8]],
    "ragged": [
        [5, 6, ("image", 96, 40), 7, 8, 9],
        [10, ("image", 40, 50), 11],
        [12, 13, 14, ("image", 64, 33), 15, ("image", 100, 90), 16, 17],
    ],
    "a row without": [[5, ("image", 50, 50), 6, 7], [8, 9]],
}
FILMS: dict[str, list[Row]] = {
    "video": [[5, ("video", 3), 7, 8]],
    "mixed": [[5, ("video", 2), 6, ("image", 64, 70), 7, 8]],
    "two videos": [[5, ("video", 2), 6], [7, 8, 9, ("video", 2), 10]],
}


def prompt(rows: list[Row], family: str, side: str = "left", seed: int = 1) -> dict[str, torch.Tensor]:
    """What a processor would return for these rows."""
    build = _Builder(family, torch.Generator().manual_seed(seed))
    ids = [build.row(row) for row in rows]
    length = max(map(len, ids))
    padded = [[PAD] * (length - len(r)) + r if side == "left" else r + [PAD] * (length - len(r)) for r in ids]
    inputs = {"input_ids": torch.tensor(padded)}
    inputs["attention_mask"] = (inputs["input_ids"] != PAD).long()
    return inputs | build.tensors()


class _Builder:
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

    def tensors(self) -> dict[str, torch.Tensor]:
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
