"""Pictures in tiles of equal size, groups of patches merged into cells (InternVL, Idefics3, SmolVLM)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters import tower
from arr_coc.adapters.base import Encoded, Inputs, Visual
from arr_coc.adapters.flat import Flat
from arr_coc.types.grid import Cells, Grid, Mosaic


class Tiled(Flat):
    """Every picture is one or several tiles, one after another; a cell is `merge` x `merge` patches of a tile."""

    as_tensor: ClassVar[tuple[str, ...]] = ("image",)
    layout: ClassVar[tower.Layout] = tower.SIGLIP
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
        """The tower's blocks that have a part in the features."""

    @abstractmethod
    def _tile_pixels(self, inputs: Inputs) -> torch.Tensor:
        """The pixels of all tiles that are encoded, in order: `[T, 3, H, W]`."""

    @abstractmethod
    def _stock(self, inputs: Inputs) -> torch.Tensor:
        """All tiles' cells by the stock encoder: `[T, N, D]`."""

    @abstractmethod
    def _embed(self, tiles: torch.Tensor) -> torch.Tensor:
        """What goes into the first block: `[T, S, D]`."""

    @abstractmethod
    def _finish(self, cells: torch.Tensor) -> torch.Tensor:
        """Tokens `[M, D]` of cells whose patches lie side by side, row by row: `[M, merge ** 2 * C]`."""

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded]:
        in_tile = self.side**2
        tiles = [visual.n // in_tile for visual in sorted(visuals, key=lambda visual: visual.number)]
        starts = [sum(tiles[: visual.number]) for visual in visuals]  # each visual's first tile
        received = tower.Received(self.blocks, self.layout, depths)
        whole = cells is None or all(len(c) == v.n for c, v in zip(cells, visuals, strict=True))
        if cells is None or whole:
            with received.watching():  # everything: the stock encoder, bit for bit
                answer = self._stock(inputs)
            tokens = [
                answer[at : at + visual.n // in_tile].flatten(0, 1) for at, visual in zip(starts, visuals, strict=True)
            ]
            cells = [torch.arange(visual.n) for visual in visuals]
        else:
            tokens = self._glance(inputs, starts, sum(tiles), cells, received)
        return [
            Encoded(chosen, part, attention=self._attention(received, start, visual.n // in_tile, whole))
            for visual, chosen, part, start in zip(visuals, cells, tokens, starts, strict=True)
        ]

    def _glance(
        self, inputs: Inputs, starts: Sequence[int], count: int, cells: Sequence[torch.Tensor], received: tower.Received
    ) -> list[torch.Tensor]:
        """Each visual's tokens `[K, D]` from the patches of its chosen cells only."""
        if not any(len(some) for some in cells):
            return [self.nothing() for _ in cells]
        in_tile = self.side**2
        chosen: list[torch.Tensor] = [torch.zeros(0, dtype=torch.long)] * count
        for start, some in zip(starts, cells, strict=True):
            for tile in sorted(set((some // in_tile).tolist())):
                patches = self._patches(some[some // in_tile == tile] % in_tile)
                chosen[start + tile] = torch.cat([torch.arange(self.first), patches + self.first])
        hidden = self._embed(self._tile_pixels(inputs))  # cheap beside the blocks
        states = tower.run(self.blocks, self.layout, hidden, chosen, [len(self.blocks)], received)
        merged = [state[self.first :].reshape(-1, self.merge**2 * state.shape[-1]) for state in states]
        tokens: Any = self._finish(torch.cat(merged))
        order = sorted(range(len(cells)), key=lambda number: starts[number])
        parts = dict(zip(order, tokens.split([len(cells[number]) for number in order]), strict=True))
        return [parts[number] for number in range(len(cells))]

    def _patches(self, cells: torch.Tensor) -> torch.Tensor:
        """The patches `[K * merge ** 2]` of a tile's cells `[K]`, cell by cell, row by row inside each."""
        inside = torch.arange(self.merge)
        rows = (cells // self.side * self.merge)[:, None, None] + inside[:, None]
        columns = (cells % self.side * self.merge)[:, None, None] + inside
        return (rows * self.side * self.merge + columns).flatten()

    def _attention(self, received: tower.Received, start: int, tiles: int, by_row: bool) -> dict[float, torch.Tensor]:
        """Depth to what each encoded cell receives, the mean over its patches: `[M]`.

        `by_row`: the tiles hold their patches row by row, as the stock encoder does; else cell by cell.
        """
        found: dict[float, list[torch.Tensor]] = {depth: [] for depth in received.layers}
        order = self._patches(torch.arange(self.side**2))
        for tile in range(start, start + tiles):
            for depth, values in received.of(tile).items():
                patches = values[self.first :]
                patches = patches[order.to(patches.device)] if by_row else patches
                found[depth].append(patches.view(-1, self.merge**2).mean(1))
        return {depth: torch.cat(parts) for depth, parts in found.items()}

    def tiled(self, rows: int, columns: int) -> Cells:
        """`rows` x `columns` tiles, row by row, and then the whole picture once more, squeezed into a tile."""
        parts = [
            Grid(1, self.side, self.side, (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows))
            for row in range(rows)
            for column in range(columns)
        ]
        return Mosaic((*parts, Grid(1, self.side, self.side)))
