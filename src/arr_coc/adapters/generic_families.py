"""The families of the generic adapter, by where their grid is in the processor's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Encoded, Features, Inputs, Visual
from arr_coc.adapters.generic import Generic, equal_share, flat, run_lengths, whole_picture_cells
from arr_coc.adapters.llava import row_repeating_output
from arr_coc.errors import PromptError
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
    oldest: ClassVar[tuple[int, int]] = (5, 22)
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

    def prompt_ending(self, tokenizer: Any) -> str:
        return str(tokenizer.sep_token or "")


class AyaVision(Square):
    family: ClassVar[str] = "Aya Vision"
    model_types: ClassVar[tuple[str, ...]] = ("aya_vision",)
    processor: ClassVar[str] = "AyaVisionProcessor"


class Gemma3(Square):
    """The tokens of a picture attend to each other in both directions: an argument says which tokens those are."""

    family: ClassVar[str] = "Gemma 3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3",)
    processor: ClassVar[str] = "Gemma3Processor"
    images_by_row: ClassVar[bool] = True

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
        count = int((inputs["input_ids"] == self.token_id(kind)).sum())
        return [whole_picture_cells(equal_share(count, len(pixels)))] * len(pixels)


class Ovis2(Square):
    """Indicator tokens around a picture are part of the text; their embeddings come with the encoder's output."""

    family: ClassVar[str] = "Ovis2"
    model_types: ClassVar[tuple[str, ...]] = ("ovis2",)
    processor: ClassVar[str] = "Ovis2Processor"

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        made = super().encoder_outputs(kept)
        core = self.core
        if kept and not made:  # without cells, the indicators are still there
            none = torch.zeros(0, 1, self.width, device=self.device, dtype=self.model.dtype)
            made = {"image": BaseModelOutputWithPooling(pooler_output=none)}  # type: ignore[arg-type]
        first = core.visual_vocab_size - core.vision_tower.num_visual_indicator_tokens
        indicators = core.visual_embeddings_table(torch.arange(first, core.visual_vocab_size, device=self.device))
        for output in made.values():
            output.visual_indicator_features = indicators
        return made


# Families that give the features in `last_hidden_state`.


class Llama4(Generic):
    """The model projects the features itself: tokens are the projected ones, and the model gets the others."""

    family: ClassVar[str] = "Llama 4"
    model_types: ClassVar[tuple[str, ...]] = ("llama4",)
    processor: ClassVar[str] = "Llama4Processor"
    replaces: ClassVar[bool] = False

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        if cells is not None:
            return self.encode_some(inputs, kind, visuals, cells)
        features = flat(self.stock_output(inputs, kind).last_hidden_state)
        tokens, counts = self.core.multi_modal_projector(features), [visual.n for visual in visuals]
        parts = zip(counts, tokens.split(counts), features.split(counts), strict=True)
        return [Encoded(torch.arange(n), projected, (raw,)) for n, projected, raw in parts]

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        return hidden_outputs({kind: [deep[0] for _, deep in rows] for kind, rows in kept.items()})

    def token_id(self, kind: str) -> int:
        return int(self.config.image_token_index)


class Fuyu(Generic):
    """Patches without an encoder. The text has a newline token after each row of a picture."""

    family: ClassVar[str] = "Fuyu"
    model_types: ClassVar[tuple[str, ...]] = ("fuyu",)
    processor: ClassVar[str] = "FuyuProcessor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        pixels = inputs.get("pixel_values")
        if pixels is None:
            return []
        found: list[Cells] = []
        runs = run_lengths(inputs["input_ids"], self.token_id(kind))
        for patches in pixels:
            width = runs[0] if runs else 0
            if not width or len(patches) % width or runs[: len(patches) // width] != [width] * (len(patches) // width):
                raise PromptError(
                    f"expected {len(patches)} patches as rows of image tokens of equal length, got runs of {runs}"
                )
            found.append(Grid(1, len(patches) // width, width))
            runs = runs[len(patches) // width :]
        return found

    def stock_features(self, inputs: Inputs, kind: str) -> torch.Tensor:
        return flat(self.stock_output(inputs, kind).last_hidden_state)

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        return hidden_outputs({kind: [tokens for tokens, _ in rows] for kind, rows in kept.items()})


def hidden_outputs(kept: Mapping[str, list[torch.Tensor]]) -> dict[str, Any]:
    """Each row's features as the encoder's `last_hidden_state`; a kind without any is left out."""
    made = {}
    for kind, rows in kept.items():
        if any(len(part) for part in rows):
            tokens = torch.cat(rows)[:, None]  # [K, 1, D]
            made[kind] = row_repeating_output()(pooler_output=tokens, last_hidden_state=tokens)
            made[kind].counts, made[kind].mirrored = [len(part) for part in rows], True
    return made


# Families with the height and width of every view in patches.


class Shaped(Generic):
    """`shapes`: the input with height and width of each view; `shrink` x `shrink` patches make a cell."""

    shapes: ClassVar[str]

    @property
    def shrink(self) -> int:
        raise NotImplementedError

    def views(self, inputs: Inputs, kind: str) -> list[Grid]:
        shapes = inputs.get(self.shapes)
        return [] if shapes is None else [Grid(1, h // self.shrink, w // self.shrink) for h, w in shapes.tolist()]


class Lfm2VL(Shaped):
    """Language layers are convolutions and full attention."""

    family: ClassVar[str] = "LFM2-VL"
    model_types: ClassVar[tuple[str, ...]] = ("lfm2_vl",)
    processor: ClassVar[str] = "Lfm2VlProcessor"
    shapes: ClassVar[str] = "spatial_shapes"

    @property
    def shrink(self) -> int:
        return int(self.config.downsample_factor)


class MiniCpmV46(Shaped):
    """The language model is that of Qwen3.5. A picture is an overview and slices of it."""

    family: ClassVar[str] = "MiniCPM-V 4.6"
    model_types: ClassVar[tuple[str, ...]] = ("minicpmv4_6",)
    processor: ClassVar[str] = "MiniCPMV4_6Processor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)
    shapes: ClassVar[str] = "target_sizes"

    @property
    def shrink(self) -> int:
        config = self.config
        merged = config.merge_kernel_size[0] ** config.merger_times
        return int(merged * (1 if config.downsample_mode == "4x" else config.vision_config.window_kernel_size[0]))


class Gemma4(Generic):
    """`image_position_ids`: column and row of every patch, -1 for padding; patches are pooled to cells."""

    family: ClassVar[str] = "Gemma 4"
    model_types: ClassVar[tuple[str, ...]] = ("gemma4",)
    processor: ClassVar[str] = "Gemma4Processor"

    def views(self, inputs: Inputs, kind: str) -> list[Grid]:
        places = inputs.get("image_position_ids")
        if places is None:
            return []
        side = self.config.vision_config.pooling_kernel_size
        sizes = (places.amax(1) + 1).tolist()  # columns and rows of patches
        return [Grid(1, h // side, w // side) for w, h in sizes]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        return list(self.views(inputs, kind))

    def token_kwargs(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mm_token_type_ids": self.token_types(ids).long()}


# Families with a picture's size in pixels.


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
    """Experts are chosen by kind of token: an argument says which tokens are visual."""

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
    Fuyu, AyaVision, Gemma3, Gemma4, Llama4, Lfm2VL, MiniCpmV46,
)  # fmt: skip
