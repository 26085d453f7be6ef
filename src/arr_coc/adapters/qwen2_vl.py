"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, and the thinkers of Qwen2.5-Omni and Qwen3-Omni.

- The stock encoder takes precomputed positions and segment boundaries as keyword arguments, so it can run on some of the
  patches in an ordinary call.
- Under SDPA it loops over segments in Python. `_run` does the same arithmetic with all segments in one call.
- Qwen2.5-VL: most encoder layers attend inside windows, a few across the whole frame.
- Qwen3-VL: learned positions are interpolated to the picture's grid, and DeepStack feeds the first language layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    project_qkv,
    sort_by_window,
)
from arr_coc.adapters.processor import read_patches
from arr_coc.adapters.wrapped import is_spread, without_compilation
from arr_coc.devices import to_device
from arr_coc.errors import PromptError
from arr_coc.types.grid import Cells, Grid, split_cells

PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


class Qwen2VL(Adapter):
    family: ClassVar[str] = "Qwen2-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl",)
    processor: ClassVar[str] = "Qwen2VLProcessor"
    kinds: ClassVar[tuple[str, ...]] = ("image", "video")
    late_patches: ClassVar[bool] = True
    pixel_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_values_videos")
    mixes: ClassVar[bool] = True

    @property
    def encoder(self) -> Any:
        return self.core.visual

    @property
    def merge(self) -> int:
        return int(self.encoder.config.spatial_merge_size)

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        thw = inputs.get(PIXELS[kind][1])
        made: list[Cells] = (
            [] if thw is None else [Grid(t, h // self.merge, w // self.merge) for t, h, w in thw.tolist()]
        )
        if kind == "image" and "image_levels" in inputs:  # cells of different sizes
            from arr_coc.adapters.mixed import LEVELS, join_levels

            return join_levels(made, inputs[LEVELS])
        return made

    def positions(self, inputs: Inputs) -> torch.Tensor:
        if "image_levels" in inputs:
            from arr_coc.adapters import mixed

            return mixed.positions(inputs, self.visuals(inputs), self.merge, self.token_id("image"), self.positions)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        grids = {key: inputs[key] for _, key in PIXELS.values() if inputs.get(key) is not None}
        if not grids:
            rising = (mask.long().cumsum(-1) - 1).clamp_min(0)
            return rising.expand(3, *rising.shape)
        return self._rope_index(inputs, ids, mask, grids)

    def _rope_index(
        self, inputs: Inputs, ids: torch.Tensor, mask: torch.Tensor, grids: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        if inputs.get("second_per_grid_ts") is not None:
            grids["second_per_grid_ts"] = inputs["second_per_grid_ts"]
        kinds = sum((ids == token).int() * number for number, token in enumerate(self.token_ids.values(), start=1))
        positions, _ = self.core.get_rope_index(ids, mm_token_type_ids=kinds, attention_mask=mask, **grids)
        return positions

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        pixels, thw = (inputs.get(key) for key in PIXELS[kind])
        if pixels is None or thw is None:
            raise PromptError(f"expected {PIXELS[kind][0]} along with {PIXELS[kind][1]}, got none: pass both")
        dense, grids = cells is None, [view for visual in visuals for view in visual.grid.views]
        encoder, device = self.encoder, self.device
        cells = [torch.arange(visual.n) for visual in visuals] if cells is None else cells
        if not any(map(len, cells)):
            none = torch.zeros(0, self.width, device=device, dtype=encoder.dtype)
            return [
                Encoded(chosen, none, (none,) * self.deep_layers, attention=dict.fromkeys(depths, none[:, 0]))
                for chosen in cells
            ]
        if dense and not depths and not self._batches_segments(dense):  # as the model itself would encode it
            with without_compilation():
                tokens, deep = self._stock(read_patches(pixels, None, device, encoder.dtype), thw.to(device))
            return _split(cells, tokens, deep, {})
        by_grid = [
            part
            for visual, chosen in zip(visuals, cells, strict=True)
            for part in split_cells(visual.grid.views, chosen)
        ]
        patches = self._index(grids, by_grid)
        pixels = read_patches(pixels, None if dense else patches.rows, device, encoder.dtype)
        recorder = Recorder(encoder.blocks, depths, self.merge**2)
        if self._batches_segments(dense):
            tokens, deep = self._run(pixels, patches, recorder)
        else:
            keywords = {} if dense else self._encoder_kwargs(patches)
            with recorder.attached():
                sizes = self._segment_sizes(thw, grids, by_grid, dense).to(device)
                tokens, deep = self._stock(pixels, sizes, **keywords)
        received = {depth: self._by_cell(values, patches) for depth, values in recorder.cells().items()}
        return _split(cells, tokens, deep, received)

    def _stock(self, pixels: torch.Tensor, sizes: torch.Tensor, **keywords: Any) -> Features:
        """Tokens and deep features by the stock encoder, in an ordinary call."""
        answer = self.encoder(pixels, grid_thw=sizes, return_dict=True, **keywords)
        return answer.pooler_output, tuple(getattr(answer, "deepstack_features", None) or ())

    def _index(self, grids: list[Grid], cells: Sequence[torch.Tensor]) -> PatchIndex:
        return index_patches(grids, cells, self.merge)

    def _encoder_kwargs(self, patches: PatchIndex) -> dict[str, Any]:
        """The encoder's precomputed inputs for these patches."""
        device = self.device
        made = {"position_ids": patches.places.to(device), "cu_seqlens": boundaries(patches.frames, device)}
        if patches.windows is not None:
            order, lengths = patches.windows
            made |= {"window_index": order.to(device), "cu_window_seqlens": boundaries(lengths, device)}
        return made

    def _segment_sizes(
        self, thw: torch.Tensor, grids: Sequence[Grid], cells: Sequence[torch.Tensor], dense: bool
    ) -> torch.Tensor:
        """The `grid_thw` for the encoder call; precomputed positions and boundaries replace what it would derive from it."""
        return thw

    def _batches_segments(self, dense: bool) -> bool:
        """Whether to run the blocks here: the stock loop over segments synchronises with the device in every layer.

        Blocks that are on several devices, or checkpoint their gradients, must be called whole.
        """
        encoder = self.encoder
        if encoder.config._attn_implementation != "sdpa" or (dense and not self.batch_windows):
            return False
        checkpoints = encoder.training and encoder.is_gradient_checkpointing and torch.is_grad_enabled()
        return not checkpoints and not is_spread(self.model, encoder)

    def _run(self, pixels: torch.Tensor, patches: PatchIndex, recorder: Recorder) -> Features:
        """Tokens and deep features of the patches `[P, C]`."""
        encoder = self.encoder
        hidden = self._add_positions(encoder.patch_embed(pixels), patches)
        rotary = encoder.rotary_pos_emb(hidden, to_device(patches.places, hidden.device))
        frames = windows = Segments(patches.frames, hidden.device, hidden.dtype)
        if patches.windows is not None:
            order, lengths = to_device(patches.windows[0], hidden.device), patches.windows[1]
            # No window spans two frames, so a frame's cells stay together in this order.
            hidden, cos, sin = (
                part.view(-1, self.merge**2, part.shape[-1])[order].view(part.shape) for part in (hidden, *rotary)
            )
            rotary = (cos, sin)
            windows = Segments(lengths, hidden.device, hidden.dtype)
        across_frames = getattr(encoder, "fullatt_block_indexes", ())
        deep_blocks = list(getattr(encoder, "deepstack_visual_indexes", ()))
        deep = []
        for number, block in enumerate(encoder.blocks):
            segments = frames if number in across_frames else windows
            recorder.record(number, hidden, rotary, segments.lengths)
            hidden = hidden + _attend(block.attn, block.norm1(hidden), rotary, segments)
            hidden = hidden + block.mlp(block.norm2(hidden))
            if number in deep_blocks:
                deep.append(encoder.deepstack_merger_list[deep_blocks.index(number)](hidden))
        tokens = encoder.merger(hidden)
        return self._by_cell(tokens, patches), tuple(deep)

    def _add_positions(self, hidden: torch.Tensor, patches: PatchIndex) -> torch.Tensor:
        """Patch embeddings `[P, D]` with learned positions, where the family has them."""
        return hidden

    def _by_cell(self, values: torch.Tensor, patches: PatchIndex) -> torch.Tensor:
        """Values of cells `[M, ...]` from the blocks' order to the cells' own."""
        return values if patches.windows is None else values[to_device(patches.windows[0].argsort(), values.device)]


class Qwen25VL(Qwen2VL):
    family: ClassVar[str] = "Qwen2.5-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    processor: ClassVar[str] = "Qwen2_5_VLProcessor"

    def _index(self, grids: list[Grid], cells: Sequence[torch.Tensor]) -> PatchIndex:
        config = self.encoder.config
        side = config.window_size // config.spatial_merge_size // config.patch_size  # of a window, in cells
        order, lengths = sort_by_window(grids, cells, side)
        return replace(super()._index(grids, cells), windows=(order, lengths * self.merge**2))


class Qwen3VL(Qwen2VL):
    family: ClassVar[str] = "Qwen3-VL"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl", "qwen3_vl_moe")
    processor: ClassVar[str] = "Qwen3VLProcessor"

    @property
    def deep_layers(self) -> int:
        return len(getattr(self.encoder.config, "deepstack_visual_indexes", ()))

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        if not self.deep_layers:
            return super().encoder_outputs(kept)
        from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

        return {
            kind: BaseModelOutputWithDeepstackFeatures(
                pooler_output=tuple(tokens for tokens, _ in rows),  # type: ignore[arg-type]
                deepstack_features=[tuple(deep[level] for _, deep in rows) for level in range(self.deep_layers)],  # type: ignore[misc]
            )
            for kind, rows in kept.items()
        }

    def _encoder_kwargs(self, patches: PatchIndex) -> dict[str, Any]:
        corners, weights = self._interpolation(patches)
        return super()._encoder_kwargs(patches) | {"interp_indices": corners, "interp_weights": weights}

    def _add_positions(self, hidden: torch.Tensor, patches: PatchIndex) -> torch.Tensor:
        corners, weights = (part.to(hidden.device) for part in self._interpolation(patches))
        return hidden + (self.encoder.pos_embed(corners) * weights[:, :, None]).sum(1).to(hidden.dtype)

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
        rows, columns = torch.stack([low, high], -1).unbind(1)  # [P, 2] near and far
        down, across = torch.stack([near, far], -1).unbind(1)
        corners = (rows[:, :, None] * side + columns[:, None]).flatten(1)
        weights = (down[:, :, None] * across[:, None]).flatten(1)
        return to_device(corners, self.device), to_device(weights, self.device)


class Qwen35(Qwen3VL):
    """Most language layers are linear attention: dropped tokens are removed, not masked."""

    family: ClassVar[str] = "Qwen3.5"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5", "qwen3_5_moe")
    processor: ClassVar[str] = "Qwen3VLProcessor"


class _Omni(Qwen2VL):
    """The thinker of an omni model, which reads text and pictures; sound is refused."""

    readable: ClassVar[bool] = False

    def _rope_index(
        self, inputs: Inputs, ids: torch.Tensor, mask: torch.Tensor, grids: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        seconds = inputs.get("video_second_per_grid")
        positions, _ = self.core.get_rope_index(ids, attention_mask=mask, second_per_grids=seconds, **grids)
        return positions.long()


class Qwen25Omni(_Omni, Qwen25VL):
    family: ClassVar[str] = "Qwen2.5-Omni"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_omni_thinker",)
    processor: ClassVar[str] = "Qwen2_5OmniProcessor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)


class Qwen3Omni(_Omni, Qwen3VL):
    family: ClassVar[str] = "Qwen3-Omni"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_omni_moe_thinker",)
    processor: ClassVar[str] = "Qwen3OmniMoeProcessor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)


def _split(
    cells: Sequence[torch.Tensor],
    tokens: torch.Tensor,
    deep: tuple[torch.Tensor, ...],
    received: Mapping[float, torch.Tensor],
) -> list[Encoded]:
    """Tokens, deep features and received attention of all visuals, `[M, ...]`, as the results for each."""
    counts = [len(chosen) for chosen in cells]
    levels = [level.split(counts) for level in deep]
    maps = {depth: values.split(counts) for depth, values in received.items()}
    return [
        Encoded(
            chosen,
            part,
            tuple(level[i] for level in levels),
            attention={depth: found[i] for depth, found in maps.items()},
        )
        for i, (chosen, part) in enumerate(zip(cells, tokens.split(counts), strict=True))
    ]


def _attend(
    attention: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], segments: Segments
) -> torch.Tensor:
    """An encoder block's attention on `[P, D]`, all segments at once."""
    query, key, value = project_qkv(attention, hidden)
    mixed = segments.attend(apply_rotary(query, rotary), apply_rotary(key, rotary), value)
    return attention.proj(mixed.reshape(len(hidden), -1))
