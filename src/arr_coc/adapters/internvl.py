"""InternVL (the transformers port): tiles and a thumbnail of each picture, 2 x 2 patches merged into a cell.

A picture is one run of image tokens in the prompt; the run's length gives its number of tiles. Frames of a video are
such runs too: they count as pictures. `TiledAdapter` is shared with Idefics3 and SmolVLM.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Encoded, Inputs, Visual
from arr_coc.adapters.encoder_attention import CLIP_BLOCK, INTERN_BLOCK, BlockNames, TileRecorder
from arr_coc.adapters.llava import OnePositionPerToken, run_blocks
from arr_coc.errors import ModelError, PromptError
from arr_coc.types.grid import Cells, Grid, Mosaic


class TiledAdapter(OnePositionPerToken):
    """Families that cut a picture into tiles of equal size; a cell is `merge` x `merge` patches of a tile."""

    as_tensor: ClassVar[tuple[str, ...]] = ("image",)
    block_names: ClassVar[BlockNames] = CLIP_BLOCK
    first: ClassVar[int] = 0  # tokens of the tower before the first patch

    @property
    @abstractmethod
    def merge(self) -> int:
        """Patches along a cell's side."""

    @property
    @abstractmethod
    def side(self) -> int:
        """Cells along a tile's side."""

    @property
    @abstractmethod
    def blocks(self) -> Any:
        """The tower's blocks that the features depend on."""

    @abstractmethod
    def _tile_pixels(self, inputs: Inputs) -> torch.Tensor:
        """The pixels of all tiles that are encoded, in order: `[T, 3, H, W]`."""

    @abstractmethod
    def _encode_all(self, inputs: Inputs) -> torch.Tensor:
        """All tiles' cells by the stock encoder: `[T, N, D]`."""

    @abstractmethod
    def _embed(self, tiles: torch.Tensor) -> torch.Tensor:
        """The first block's input: `[T, S, D]`."""

    @abstractmethod
    def _project(self, cells: torch.Tensor) -> torch.Tensor:
        """Cells with their patches concatenated, row by row, `[M, merge ** 2 * C]` to tokens `[M, D]`."""

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded]:
        in_tile = self.side**2
        tiles = [visual.n // in_tile for visual in sorted(visuals, key=lambda visual: visual.number)]
        starts = [sum(tiles[: visual.number]) for visual in visuals]  # each visual's first tile
        recorder = TileRecorder(self.blocks, self.block_names, depths)
        whole = cells is None or all(len(c) == v.n for c, v in zip(cells, visuals, strict=True))
        if cells is None or whole:
            with recorder.attached():  # all cells: the stock encoder, bit for bit
                answer = self._encode_all(inputs)
            tokens = [
                answer[at : at + visual.n // in_tile].flatten(0, 1) for at, visual in zip(starts, visuals, strict=True)
            ]
            cells = [torch.arange(visual.n) for visual in visuals]
        else:
            tokens = self._encode_some(inputs, starts, sum(tiles), cells, recorder)
        return [
            Encoded(chosen, part, attention=self._attention(recorder, start, visual.n // in_tile, whole))
            for visual, chosen, part, start in zip(visuals, cells, tokens, starts, strict=True)
        ]

    def _encode_some(
        self, inputs: Inputs, starts: Sequence[int], count: int, cells: Sequence[torch.Tensor], recorder: TileRecorder
    ) -> list[torch.Tensor]:
        """Each visual's tokens `[K, D]` from the patches of its chosen cells only."""
        if not any(len(some) for some in cells):
            return [self.no_features() for _ in cells]
        in_tile = self.side**2
        chosen: list[torch.Tensor] = [torch.zeros(0, dtype=torch.long)] * count
        for start, some in zip(starts, cells, strict=True):
            for tile in sorted(set((some // in_tile).tolist())):
                patches = self._patches(some[some // in_tile == tile] % in_tile)
                chosen[start + tile] = torch.cat([torch.arange(self.first), patches + self.first])
        hidden = self._embed(self._tile_pixels(inputs))  # cheap compared with the blocks
        states = run_blocks(self.blocks, self.block_names, hidden, chosen, [len(self.blocks)], recorder)
        merged = [state[self.first :].reshape(-1, self.merge**2 * state.shape[-1]) for state in states]
        tokens: Any = self._project(torch.cat(merged))
        order = sorted(range(len(cells)), key=lambda number: starts[number])
        parts = dict(zip(order, tokens.split([len(cells[number]) for number in order]), strict=True))
        return [parts[number] for number in range(len(cells))]

    def _patches(self, cells: torch.Tensor) -> torch.Tensor:
        """The patches `[K * merge ** 2]` of a tile's cells `[K]`, cell by cell, row by row inside each."""
        inside = torch.arange(self.merge)
        rows = (cells // self.side * self.merge)[:, None, None] + inside[:, None]
        columns = (cells % self.side * self.merge)[:, None, None] + inside
        return (rows * self.side * self.merge + columns).flatten()

    def _attention(self, recorder: TileRecorder, start: int, tiles: int, by_row: bool) -> dict[float, torch.Tensor]:
        """Depth -> the attention that each encoded cell receives, averaged over its patches `[M]`.

        `by_row`: the patches of a tile are ordered row by row, as in the stock encoder; else cell by cell.
        """
        found: dict[float, list[torch.Tensor]] = {depth: [] for depth in recorder.layers}
        order = self._patches(torch.arange(self.side**2))
        for tile in range(start, start + tiles):
            for depth, values in recorder.tile(tile).items():
                patches = values[self.first :]
                patches = patches[order.to(patches.device)] if by_row else patches
                found[depth].append(patches.view(-1, self.merge**2).mean(1))
        return {depth: torch.cat(parts) for depth, parts in found.items()}

    def tile_grid(self, rows: int, columns: int) -> Cells:
        """`rows` x `columns` tiles, row by row, and then a thumbnail: the whole picture squeezed into a tile."""
        parts = [
            Grid(1, self.side, self.side, (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows))
            for row in range(rows)
            for column in range(columns)
        ]
        return Mosaic((*parts, Grid(1, self.side, self.side)))


class InternVL(TiledAdapter):
    family: ClassVar[str] = "InternVL"
    model_types: ClassVar[tuple[str, ...]] = ("internvl",)
    processor: ClassVar[str] = "InternVLProcessor"
    block_names: ClassVar[BlockNames] = INTERN_BLOCK
    first: ClassVar[int] = 1  # the class token

    @property
    def vision(self) -> Any:
        return self.core.vision_tower

    @property
    def merge(self) -> int:
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
        for number, length in enumerate(self._runs(inputs["input_ids"])):
            tiles, rest = divmod(length, self.side**2)
            if rest:
                raise PromptError(
                    f"expected whole tiles of {self.side**2} image tokens, got a run of {length}: "
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

    def _runs(self, ids: torch.Tensor) -> list[int]:
        """Lengths of the unbroken runs of image tokens, row by row."""
        visual = torch.nn.functional.pad((ids.cpu() == self.token_id("image")).int(), (1, 1))
        edges = visual.diff(dim=1)
        starts, ends = (edges == 1).nonzero()[:, 1], (edges == -1).nonzero()[:, 1]
        return (ends - starts).tolist()

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
