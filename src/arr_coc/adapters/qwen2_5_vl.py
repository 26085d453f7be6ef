"""Qwen2.5-VL: most encoder layers attend inside windows of the picture, a few across all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters import glance
from arr_coc.adapters.qwen2_vl import Qwen2VL
from arr_coc.adapters.received import Watch
from arr_coc.adapters.segments import Segments
from arr_coc.grid import Grid


class Qwen25VL(Qwen2VL):
    family: ClassVar[str] = "Qwen2.5-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    processor: ClassVar[str] = "Qwen2_5_VLProcessor"

    @property
    def window(self) -> int:
        """A window's side in cells."""
        config = self.encoder.config
        return int(config.window_size // config.spatial_merge_size // config.patch_size)

    def _plan_keywords(self, plan: glance.Patches, grids: list[Grid], cells: list[torch.Tensor]) -> dict[str, Any]:
        order, lengths = glance.windows(grids, cells, self.window)
        return super()._plan_keywords(plan, grids, cells) | {
            "window_index": order.to(self.device),
            "cu_window_seqlens": glance.boundaries(lengths * self.merge**2, self.device),
        }

    def _lengths(self, plan: glance.Patches, grids: list[Grid], cells: list[torch.Tensor]) -> list[torch.Tensor]:
        return [plan.frames, glance.windows(grids, cells, self.window)[1]]

    def _run(
        self, pixels: torch.Tensor, plan: glance.Patches, grids: list[Grid], cells: list[torch.Tensor], watch: Watch
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        order, lengths = glance.windows(grids, cells, self.window)
        order = order.to(self.device)
        # The stock encoder counts windows across frames, and so does the order: a frame's cells stay together.
        hidden = self._by_window(self.encoder.patch_embed(pixels), order)
        rotary = self.encoder.rotary_pos_emb(hidden, plan.places.to(self.device))
        cos, sin = (self._by_window(table, order) for table in rotary)
        frames = Segments(plan.frames, hidden.device, hidden.dtype)
        inside = Segments(lengths * self.merge**2, hidden.device, hidden.dtype)
        full = set(self.encoder.fullatt_block_indexes)
        hidden = self._blocks(hidden, (cos, sin), lambda layer: frames if layer in full else inside, watch)
        return self.encoder.merger(hidden)[order.argsort()], ()

    def _by_window(self, patches: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """`[P, D]` with its cells' patches put in the windows' order."""
        return patches.view(-1, self.merge**2, patches.shape[-1])[order].view(patches.shape)

    def _in_order(self, values: torch.Tensor, grids: list[Grid], cells: Sequence[torch.Tensor]) -> torch.Tensor:
        order, _ = glance.windows(grids, cells, self.window)
        return values[order.argsort().to(values.device)]
