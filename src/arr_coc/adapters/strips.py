"""Kimi K2.5, PaddleOCR-VL, HunyuanVL, and the families with a Pixtral tower: some cells as a strip.

Their encoders order patches row by row and merge `merge` x `merge` of them at the end, by the picture's height and width.
So the chosen cells are laid side by side, as a picture one cell high, and every patch brings its own position along.
Attention is over the whole picture, so leaving patches out equals masking them in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Encoded, Inputs, Visual
from arr_coc.adapters.generic import Generic
from arr_coc.errors import PromptError
from arr_coc.types.grid import Cells, Grid


def strip_patches(grid: Grid, cells: torch.Tensor, merge: int) -> torch.Tensor:
    """Row and column `[P, 2]` of the patches of `cells` `[K]`, laid side by side: `merge` rows of K * `merge` patches.

    >>> strip_patches(Grid(1, 2, 2), torch.tensor([0, 3]), 2).tolist()
    [[0, 0], [0, 1], [2, 2], [2, 3], [1, 0], [1, 1], [3, 2], [3, 3]]
    """
    inner = torch.arange(merge)
    rows = (cells // grid.w * merge)[None, :, None] + inner[:, None, None]  # [m, K, 1]
    columns = (cells % grid.w * merge)[None, :, None] + inner  # [1, K, m]
    return torch.stack(torch.broadcast_tensors(rows, columns), -1).reshape(-1, 2)


class Strips(Generic):
    """Families that encode a strip of cells."""

    glances: ClassVar[bool] = True

    @property
    def merge(self) -> int:
        return super().merge or 1

    def encode_some(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor]
    ) -> list[Encoded]:
        if inputs.get("pixel_values") is None:
            raise PromptError(
                "expected pixel_values for the image tokens of the prompt, got none: pass them in the inputs"
            )
        grids = [visual.grid.views[0] for visual in visuals]
        places = [strip_patches(grid, some, self.merge) for grid, some in zip(grids, cells, strict=True)]
        return self.encode_strips(inputs, grids, cells, places)

    def encode_strips(
        self, inputs: Inputs, grids: Sequence[Grid], cells: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
    ) -> list[Encoded]:
        """Tokens of the cells `[K]` of each picture, whose patches are at `places` `[P, 2]`, in the order of the strip."""
        raise NotImplementedError

    def nothing(self) -> torch.Tensor:
        return torch.zeros(0, self.width, device=self.device, dtype=self.model.dtype)

    def flat_pixels(self, inputs: Inputs, grids: Sequence[Grid], places: Sequence[torch.Tensor]) -> torch.Tensor:
        """The index of the patches among all patches of the prompt, which are ordered row by row: `[P]`."""
        index, start = [], 0
        for grid, where in zip(grids, places, strict=True):
            index.append(start + where[:, 0] * grid.w * self.merge + where[:, 1])
            start += grid.n * self.merge**2
        if len(inputs["pixel_values"]) != start:
            raise PromptError(
                f"expected pixel_values with the {start} patches of the pictures, got {len(inputs['pixel_values'])}"
            )
        return torch.cat(index)


class PatchStrips(Strips):
    """Encoders that take precomputed positions as keyword arguments."""

    def encode_strips(
        self, inputs: Inputs, grids: Sequence[Grid], cells: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
    ) -> list[Encoded]:
        from transformers.vision_utils import get_vision_interpolation_indices_and_weights

        counts = [len(some) for some in cells]
        if not sum(counts):
            return [Encoded(some, self.nothing()) for some in cells]
        rows = self.flat_pixels(inputs, grids, places)
        table = self.position_table
        corners, weights = get_vision_interpolation_indices_and_weights(
            inputs["image_grid_thw"].cpu(), table.num_grid_per_side, mode=table.interpolation_mode,
            align_corners=table.interpolation_align_corners,
        )  # fmt: skip
        strips = [[1, self.merge, count * self.merge] for count in counts if count]
        output = self.core.get_image_features(
            self._on_device(inputs["pixel_values"][rows.to(inputs["pixel_values"].device)]),
            torch.tensor(strips, device=self.device),
            position_ids=torch.cat(list(places)).to(self.device),
            interp_indices=corners[rows].to(self.device),
            interp_weights=weights[rows].to(self.device),
            return_dict=True,
        )
        found = iter(output.pooler_output)
        return [Encoded(some, next(found) if len(some) else self.nothing()) for some in cells]

    @property
    def position_table(self) -> Any:
        """The module with the learned positions."""
        raise NotImplementedError


class KimiK25(PatchStrips):
    family: ClassVar[str] = "Kimi K2.5"
    model_types: ClassVar[tuple[str, ...]] = ("kimi_k25",)
    processor: ClassVar[str] = "Kimi_K25Processor"

    @property
    def merge(self) -> int:
        return int(self.config.vision_config.merge_kernel_size[0])

    @property
    def position_table(self) -> Any:
        return self.core.vision_tower.patch_embed.pos_emb


class PaddleOcrVL(PatchStrips):
    family: ClassVar[str] = "PaddleOCR-VL"
    model_types: ClassVar[tuple[str, ...]] = ("paddleocr_vl",)
    processor: ClassVar[str] = "PaddleOCRVLProcessor"

    @property
    def position_table(self) -> Any:
        return self.core.visual.vision_model.embeddings


class HunyuanVL(Strips):
    """A picture's tokens: one at its start, a newline token after each row, one at its end. These always stay."""

    family: ClassVar[str] = "HunyuanVL"
    model_types: ClassVar[tuple[str, ...]] = ("hunyuan_vl",)
    processor: ClassVar[str] = "HunYuanVLProcessor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)
    framed: ClassVar[bool] = True

    def token_count(self, grid: Cells) -> int:
        view = grid.views[0]
        return view.h * (view.w + 1) + 2

    def cell_tokens(self, grid: Cells) -> torch.Tensor:
        view = grid.views[0]
        return (1 + torch.arange(view.h)[:, None] * (view.w + 1) + torch.arange(view.w)).flatten()

    def encode_strips(
        self, inputs: Inputs, grids: Sequence[Grid], cells: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
    ) -> list[Encoded]:
        tower = self.core.vision_tower
        rows = self.flat_pixels(inputs, grids, places)
        pixels = self._on_device(inputs["pixel_values"])
        hidden = tower.embeddings(pixels, inputs["image_grid_thw"].to(self.device))  # cheap compared with the layers
        hidden = hidden[:, rows.to(hidden.device)]
        lengths = [len(where) for where in places]
        ends = torch.tensor([0, *(length for length in lengths if length)], device=self.device)
        if sum(lengths):
            for layer in tower.layers:
                hidden = layer(hidden, cu_seqlens=ends.cumsum(0).int(), max_seqlen=max(lengths), attention_mask=None)
        made = []
        for grid, some, strip in zip(grids, cells, hidden.split(lengths, 1), strict=True):
            if not len(some):  # a strip of one cell, for the tokens that are no cells
                strip = strip.new_zeros(1, self.merge**2, strip.shape[-1])
            tokens = tower.patch_merger(strip, (self.merge, strip.shape[1] // self.merge))[0]
            first, newline, last = tokens[:1], tokens[-2:-1], tokens[-1:]
            extra = torch.cat([first, newline.expand(grid.h, -1), last])
            made.append(Encoded(some, tokens[1 : 1 + len(some)], extra=extra))
        return made


class PixtralTower(Strips):
    """Pictures of any size on a common canvas; `image_sizes` are their heights and widths in pixels."""

    @property
    def tower(self) -> Any:
        return self.core.vision_tower

    @property
    def patch(self) -> int:
        return int(self.config.vision_config.patch_size)

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        found, cell = inputs.get("image_sizes"), self.patch * self.merge
        return [] if found is None else [Grid(1, int(h) // cell, int(w) // cell) for h, w in found.tolist()]

    @property
    def outputs(self) -> list[int]:
        """The layers whose inputs are the features (the number of layers: the last one's output)."""
        chosen = getattr(self.config, "vision_feature_layer", -1)
        count = len(self.tower.transformer.layers)
        return [layer % (count + 1) for layer in ([chosen] if isinstance(chosen, int) else chosen)]

    def project(self, features: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Features `[P, D]` of a strip of `size` pixels to tokens."""
        return self.core.multi_modal_projector(features, torch.tensor([size], device=features.device))

    def encode_strips(
        self, inputs: Inputs, grids: Sequence[Grid], cells: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
    ) -> list[Encoded]:
        tower = self.tower
        embedded = tower.patch_conv(self._on_device(inputs["pixel_values"]).to(tower.patch_conv.weight.dtype))
        made = []
        for picture, some, where in zip(embedded, cells, places, strict=True):
            if not len(some):
                made.append(Encoded(some, self.nothing()))
                continue
            where = where.to(picture.device)
            hidden = tower.ln_pre(picture[:, where[:, 0], where[:, 1]].T[None])
            rotary = tower.patch_positional_embedding(hidden, where)
            states = [hidden]
            for layer in tower.transformer.layers[: max(self.outputs)]:
                states.append(layer(states[-1], None, position_embeddings=rotary))
            features = torch.cat([states[number] for number in self.outputs], -1)[0]
            size = (self.merge * self.patch, len(some) * self.merge * self.patch)
            made.append(Encoded(some, self.project(features, size)))
        return made


class Mistral3(PixtralTower):
    family: ClassVar[str] = "Mistral 3"
    model_types: ClassVar[tuple[str, ...]] = ("mistral3",)
    processor: ClassVar[str] = "PixtralProcessor"


class LightOnOcr(PixtralTower):
    family: ClassVar[str] = "LightOnOCR"
    model_types: ClassVar[tuple[str, ...]] = ("lighton_ocr",)
    processor: ClassVar[str] = "LightOnOcrProcessor"

    @property
    def tower(self) -> Any:
        return self.core.vision_encoder

    def project(self, features: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return self.core.vision_projection(features, torch.tensor([size], device=features.device))


class Pixtral(PixtralTower):
    """LLaVA with a Pixtral tower."""

    family: ClassVar[str] = "Pixtral"
    model_types: ClassVar[tuple[str, ...]] = ()  # `llava` with this tower: see `families.py`
    processor: ClassVar[str] = "PixtralProcessor"

    def project(self, features: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return self.core.multi_modal_projector(features)


STRIPS: tuple[type[Generic], ...] = (KimiK25, PaddleOcrVL, HunyuanVL, Mistral3, LightOnOcr, Pixtral)
