"""LLaVA-NeXT (1.6): an overview and tiles of each picture through CLIP, line ends between the rows of the tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from arr_coc.adapters import anyres, tower
from arr_coc.adapters.base import Encoded, Inputs, Visual
from arr_coc.adapters.flat import Flat
from arr_coc.adapters.llava import TOWERS, check_tower
from arr_coc.errors import ModelError
from arr_coc.types.grid import Cells


class LlavaNext(Flat):
    family: ClassVar[str] = "LLaVA-NeXT"
    model_types: ClassVar[tuple[str, ...]] = ("llava_next",)
    processor: ClassVar[str] = "LlavaNextProcessor"
    # Patches of the padding around a picture are encoded but are no cells: a choice of cells does not say which of them.
    glances: ClassVar[bool] = False

    @property
    def cells_a_side(self) -> int:
        vision = self.config.vision_config
        return int(vision.image_size // vision.patch_size)

    @property
    def first(self) -> int:
        """Tokens of the tower before the first patch."""
        return TOWERS[self.config.vision_config.model_type]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        originals = inputs.get("image_sizes")
        return [] if originals is None else [self._mosaic((width, height)) for height, width in originals.tolist()]

    def _mosaic(self, size: tuple[int, int], most: int | None = None) -> Cells:
        best = anyres.best_canvas(size, self.config.image_grid_pinpoints)
        return anyres.mosaic(size, best, self.config.vision_config.image_size, self.cells_a_side, most)

    def token_count(self, grid: Cells) -> int:
        return anyres.token_count(grid)

    def cell_tokens(self, grid: Cells) -> torch.Tensor | None:
        return anyres.cell_tokens(grid)

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded]:
        if cells is not None and not all(len(c) == v.n for c, v in zip(cells, visuals, strict=True)):
            raise ModelError(f"{self.family} encodes whole pictures only: expected all cells, got some")
        encoded: dict[tuple[str, int], Encoded] = {}
        for kind in self.kinds:
            of_kind = sorted((visual for visual in visuals if visual.kind == kind), key=lambda visual: visual.number)
            if not of_kind:
                continue
            received = tower.Received(self.core.vision_tower.encoder.layers, tower.SIGLIP, depths)
            with received.watching():
                features = self._features(inputs, kind)
            maps = {depth: self._maps(inputs, kind, received, depth) for depth in depths}
            for visual in of_kind:
                tokens, at = features[visual.number], self.cell_tokens(visual.grid)
                assert at is not None
                ends = torch.ones(len(tokens), dtype=torch.bool)
                ends[at] = False
                encoded[kind, visual.number] = Encoded(
                    torch.arange(visual.n), tokens[at.to(tokens.device)], extra=tokens[ends.to(tokens.device)],
                    attention={depth: values[visual.number] for depth, values in maps.items()},
                )  # fmt: skip
        return [encoded[visual.kind, visual.number] for visual in visuals]

    def _features(self, inputs: Inputs, kind: str) -> Sequence[torch.Tensor]:
        """Every picture's tokens, line ends and all: `[T, D]` each."""
        sizes = inputs["image_sizes"]
        return self.core.get_image_features(self.pixels(inputs), sizes, return_dict=True).pooler_output

    def _maps(self, inputs: Inputs, kind: str, received: tower.Received, depth: float) -> list[torch.Tensor]:
        """What every picture's cells receive: `[N]` each."""
        tiles = self._tiles(inputs)
        starts = [sum(tiles[:number]) for number in range(len(tiles))]
        maps = [
            torch.stack([received.of(tile)[depth][self.first :] for tile in range(start, start + count)])
            for start, count in zip(starts, tiles, strict=True)
        ]
        return [values[:, 0] for values in self._pack([values[..., None] for values in maps], inputs)]

    def _tiles(self, inputs: Inputs) -> list[int]:
        """How many views each picture was encoded in."""
        side = self.config.vision_config.image_size
        offered = self.config.image_grid_pinpoints
        canvases = [anyres.best_canvas((width, height), offered) for height, width in inputs["image_sizes"].tolist()]
        return [1 + (width // side) * (height // side) for width, height in canvases]

    def _pack(self, values: list[torch.Tensor], inputs: Inputs) -> list[torch.Tensor]:
        """Values of the patches of every picture's tiles `[tiles, patches, 1]` as values of its cells `[N, 1]`."""
        strategy = self.config.vision_feature_select_strategy
        return self.core.pack_image_features(values, inputs["image_sizes"], strategy)[0]

    def check(self) -> None:
        super().check()
        check_tower(self.config, self.family)
        if self.first and self.config.vision_feature_select_strategy != "default":
            raise ModelError(
                f"expected vision_feature_select_strategy='default' in {self.family} with a class token, got "
                f"{self.config.vision_feature_select_strategy!r}, which leaves that token among the patches: "
                "correct the model's configuration"
            )
