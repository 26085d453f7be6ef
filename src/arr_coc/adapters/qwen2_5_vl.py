"""Qwen2.5-VL: most encoder layers attend inside windows of the picture, a few across all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch

from arr_coc.adapters import patch_index as glance
from arr_coc.adapters.encoder_attention import Watch
from arr_coc.adapters.qwen2_vl import Qwen2VL
from arr_coc.adapters.segments import Segments
from arr_coc.types.grid import Grid


class Qwen25VL(Qwen2VL):
    family: ClassVar[str] = "Qwen2.5-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    processor: ClassVar[str] = "Qwen2_5_VLProcessor"

    @property
    def window(self) -> int:
        """A window's side in cells."""
        config = self.encoder.config
        return int(config.window_size // config.spatial_merge_size // config.patch_size)

    def plan(self, grids: list[Grid], cells: list[torch.Tensor]) -> glance.Patches:
        order, lengths = glance.windows(grids, cells, self.window)
        return replace(super().plan(grids, cells), order=order, windows=lengths * self.merge**2)

    def plan_keywords(self, plan: glance.Patches) -> dict[str, Any]:
        assert plan.order is not None
        assert plan.windows is not None
        return super().plan_keywords(plan) | {
            "window_index": plan.order.to(self.device),
            "cu_window_seqlens": glance.boundaries(plan.windows, self.device),
        }

    def _run(
        self, pixels: torch.Tensor, plan: glance.Patches, watch: Watch
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        assert plan.order is not None
        assert plan.windows is not None
        order = plan.order.to(self.device)
        # Windows never reach across frames, so a frame's cells stay together in this order too.
        hidden = self._by_window(self.encoder.patch_embed(pixels), order)
        rotary = self.encoder.rotary_pos_emb(hidden, plan.places.to(self.device))
        cos, sin = (self._by_window(table, order) for table in rotary)
        frames = Segments(plan.frames, hidden.device, hidden.dtype)
        inside = Segments(plan.windows, hidden.device, hidden.dtype)
        full = set(self.encoder.fullatt_block_indexes)
        hidden = self._blocks(hidden, (cos, sin), lambda layer: frames if layer in full else inside, watch)
        return self.encoder.merger(hidden)[order.argsort()], ()

    def _by_window(self, patches: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """`[P, D]` with its cells' patches put in the windows' order."""
        return patches.view(-1, self.merge**2, patches.shape[-1])[order].view(patches.shape)

    def _in_order(self, values: torch.Tensor, plan: glance.Patches) -> torch.Tensor:
        assert plan.order is not None
        return values[plan.order.argsort().to(values.device)]
