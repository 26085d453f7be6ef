"""LLaVA-1.5: one view of each picture through CLIP (or SigLIP), one token for each patch.

Notable:
- its processor cuts the picture's middle out (or pads it to a square): the grid's area says which part was seen;
- the features come from a block before the last one, so a glance leaves the later blocks out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters import tower
from arr_coc.adapters.base import Encoded, Inputs, Visual
from arr_coc.adapters.flat import Flat
from arr_coc.errors import ModelError
from arr_coc.types.grid import Cells, Grid

TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}  # tokens before the patches (CLIP: the class token)


class Llava(Flat):
    family: ClassVar[str] = "LLaVA-1.5"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)
    processor: ClassVar[str] = "LlavaProcessor"
    fixed_grid: ClassVar[bool] = True

    @property
    def vision(self) -> Any:
        return self.core.vision_tower

    @property
    def first(self) -> int:
        """Tokens of the tower before the first patch."""
        return TOWERS[self.config.vision_config.model_type]

    @property
    def extras(self) -> int:
        """Tokens before the first patch that the language model reads, too."""
        return self.first if self.config.vision_feature_select_strategy == "full" else 0

    @property
    def wanted(self) -> list[int]:
        """The blocks whose input the features are (their count: the last one's output)."""
        chosen = self.config.vision_feature_layer
        count = len(self.vision.encoder.layers)
        return [layer % (count + 1) for layer in ([chosen] if isinstance(chosen, int) else chosen)]

    @property
    def blocks(self) -> Any:
        """The tower's blocks that have a part in the features."""
        return self.vision.encoder.layers[: max(self.wanted)]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        pixels = inputs.get("pixel_values")
        if pixels is None:
            return []
        height, width = pixels.shape[-2:]
        side = self.config.vision_config.patch_size
        return [
            Grid(1, height // side, width // side)
            if sizes is None
            else Grid(1, height // side, width // side, seen_area(self.image_processor, sizes[number], (width, height)))
            for number in range(len(pixels))
        ]

    def token_count(self, grid: Cells) -> int:
        return grid.n + self.extras

    def cell_tokens(self, grid: Cells) -> torch.Tensor | None:
        return torch.arange(grid.n) + self.extras if self.extras else None

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded]:
        pixels = self.pixels(inputs)
        received = tower.Received(self.blocks, tower.SIGLIP, depths)
        if cells is None or all(len(c) == v.n for c, v in zip(cells, visuals, strict=True)):
            with received.watching():  # everything: the stock encoder, bit for bit
                answer = self.core.get_image_features(pixels, return_dict=True)
            features = [answer.pooler_output[visual.number] for visual in visuals]
            cells = [torch.arange(visual.n) for visual in visuals]
        else:
            features = self._glance(pixels, [visual.number for visual in visuals], cells, received)
        return [
            Encoded(
                chosen, tokens[self.extras :], extra=tokens[: self.extras] if self.extras else None,
                attention={depth: values[self.first :] for depth, values in received.of(visual.number).items()},
            )
            for visual, chosen, tokens in zip(visuals, cells, features, strict=True)
        ]  # fmt: skip

    def _glance(
        self, pixels: torch.Tensor, numbers: Sequence[int], cells: Sequence[torch.Tensor], received: tower.Received
    ) -> list[torch.Tensor]:
        """Each picture's tokens `[K, D]` (the class token before them where it is read), from its chosen patches only."""
        hidden = self.vision.embeddings(pixels)  # [P, S, D], cheap beside the blocks
        norm = getattr(self.vision, "pre_layrnorm", None)
        hidden = hidden if norm is None else norm(hidden)
        chosen = [torch.zeros(0, dtype=torch.long)] * len(pixels)
        before = torch.arange(self.first)
        for number, some in zip(numbers, cells, strict=True):
            if len(some) or self.extras:
                chosen[number] = torch.cat([before, some + self.first])
        states = tower.run(self.blocks, tower.SIGLIP, hidden, chosen, self.wanted, received)
        read = [states[number][self.first - self.extras :] for number in numbers]
        tokens = self.core.multi_modal_projector(torch.cat(read))
        return list(tokens.split([len(part) for part in read]))

    def check(self) -> None:
        super().check()
        check_tower(self.config, self.family)


def check_tower(config: Any, family: str) -> None:
    """One clear sentence where the vision tower is not one of the plain ones."""
    kind = config.vision_config.model_type
    if kind not in TOWERS:
        raise ModelError(
            f"expected a CLIP or SigLIP vision tower in {family}, got {kind!r}: this model cannot be wrapped"
        )
    if config.vision_feature_select_strategy == "default" and not TOWERS[kind]:
        raise ModelError(
            f"expected vision_feature_select_strategy='full' beside {kind!r}, which has no class token, got 'default', "
            "which drops the first patch: correct the model's configuration"
        )


def seen_area(settings: Any, size: tuple[int, int], seen: tuple[int, int]) -> tuple[float, float, float, float]:
    """The part of a picture of `size` that an image processor turned into `seen` pixels (both width, height), as shares.

    Without `settings`: the shorter side is brought to the size of `seen` and the middle cut out, as CLIP does. Where
    pixels were added around the picture the area goes beyond 0 and 1, so that every cell's box lies where its pixels are.
    """
    padded = hasattr(settings, "pad_to_square") and bool(settings.do_pad)
    cropped = settings is None or bool(getattr(settings, "do_center_crop", False))
    canvas = (max(size), max(size)) if padded else size
    resized = _resized(settings, canvas, seen)
    edges = []
    for whole, now, shown, original in zip(canvas, resized, seen, size, strict=True):
        start, end = ((now - shown) // 2, (now - shown) // 2 + shown) if cropped else (0, now)
        before = (whole - original) // 2
        edges.append([(at * whole / now - before) / original for at in (start, end)])
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def _resized(settings: Any, canvas: tuple[int, int], seen: tuple[int, int]) -> tuple[int, int]:
    """Width and height of the canvas after the processor resized it."""
    size = {"shortest_edge": min(seen)} if settings is None else dict(settings.size or {})
    if settings is not None and not settings.do_resize:
        return canvas
    if size.get("shortest_edge") is None:
        return size["width"], size["height"]
    short = size["shortest_edge"]
    long = int(short * max(canvas) / min(canvas))
    return (short, long) if canvas[0] <= canvas[1] else (long, short)
