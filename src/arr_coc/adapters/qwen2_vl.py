"""Qwen2-VL, and what its successors share with it.

Notable:
- the stock encoder takes precomputed positions and segment boundaries as keywords, so a glance is an ordinary call of it;
- under SDPA that encoder loops over segments in Python; `_run` does the same arithmetic with all segments in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters import patch_index as glance
from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual
from arr_coc.adapters.encoder_attention import Watch, rotated, watching
from arr_coc.adapters.segments import Segments
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

    def encoder_outputs(
        self, kept: Mapping[str, list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]]
    ) -> dict[str, Any]:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return {
            kind: BaseModelOutputWithPooling(pooler_output=tuple(tokens for tokens, _ in rows))  # type: ignore[arg-type]
            for kind, rows in kept.items()
        }

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded]:
        encoded: dict[tuple[str, int], Encoded] = {}
        if cells is not None and all(len(c) == v.n for c, v in zip(cells, visuals, strict=True)):
            cells = None  # everything: the stock encoder, bit for bit
        for kind in self.kinds:
            of_kind = sorted((v for v in visuals if v.kind == kind), key=lambda v: v.number)
            if not of_kind:
                continue
            pixels = inputs.get(PIXELS[kind][0])
            if pixels is None:
                raise PromptError(f"expected {PIXELS[kind][0]} beside {PIXELS[kind][1]}")
            chosen = None
            if cells is not None:
                at = {(v.kind, v.number): c for v, c in zip(visuals, cells, strict=True)}
                chosen = [at[kind, visual.number] for visual in of_kind]
            answers = self._encode(pixels, inputs[PIXELS[kind][1]], [v.grid.views[0] for v in of_kind], chosen, depths)
            encoded |= {(kind, visual.number): answer for visual, answer in zip(of_kind, answers, strict=True)}
        return [encoded[visual.kind, visual.number] for visual in visuals]

    def _encode(
        self, pixels: torch.Tensor, thw: torch.Tensor, grids: list[Grid], cells: list[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        dense = cells is None
        cells = [torch.arange(grid.n) for grid in grids] if cells is None else cells
        counts = [len(chosen) for chosen in cells]
        if sum(counts) == 0:
            none = torch.zeros(0, self.width, device=self.device, dtype=self.encoder.dtype)
            return [
                Encoded(chosen, none, (none,) * self.levels, attention=dict.fromkeys(depths, none[:, 0]))
                for chosen in cells
            ]
        plan = self.plan(grids, cells)
        # Only what is encoded travels to the device.
        pixels = pixels if dense else pixels[plan.rows.to(pixels.device)]
        pixels = pixels.to(self.device, self.encoder.dtype)
        watch = self.watch(depths)
        if self._own(dense):
            tokens, deep = self._run(pixels, plan, watch)
        else:
            keywords = {} if dense else self.plan_keywords(plan)
            with watching(watch):
                answer = self.encoder(pixels, grid_thw=thw.to(self.device), return_dict=True, **keywords)
            tokens, deep = answer.pooler_output, tuple(getattr(answer, "deepstack_features", None) or ())
        received = {depth: self._in_order(values, plan).split(counts) for depth, values in watch.cells().items()}
        return [
            Encoded(
                chosen, part, tuple(level.split(counts)[i] for level in deep),
                attention={depth: values[i] for depth, values in received.items()},
            )
            for i, (chosen, part) in enumerate(zip(cells, tokens.split(counts), strict=True))
        ]  # fmt: skip

    def watch(self, depths: Sequence[float]) -> Watch:
        return Watch(self.encoder.blocks, depths, self.merge**2)

    @property
    def width(self) -> int:
        return int(self.config.get_text_config().hidden_size)

    levels: ClassVar[int] = 0  # further feature levels that the encoder hands on

    # A glance by the stock encoder.

    def plan(self, grids: list[Grid], cells: list[torch.Tensor]) -> glance.Patches:
        """Which patches to encode, where they stand and with whom they attend."""
        return glance.patches(grids, cells, self.merge)

    def plan_keywords(self, plan: glance.Patches) -> dict[str, Any]:
        """The encoder's precomputed inputs for some of the patches."""
        return {
            "position_ids": plan.places.to(self.device),
            "cu_seqlens": glance.boundaries(plan.frames, self.device),
        }

    # A glance with all segments in one call.

    def _own(self, dense: bool) -> bool:
        """Whether to run the blocks here: the stock loop over segments also waits for the accelerator in every layer."""
        return self.encoder.config._attn_implementation == "sdpa" and (not dense or self.batched)

    def _run(
        self, pixels: torch.Tensor, plan: glance.Patches, watch: Watch
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Tokens `[M, D]` and deep features of the planned patches `[P, C]`."""
        hidden = self.encoder.patch_embed(pixels)
        rotary = self.encoder.rotary_pos_emb(hidden, plan.places.to(self.device))
        frames = Segments(plan.frames, hidden.device, hidden.dtype)
        return self.encoder.merger(self._blocks(hidden, rotary, lambda layer: frames, watch)), ()

    def _blocks(
        self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], segments: Callable[[int], Segments],
        watch: Watch, after: Callable[[int, torch.Tensor], None] = lambda layer, hidden: None,
    ) -> torch.Tensor:  # fmt: skip
        """Hidden states `[P, D]` after every block; `after` sees them on the way."""
        for number, block in enumerate(self.encoder.blocks):
            division = segments(number)
            watch.see(number, hidden, rotary, division.lengths)
            hidden = hidden + _attend(block.attn, block.norm1(hidden), rotary, division)
            hidden = hidden + block.mlp(block.norm2(hidden))
            after(number, hidden)
        return hidden

    def _in_order(self, values: torch.Tensor, plan: glance.Patches) -> torch.Tensor:
        """Values of cells `[M]` as the blocks order them, in the cells' own order."""
        return values


def _attend(
    attention: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], segments: Segments
) -> torch.Tensor:
    """An encoder's attention layer on `[P, D]`, all segments at once."""
    query, key, value = attention.qkv(hidden).view(len(hidden), 3, attention.num_heads, -1).unbind(1)
    mixed = segments.attend(rotated(query, rotary), rotated(key, rotary), value)
    return attention.proj(mixed.reshape(len(hidden), -1))
