"""InternVL (the transformers port): tiles and a thumbnail of each picture, 2 x 2 patches merged into a cell.

A picture is one run of image tokens in the prompt; the run's length gives its number of tiles. Frames of a video are
such runs too: they count as pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Inputs
from arr_coc.adapters.encoder import INTERN_BLOCK, BlockNames
from arr_coc.adapters.llava import TiledAdapter
from arr_coc.errors import ModelError, PromptError
from arr_coc.types.grid import Cells, Grid, Mosaic


class InternVL(TiledAdapter):
    family: ClassVar[str] = "InternVL"
    model_types: ClassVar[tuple[str, ...]] = ("internvl",)
    processor: ClassVar[str] = "InternVLProcessor"
    block_names: ClassVar[BlockNames] = INTERN_BLOCK
    first = 1  # the class token

    @property
    def vision(self) -> Any:
        return self.core.vision_tower

    @property
    def merge(self) -> int:  # type: ignore[override]
        return round(1 / self.config.downsample_ratio)

    @property
    def side(self) -> int:
        vision = self.config.vision_config
        return int(vision.image_size[0] // vision.patch_size[0] // self.merge)

    @property
    def blocks(self) -> Any:
        layers, chosen = self.vision.encoder.layer, self.config.vision_feature_layer
        return layers[: chosen % (len(layers) + 1)]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        if inputs.get("pixel_values") is None:
            return []
        found: list[Cells] = []
        runs = self.image_runs(inputs["input_ids"])
        self.check_tiles([len(inputs["pixel_values"])], [sum(end - start for _, start, end in runs) // self.side**2])
        for number, (_, start, end) in enumerate(runs):
            tiles, rest = divmod(end - start, self.side**2)
            if rest:
                raise PromptError(
                    f"expected whole tiles of {self.side**2} image tokens, got a run of {end - start}: "
                    "use the processor that belongs to the model"
                )
            if tiles == 1:
                found.append(Grid(1, self.side, self.side))
            elif sizes is None:  # the tile layout is unknown: each tile gets the whole picture as its area
                found.append(Mosaic((Grid(1, self.side, self.side),) * tiles))
            else:
                columns, rows = tile_layout(tiles - 1, sizes[number])
                found.append(self.tile_grid(rows, columns))
        return found

    def _tile_pixels(self, inputs: Inputs) -> torch.Tensor:
        return self.pixels(inputs).to(self.core.dtype)

    def _encode_all(self, inputs: Inputs) -> torch.Tensor:
        return self.core.get_image_features(self.pixels(inputs), return_dict=True).pooler_output

    def _embed(self, tiles: torch.Tensor) -> torch.Tensor:
        return self.vision.embeddings(tiles)

    def _project(self, cells: torch.Tensor) -> torch.Tensor:
        if self.config.vision_feature_layer == -1:  # the tower's last norm applies to the last layer only
            channels = self.config.vision_config.hidden_size
            cells = self.vision.layernorm(cells.view(-1, channels)).view(len(cells), -1)
        return self.core.multi_modal_projector(cells)

    def check(self) -> None:
        super().check()
        strategy = self.config.vision_feature_select_strategy
        if strategy != "default":
            raise ModelError(
                f"expected vision_feature_select_strategy='default' in {self.family}, got {strategy!r}, which leaves the "
                "class token among the patches: correct the model's configuration"
            )


def tile_layout(tiles: int, size: tuple[int, int]) -> tuple[int, int]:
    """Columns and rows of the `tiles` tiles of a picture of `size` (width, height).

    Of all layouts with that many tiles, the processor takes the one whose aspect ratio is nearest to the picture's.

    >>> tile_layout(6, (900, 600))
    (3, 2)
    """
    shapes = [(columns, tiles // columns) for columns in range(1, tiles + 1) if tiles % columns == 0]
    return min(shapes, key=lambda shape: abs(size[0] / size[1] - shape[0] / shape[1]))
