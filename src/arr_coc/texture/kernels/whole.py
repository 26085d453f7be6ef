"""Whole textures of one fixed shape: one block of memory, one CUDA graph, nothing made anew from image to image.

    upload -> cheap channels -> distance ----------.
           -> saliency -----------------------------> pyramid -> samples, cells
           -> superpixels -> connected -> regions --'
           -> maps that came along, enlarged -------'

For those who see many pictures of one size: video, batches, a service. `TextureArray` is for everything else, and the same
channels come out. Branches run on streams of their own. What nobody supplies stays zero. Nothing waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.array import TextureArray
from arr_coc.texture.kernels import tables
from arr_coc.texture.kernels.centre_surround import CentreSurround
from arr_coc.texture.kernels.cheap import NAMES as CHEAP
from arr_coc.texture.kernels.cheap import room, write_cheap
from arr_coc.texture.kernels.dispatch import LONGEST, on
from arr_coc.texture.kernels.distance import scratch, write_distance
from arr_coc.texture.kernels.enlarging import write_enlarged
from arr_coc.texture.kernels.pyramid import Levels
from arr_coc.texture.kernels.recording import captured
from arr_coc.texture.kernels.regions import NAMES as REGIONS
from arr_coc.texture.kernels.regions import Regions
from arr_coc.texture.kernels.sampling import Places
from arr_coc.texture.kernels.segmenting import Segmenting
from arr_coc.texture.layout import EMBEDDING_NAMES, FULL40, find_channel, resolve_layout
from arr_coc.texture.pyramid import level_size


class NoRoom(ArrCocError):
    """The GPU has too little memory for a batch."""


class Whole:
    """Textures of `batch` images `[B, 3, H, W]`: `block` `[B, C, H, W]` and `levels`, a list of `[B, C, H_l, W_l]`."""

    def __init__(
        self,
        batch: int,
        size: tuple[int, int],
        *,
        layout: str | Sequence[str] = FULL40,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cuda",
        levels: int = 5,
        moving: bool = False,
        embeddings: tuple[int, int] | None = None,
    ) -> None:
        """levels: how many beside the image itself. moving: frames before come along. embeddings: their grid (h, w)."""
        self.names = resolve_layout(layout)
        self.size, self.batch, self.moving = size, batch, moving
        if max(size) > LONGEST:
            raise ArrCocError(f"expected images of at most {LONGEST:,} px along a side, got {size[1]} x {size[0]}")
        if embeddings is not None and (embeddings[0] > size[0] or embeddings[1] > size[1]):
            raise ArrCocError(
                f"expected embeddings of at most {size[0]} x {size[1]} cells, got {embeddings[0]} x {embeddings[1]}"
            )
        place = torch.device(device)
        self.device = place
        rules = [find_channel(name).pool for name in self.names]
        shape = (batch, len(self.names))
        try:
            self.block = torch.zeros(*shape, *size, dtype=dtype, device=place)
            self.levels = [
                torch.zeros(*shape, *level_size(size, number), dtype=dtype, device=place)
                for number in range(1, levels + 1)
            ]
            self.pixels = torch.zeros(batch, 3, *size, device=place)  # what a graph reads
            self.before = torch.zeros(batch, 3, *size, device=place) if moving else None
            self.features = None if embeddings is None else torch.zeros(batch, 16, *embeddings, device=place)
            self.edge = torch.empty(batch, *size, dtype=torch.uint8, device=place)
            self.scratch = scratch((batch, *size), place)
            self.work = room(batch, size, place)
        except torch.cuda.OutOfMemoryError:
            need = batch * size[0] * size[1] * (len(self.names) * dtype.itemsize * 4 / 3 + 39) / 1e9
            raise NoRoom(
                f"expected room for {need:.1f} GB on {place}, and there is less: make the batch of {batch} smaller, or the "
                f"{size[1]} x {size[0]} px"
            ) from None
        self._slots = {name: number for number, name in enumerate(self.names)}
        self._saliency = CentreSurround(batch, size, place) if "saliency" in self._slots else None
        self._clusters: tuple[Segmenting, Regions] | None = None
        if self._slots.keys() & set(REGIONS):
            found = Segmenting(batch, size, place)
            self._clusters = found, Regions(batch, found.small, size, place)
        planes = list(self.block.flatten(0, 1))
        self._table = tables.table(planes)
        self._wide, self._packed = tables.wide(self.block), tables.packed(planes)
        self._levels = Levels(size, rules * batch, [level.flatten(0, 1) for level in self.levels])
        self._streams = [torch.cuda.Stream(place) for _ in range(3)] if place.type == "cuda" else []
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the textures and their levels, without what is needed on the way."""
        return sum(one.nbytes for one in (self.block, *self.levels))

    def texture(self, number: int) -> TextureArray:
        """One of the textures as a `TextureArray` that reads from the block; the next picture overwrites it."""
        return TextureArray.from_planes(dict(zip(self.names, self.block[number], strict=True)))

    def places(self, number: int) -> Places:
        """Where one texture's levels lie, for `sampling.sample`."""
        rules = [find_channel(name).pool for name in self.names]
        return Places([list(level[number]) for level in (self.block, *self.levels)], rules)

    def update(
        self, pixels: torch.Tensor, before: torch.Tensor | None = None, features: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The textures of images `[B, 3, H, W]` in [0, 1]: `block`, written by the graph if there is one."""
        given = {"pixels": pixels, "before": before, "features": features}
        for name, value in given.items():
            target = getattr(self, name)
            if value is None:
                if name == "pixels" or target is not None:
                    raise ArrCocError(f"expected {name} {[] if target is None else list(target.shape)}, got none")
                continue
            if target is None or value.shape != target.shape:
                expected = "none" if target is None else list(target.shape)
                raise ArrCocError(f"expected {name} {expected}, got {list(value.shape)}: make another `Whole` for them")
            target.copy_(value, non_blocking=True)
        with on(self.device):
            if self._graph is None:
                self.write()
            else:
                self._graph.replay()
        return self.block

    def capture(self) -> Whole:
        """Record everything that `write` does, so that `update` replays it in one launch. CUDA only."""
        self._graph = captured(self.write, self.device)
        return self

    def write(self, first: Callable[[], None] | None = None) -> None:
        """Everything, from the buffers of this object. first: what is done before the features are enlarged."""
        edges = bool(self._slots.keys() & {"distance"})
        with self._beside(0):
            if self._saliency is not None:
                self._saliency.write(self.pixels, self.block[:, self._slots["saliency"]])
        with self._beside(1):
            self._write_clusters()
        with self._beside(2):
            if first is not None:
                first()
            if self.features is not None:
                write_enlarged(self.features, self.block, self._slots[EMBEDDING_NAMES[0]])
        cheap = {name: slot for name, slot in self._slots.items() if name in CHEAP}
        write_cheap(self.pixels, self.block, cheap, self.before, self.edge if edges else None, self.work)
        if edges:
            write_distance(self.edge, *self.scratch, self.block[:, self._slots["distance"]])
        for stream in self._streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)
        self.write_levels()

    def write_levels(self) -> None:
        """The pyramid of what the block holds."""
        self._levels.write(self._table, self._wide, self._packed)

    def _write_clusters(self) -> None:
        if self._clusters is None:
            return
        found, regions = self._clusters
        ids = found.write(self.pixels)
        regions.measure(ids)
        regions.write(ids, self.block, {name: self._slots[name] for name in REGIONS if name in self._slots})

    @contextmanager
    def _beside(self, number: int) -> Iterator[None]:
        """What is done on a stream of its own, after all that came before."""
        if not self._streams:
            yield
            return
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            yield


def in_portions(pixels: torch.Tensor, make: Callable[[int], Whole]) -> Iterator[tuple[slice, Whole]]:
    """Textures of many images `[N, 3, H, W]`, as many at once as there is memory for: which of them, and their textures.

    make: a `Whole` for a batch, e.g. `lambda batch: Whole(batch, size)`. Where one does not fit, half of it is tried; where
    not even one image fits, the error says so.
    """
    start, most = 0, len(pixels)
    made: Whole | None = None
    while start < len(pixels):
        count = min(most, len(pixels) - start)
        try:
            if made is None or made.batch != count:
                made = None  # before the next one takes memory
                made = make(count)
            made.update(pixels[start : start + count])
        except (ArrCocError, torch.cuda.OutOfMemoryError) as error:
            if count == 1 or not isinstance(error, torch.cuda.OutOfMemoryError | NoRoom):
                raise
            made, most = None, count // 2
            continue
        yield slice(start, start + count), made
        start += count
