"""Several textures at once. Each is computed by itself, so that one image never changes another's channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch

from arr_coc.errors import ArrCocError, ChannelError
from arr_coc.texture.array import TextureArray
from arr_coc.types.tensors import Numbers


class TextureBatch(Sequence[TextureArray]):
    """A sequence of textures of one layout; the images may differ in size."""

    def __init__(self, textures: Sequence[TextureArray]) -> None:
        if not textures:
            raise ArrCocError("a batch needs at least one texture")
        self._textures = list(textures)

    @property
    def names(self) -> tuple[str, ...]:
        return self._textures[0].names

    def grid(self, height: int, width: int, names: Iterable[str] | None = None) -> torch.Tensor:
        """Each texture on the same grid of cells: `[B, C, height, width]`."""
        chosen = None if names is None else tuple(names)
        return torch.stack([texture.grid(height, width, chosen) for texture in self])

    def sample(self, xy: Numbers, level: Numbers = 0.0, names: Iterable[str] | None = None) -> torch.Tensor:
        """Each texture at the same points `[N, 2]`: `[B, N, C]`."""
        chosen = None if names is None else tuple(names)
        return torch.stack([texture.sample(xy, level, chosen) for texture in self])

    @overload
    def __getitem__(self, index: int) -> TextureArray: ...
    @overload
    def __getitem__(self, index: slice) -> TextureBatch: ...
    def __getitem__(self, index: int | slice) -> TextureArray | TextureBatch:
        if isinstance(index, str):
            raise ChannelError(f"a batch holds textures, not channels; ask one of them: batch[0][{index!r}]")
        return TextureBatch(self._textures[index]) if isinstance(index, slice) else self._textures[index]

    def __iter__(self) -> Iterator[TextureArray]:
        return iter(self._textures)

    def __len__(self) -> int:
        return len(self._textures)

    def __repr__(self) -> str:
        return f"TextureBatch({len(self)} textures of {len(self.names)} channels)"
