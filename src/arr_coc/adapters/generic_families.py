"""The families of the generic adapter, by where their grid is in the processor's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Inputs
from arr_coc.adapters.generic import Generic, flat, whole_picture_cells
from arr_coc.types.grid import Cells, Grid

# Families whose encoder gives one tensor for all views of equal size, each a square of tokens.


class Square(Generic):
    as_tensor: ClassVar[tuple[str, ...]] = ("image",)


class VipLlava(Square):
    family: ClassVar[str] = "ViP-LLaVA"
    model_types: ClassVar[tuple[str, ...]] = ("vipllava",)
    processor: ClassVar[str] = "LlavaProcessor"
    fixed_grid: ClassVar[bool] = True


class VideoLlava(Square):
    family: ClassVar[str] = "Video-LLaVA"
    model_types: ClassVar[tuple[str, ...]] = ("video_llava",)
    processor: ClassVar[str] = "VideoLlavaProcessor"
    fixed_grid: ClassVar[bool] = True


class DeepseekVL(Square):
    family: ClassVar[str] = "DeepSeek-VL"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_vl",)
    processor: ClassVar[str] = "DeepseekVLProcessor"
    fixed_grid: ClassVar[bool] = True


class Janus(Square):
    family: ClassVar[str] = "Janus"
    model_types: ClassVar[tuple[str, ...]] = ("janus",)
    processor: ClassVar[str] = "JanusProcessor"
    fixed_grid: ClassVar[bool] = True


class GotOcr2(Square):
    family: ClassVar[str] = "GOT-OCR2"
    model_types: ClassVar[tuple[str, ...]] = ("got_ocr2",)
    processor: ClassVar[str] = "GotOcr2Processor"


class QianfanOcr(Square):
    family: ClassVar[str] = "Qianfan-OCR"
    model_types: ClassVar[tuple[str, ...]] = ("qianfan_ocr",)
    processor: ClassVar[str] = "QianfanOCRProcessor"


class Chameleon(Square):
    family: ClassVar[str] = "Chameleon"
    model_types: ClassVar[tuple[str, ...]] = ("chameleon",)
    processor: ClassVar[str] = "ChameleonProcessor"
    fixed_grid: ClassVar[bool] = True


class AyaVision(Square):
    family: ClassVar[str] = "Aya Vision"
    model_types: ClassVar[tuple[str, ...]] = ("aya_vision",)
    processor: ClassVar[str] = "AyaVisionProcessor"


class Gemma3(Square):
    """The tokens of a picture attend to each other in both directions: the model is told which tokens those are."""

    family: ClassVar[str] = "Gemma 3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3",)
    processor: ClassVar[str] = "Gemma3Processor"

    def token_kwargs(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"token_type_ids": self.token_types(ids).long()}


class Aria(Square):
    """The encoder ends in learned queries, each of which sees the whole picture."""

    family: ClassVar[str] = "Aria"
    model_types: ClassVar[tuple[str, ...]] = ("aria",)
    processor: ClassVar[str] = "AriaProcessor"

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        pixels = inputs.get("pixel_values")
        if pixels is None:
            return []
        count = int((inputs["input_ids"] == self.token_id(kind)).sum()) // len(pixels)
        return [whole_picture_cells(count)] * len(pixels)


class Ovis2(Square):
    """Indicator tokens around a picture are part of the text; their embeddings come with the encoder's output."""

    family: ClassVar[str] = "Ovis2"
    model_types: ClassVar[tuple[str, ...]] = ("ovis2",)
    processor: ClassVar[str] = "Ovis2Processor"

    def encoder_outputs(self, kept: Any) -> dict[str, Any]:
        made = super().encoder_outputs(kept)
        core = self.core
        first = core.visual_vocab_size - core.vision_tower.num_visual_indicator_tokens
        indicators = core.visual_embeddings_table(torch.arange(first, core.visual_vocab_size, device=self.device))
        for output in made.values():
            output.visual_indicator_features = indicators
        return made


# Families that give the features in `last_hidden_state`.


class Fuyu(Generic):
    """Rows of patches, each with a newline token after it, which is text."""

    family: ClassVar[str] = "Fuyu"
    model_types: ClassVar[tuple[str, ...]] = ("fuyu",)
    processor: ClassVar[str] = "FuyuProcessor"


# Families with a picture's size in pixels.


class Sized(Generic):
    """`image_sizes`: height and width in pixels; a cell is `merge` x `merge` patches."""

    def views(self, inputs: Inputs, kind: str) -> list[Grid]:
        sizes = inputs.get("image_sizes")
        cell = self.config.vision_config.patch_size * (self.merge or 1)
        return [] if sizes is None else [Grid(1, int(h) // cell, int(w) // cell) for h, w in sizes.tolist()]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        return list(self.views(inputs, kind))


class Emu3(Generic):
    """Pictures are codes of a codebook, with an end-of-row token after each row, which always stays."""

    family: ClassVar[str] = "Emu3"
    model_types: ClassVar[tuple[str, ...]] = ("emu3",)
    processor: ClassVar[str] = "Emu3Processor"

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        found = inputs.get("image_sizes")
        factor = self.core.vqmodel.vision_spatial_factor
        return [] if found is None else [Grid(1, int(h) // factor, int(w) // factor) for h, w in found.tolist()]

    def token_count(self, grid: Cells) -> int:
        view = grid.views[0]
        return view.h * (view.w + 1)

    def cell_tokens(self, grid: Cells) -> torch.Tensor:
        view = grid.views[0]
        return (torch.arange(view.h)[:, None] * (view.w + 1) + torch.arange(view.w)).flatten()


# Families with `grid_thw` in patches.


class GridThw(Generic):
    kinds: ClassVar[tuple[str, ...]] = ("image",)


class Ernie45VL(GridThw):
    """Experts are chosen by kind of token: the model is told which tokens are visual."""

    family: ClassVar[str] = "ERNIE 4.5 VL"
    model_types: ClassVar[tuple[str, ...]] = ("ernie4_5_vl_moe",)
    processor: ClassVar[str] = "Ernie4_5_VLMoeProcessor"

    def token_kwargs(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"moe_mm_token_type_ids": (self.token_types(ids) > 0).int()}


class VideoLlama3(GridThw):
    """Every picture says itself how many patches make a cell."""

    family: ClassVar[str] = "VideoLLaMA 3"
    model_types: ClassVar[tuple[str, ...]] = ("video_llama_3",)
    processor: ClassVar[str] = "VideoLlama3Processor"

    def views(self, inputs: Inputs, kind: str) -> list[Grid]:
        thw, sizes = inputs.get(f"{kind}_grid_thw"), inputs.get(f"{kind}_merge_sizes")
        if thw is None or sizes is None:
            return []
        return [Grid(t, h // m, w // m) for (t, h, w), m in zip(thw.tolist(), sizes.tolist(), strict=True)]


GENERIC: tuple[type[Generic], ...] = (
    VipLlava, VideoLlava, DeepseekVL, Janus, GotOcr2, QianfanOcr, Chameleon, Aria, Ovis2, Emu3, Ernie45VL, VideoLlama3,
    AyaVision, Gemma3,
)  # fmt: skip
_ = flat
