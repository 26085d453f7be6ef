"""GLM-4.1V, GLM-4.5V, GLM-4.6V and GLM-OCR: Qwen's prompt and encoder calls, with another language model.

The stock encoder runs on some of the patches in an ordinary call, as in Qwen2-VL. Learned positions are interpolated from
each segment's height and width, so every segment brings its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.qwen2_vl import Qwen2VL
from arr_coc.types.grid import Grid


class Glm4v(Qwen2VL):
    family: ClassVar[str] = "GLM-4.1V and GLM-4.5V"
    model_types: ClassVar[tuple[str, ...]] = ("glm4v", "glm4v_moe")
    processor: ClassVar[str] = "Glm4vProcessor"
    # Frames of a video are image tokens between other borders, which are not looked for here.
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    mixes: ClassVar[bool] = False
    records: ClassVar[bool] = False
    readable: ClassVar[bool] = False

    def _batches_segments(self, dense: bool) -> bool:
        return False  # the encoder's own blocks have other norms and mergers

    def _segment_sizes(
        self, thw: torch.Tensor, grids: Sequence[Grid], cells: Sequence[torch.Tensor], dense: bool
    ) -> torch.Tensor:
        if dense:
            return thw
        return torch.tensor(
            [
                [1, grid.h * self.merge, grid.w * self.merge]
                for grid, some in zip(grids, cells, strict=True)
                if len(some)
            ]
        )


class Glm46V(Glm4v):
    family: ClassVar[str] = "GLM-4.6V"
    model_types: ClassVar[tuple[str, ...]] = ("glm46v", "glmga")
    processor: ClassVar[str] = "Glm46VProcessor"


class GlmOcr(Glm4v):
    family: ClassVar[str] = "GLM-OCR"
    model_types: ClassVar[tuple[str, ...]] = ("glm_ocr",)
    processor: ClassVar[str] = "Glm46VProcessor"


GLM: tuple[type[Any], ...] = (Glm4v, Glm46V, GlmOcr)
