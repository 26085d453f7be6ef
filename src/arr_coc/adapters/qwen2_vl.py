"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

- The stock encoder takes precomputed positions and segment boundaries as keyword arguments, so it can run on some of the
  patches in an ordinary call.
- Under SDPA it loops over segments in Python. `_run` does the same arithmetic with all segments in one call.
- Qwen2.5-VL: most encoder layers attend inside windows, a few across the whole frame.
- Qwen3-VL: learned positions are interpolated to the picture's grid, and DeepStack feeds the first language layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Adapter, Encoded, Features, Inputs, Visual
from arr_coc.adapters.encoder import (
    PatchIndex,
    Recorder,
    Segments,
    apply_rotary,
    boundaries,
    index_patches,
    sort_by_window,
)
from arr_coc.errors import PromptError
from arr_coc.types.grid import Cells, Grid

PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


class Qwen2VL(Adapter):
    family: ClassVar[str] = "Qwen2-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl",)
    processor: ClassVar[str] = "Qwen2VLProcessor"
    kinds: ClassVar[tuple[str, ...]] = ("image", "video")
    pixel_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_values_videos")

    @property
    def encoder(self) -> Any:
        return self.core.visual

    @property
    def merge(self) -> int:
        return int(self.encoder.config.spatial_merge_size)

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        thw = inputs.get(PIXELS[kind][1])
        return [] if thw is None else [Grid(t, h // self.merge, w // self.merge) for t, h, w in thw.tolist()]

    def positions(self, inputs: Inputs) -> torch.Tensor:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        grids = {key: inputs[key] for _, key in PIXELS.values() if inputs.get(key) is not None}
        if not grids:
            rising = (mask.long().cumsum(-1) - 1).clamp_min(0)
            return rising.expand(3, *rising.shape)
        if inputs.get("second_per_grid_ts") is not None:
            grids["second_per_grid_ts"] = inputs["second_per_grid_ts"]
        kinds = sum((ids == self.token_id(kind)).int() * number for number, kind in enumerate(self.kinds, start=1))
        positions, _ = self.core.get_rope_index(ids, mm_token_type_ids=kinds, attention_mask=mask, **grids)
        return positions

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return {
            kind: BaseModelOutputWithPooling(pooler_output=tuple(tokens for tokens, _ in rows))  # type: ignore[arg-type]
            for kind, rows in kept.items()
        }

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        pixels, thw = (inputs.get(key) for key in PIXELS[kind])
        if pixels is None or thw is None:
            raise PromptError(f"expected {PIXELS[kind][0]} along with {PIXELS[kind][1]}, got none: pass both")
        dense, grids = cells is None, [visual.grid.views[0] for visual in visuals]
        cells = [torch.arange(grid.n) for grid in grids] if cells is None else cells
        counts = [len(chosen) for chosen in cells]
        if sum(counts) == 0:
            none = torch.zeros(0, self.width, device=self.device, dtype=self.encoder.dtype)
            return [
                Encoded(chosen, none, (none,) * self.levels, attention=dict.fromkeys(depths, none[:, 0]))
                for chosen in cells
            ]
        patches = self._index(grids, cells)
        # Only the patches that are encoded travel to the device.
        pixels = pixels if dense else pixels[patches.rows.to(pixels.device)]
        pixels = pixels.to(self.device, self.encoder.dtype)
        recorder = Recorder(self.encoder.blocks, depths, self.merge**2)
        if self._batches_segments(dense):
            tokens, deep = self._run(pixels, patches, recorder)
        else:
            keywords = {} if dense else self._encoder_kwargs(patches)
            with recorder.attached():
                answer = self.encoder(pixels, grid_thw=thw.to(self.device), return_dict=True, **keywords)
            tokens, deep = answer.pooler_output, tuple(getattr(answer, "deepstack_features", None) or ())
        received = {depth: self._by_cell(values, patches).split(counts) for depth, values in recorder.cells().items()}
        return [
            Encoded(
                chosen, part, tuple(level.split(counts)[i] for level in deep),
                attention={depth: values[i] for depth, values in received.items()},
            )
            for i, (chosen, part) in enumerate(zip(cells, tokens.split(counts), strict=True))
        ]  # fmt: skip

    @property
    def width(self) -> int:
        return int(self.config.get_text_config().hidden_size)

    levels: ClassVar[int] = 0  # DeepStack levels of the encoder

    # Some of the patches through the stock encoder.

    def _index(self, grids: list[Grid], cells: Sequence[torch.Tensor]) -> PatchIndex:
        return index_patches(grids, cells, self.merge)

    def _encoder_kwargs(self, patches: PatchIndex) -> dict[str, Any]:
        """The encoder's precomputed inputs for these patches."""
        return {
            "position_ids": patches.places.to(self.device),
            "cu_seqlens": boundaries(patches.frames, self.device),
        }

    # Some of the patches, with all segments in one call.

    def _batches_segments(self, dense: bool) -> bool:
        """Whether to run the blocks here: the stock loop over segments synchronises with the device in every layer."""
        return self.encoder.config._attn_implementation == "sdpa" and (not dense or self.batch_windows)

    def _run(self, pixels: torch.Tensor, patches: PatchIndex, recorder: Recorder) -> Features:
        """Tokens and deep features of the patches `[P, C]`."""
        hidden = self.encoder.patch_embed(pixels)
        rotary = self.encoder.rotary_pos_emb(hidden, patches.places.to(self.device))
        frames = Segments(patches.frames, hidden.device, hidden.dtype)
        return self.encoder.merger(self._run_blocks(hidden, rotary, lambda layer: frames, recorder)), ()

    def _run_blocks(
        self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], segments: Callable[[int], Segments],
        recorder: Recorder, after: Callable[[int, torch.Tensor], None] = lambda layer, hidden: None,
    ) -> torch.Tensor:  # fmt: skip
        """Hidden states `[P, D]` after the last block; `after` is called with those after each block."""
        for number, block in enumerate(self.encoder.blocks):
            division = segments(number)
            recorder.record(number, hidden, rotary, division.lengths)
            hidden = hidden + _attend(block.attn, block.norm1(hidden), rotary, division)
            hidden = hidden + block.mlp(block.norm2(hidden))
            after(number, hidden)
        return hidden

    def _by_cell(self, values: torch.Tensor, patches: PatchIndex) -> torch.Tensor:
        """Values of cells `[M]` from the blocks' order to the cells' own."""
        return values


class Qwen25VL(Qwen2VL):
    family: ClassVar[str] = "Qwen2.5-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    processor: ClassVar[str] = "Qwen2_5_VLProcessor"

    @property
    def window(self) -> int:
        """A window's side in cells."""
        config = self.encoder.config
        return int(config.window_size // config.spatial_merge_size // config.patch_size)

    def _index(self, grids: list[Grid], cells: Sequence[torch.Tensor]) -> PatchIndex:
        order, lengths = sort_by_window(grids, cells, self.window)
        return replace(super()._index(grids, cells), order=order, windows=lengths * self.merge**2)

    def _encoder_kwargs(self, patches: PatchIndex) -> dict[str, Any]:
        return super()._encoder_kwargs(patches) | {
            "window_index": patches.order.to(self.device),
            "cu_window_seqlens": boundaries(patches.windows, self.device),
        }

    def _run(self, pixels: torch.Tensor, patches: PatchIndex, recorder: Recorder) -> Features:
        order = patches.order.to(self.device)
        # No window spans two frames, so a frame's cells stay together in this order.
        hidden = self._by_window(self.encoder.patch_embed(pixels), order)
        rotary = self.encoder.rotary_pos_emb(hidden, patches.places.to(self.device))
        cos, sin = (self._by_window(table, order) for table in rotary)
        frames = Segments(patches.frames, hidden.device, hidden.dtype)
        windows = Segments(patches.windows, hidden.device, hidden.dtype)
        full = set(self.encoder.fullatt_block_indexes)
        hidden = self._run_blocks(hidden, (cos, sin), lambda layer: frames if layer in full else windows, recorder)
        return self.encoder.merger(hidden)[order.argsort()], ()

    def _by_window(self, values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """`[P, D]` with the cells' patches in the order of the windows."""
        return values.view(-1, self.merge**2, values.shape[-1])[order].view(values.shape)

    def _by_cell(self, values: torch.Tensor, patches: PatchIndex) -> torch.Tensor:
        return values[patches.order.argsort().to(values.device)]


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

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

        return {
            kind: BaseModelOutputWithDeepstackFeatures(
                pooler_output=tuple(tokens for tokens, _ in rows),  # type: ignore[arg-type]
                deepstack_features=[tuple(deep[level] for _, deep in rows) for level in range(self.levels)],  # type: ignore[misc]
            )
            for kind, rows in kept.items()
        }

    def _encoder_kwargs(self, patches: PatchIndex) -> dict[str, Any]:
        corners, weights = self._interpolation(patches)
        return super()._encoder_kwargs(patches) | {"interp_indices": corners, "interp_weights": weights}

    def _run(self, pixels: torch.Tensor, patches: PatchIndex, recorder: Recorder) -> Features:
        hidden = self.encoder.patch_embed(pixels)
        corners, weights = self._interpolation(patches)
        learned = (self.encoder.pos_embed(corners) * weights[:, :, None]).sum(1)
        hidden = hidden + learned.to(hidden.dtype)
        rotary = self.encoder.rotary_pos_emb(hidden, patches.places.to(self.device))
        frames = Segments(patches.frames, hidden.device, hidden.dtype)
        deep: list[torch.Tensor] = []
        levels = list(self.encoder.deepstack_visual_indexes)

        def collect(layer: int, state: torch.Tensor) -> None:
            if layer in levels:
                deep.append(self.encoder.deepstack_merger_list[levels.index(layer)](state))

        hidden = self._run_blocks(hidden, rotary, lambda layer: frames, recorder, collect)
        return self.encoder.merger(hidden), tuple(deep)

    def _interpolation(self, patches: PatchIndex) -> tuple[torch.Tensor, torch.Tensor]:
        """The four nearest learned positions of each patch `[P, 4]` and their bilinear weights; corners are aligned."""
        side = self.encoder.num_grid_per_side
        at = (
            patches.places.float() * (side - 1) / (patches.sizes - 1).clamp_min(1)
        )  # [P, 2] row and column in the table
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


def _attend(
    attention: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], segments: Segments
) -> torch.Tensor:
    """An encoder block's attention on `[P, D]`, all segments at once."""
    query, key, value = attention.qkv(hidden).view(len(hidden), 3, attention.num_heads, -1).unbind(1)
    mixed = segments.attend(apply_rotary(query, rotary), apply_rotary(key, rotary), value)
    return attention.proj(mixed.reshape(len(hidden), -1))
