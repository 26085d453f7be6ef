"""Qwen3-VL: learned positions interpolated to the picture's grid, and DeepStack, features for the first language layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from arr_coc.adapters import patch_index as glance
from arr_coc.adapters.encoder_attention import Watch
from arr_coc.adapters.qwen2_vl import Qwen2VL
from arr_coc.adapters.segments import Segments


class Qwen3VL(Qwen2VL):
    family: ClassVar[str] = "Qwen3-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl", "qwen3_vl_moe")
    processor: ClassVar[str] = "Qwen3VLProcessor"

    @property
    def levels(self) -> int:  # type: ignore[override]
        return len(self.encoder.config.deepstack_visual_indexes)

    @property
    def deep_layers(self) -> int:
        return self.levels

    def encoder_outputs(
        self, kept: Mapping[str, list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]]
    ) -> dict[str, Any]:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

        return {
            kind: BaseModelOutputWithDeepstackFeatures(
                pooler_output=tuple(tokens for tokens, _ in rows),  # type: ignore[arg-type]
                deepstack_features=[tuple(deep[level] for _, deep in rows) for level in range(self.levels)],  # type: ignore[misc]
            )
            for kind, rows in kept.items()
        }

    def plan_keywords(self, plan: glance.Patches) -> dict[str, Any]:
        corners, weights = self._interpolation(plan)
        return super().plan_keywords(plan) | {"interp_indices": corners, "interp_weights": weights}

    def _run(
        self, pixels: torch.Tensor, plan: glance.Patches, watch: Watch
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        hidden = self.encoder.patch_embed(pixels)
        corners, weights = self._interpolation(plan)
        learned = (self.encoder.pos_embed(corners) * weights[:, :, None]).sum(1)
        hidden = hidden + learned.to(hidden.dtype)
        rotary = self.encoder.rotary_pos_emb(hidden, plan.places.to(self.device))
        frames = Segments(plan.frames, hidden.device, hidden.dtype)
        deep: list[torch.Tensor] = []
        levels = list(self.encoder.deepstack_visual_indexes)

        def collect(layer: int, state: torch.Tensor) -> None:
            if layer in levels:
                deep.append(self.encoder.deepstack_merger_list[levels.index(layer)](state))

        hidden = self._blocks(hidden, rotary, lambda layer: frames, watch, collect)
        return self.encoder.merger(hidden), tuple(deep)

    def _interpolation(self, plan: glance.Patches) -> tuple[torch.Tensor, torch.Tensor]:
        """The four nearest learned positions of each patch `[P, 4]`, and their weights, bilinear from corner to corner."""
        side = self.encoder.num_grid_per_side
        at = plan.places.float() * (side - 1) / (plan.sizes - 1).clamp_min(1)  # [P, 2] row and column in the table
        low = at.floor()
        part = at - low
        # The stock encoder computes the far weight from the far distance, which rounds differently from `part`.
        near, far = 1 - part, 1 - (part - 1).abs()
        low = low.long()
        high = (low + 1).clamp_max(side - 1)
        rows, columns = torch.stack([low[:, 0], high[:, 0]], -1), torch.stack([low[:, 1], high[:, 1]], -1)
        down, across = torch.stack([near[:, 0], far[:, 0]], -1), torch.stack([near[:, 1], far[:, 1]], -1)
        corners = (rows[:, :, None] * side + columns[:, None]).flatten(1)
        weights = (down[:, :, None] * across[:, None]).flatten(1)
        return corners.to(self.device), weights.to(self.device)
