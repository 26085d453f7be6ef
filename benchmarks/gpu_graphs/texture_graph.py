"""Textures of one fixed shape: one block of memory, one CUDA graph, no allocation per image.

    pixels -> pointwise channels -> distance -------.
           -> saliency ------------------------------> pyramid -> samples, cells
           -> superpixels -> connected -> regions ---'
           -> supplied maps, enlarged ---------------'

For many pictures of one size: video, batches, a service. `TextureArray` is for everything else and gives the same channels.
Branches run on their own streams. Channels without a supplied map stay zero. The host never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import triton
import triton.language as tl

from arr_coc.errors import ArrCocError
from arr_coc.texture.array import TextureArray
from arr_coc.texture.filters import level_size
from arr_coc.texture.kernels.cuda_graph import capture_graph
from arr_coc.texture.kernels.dispatch import MAX_SIDE, device_guard
from arr_coc.texture.kernels.distance import distance_buffers, write_distance
from arr_coc.texture.kernels.pointwise import POINTWISE, pass_buffers, write_pointwise
from arr_coc.texture.kernels.pooling import LevelWriter, needs_int64, plane_table, rows_aligned
from arr_coc.texture.kernels.saliency import CentreSurround, _corners
from arr_coc.texture.kernels.sampling import MipTable, sample_mips
from arr_coc.texture.kernels.superpixels import REGION_CHANNELS, RegionStats, SlicSegmenter
from arr_coc.texture.layout import EMBEDDING_NAMES, FULL40, find_channel, resolve_layout

ROWS = 8  # rows of a program that enlarges: most lie between the same two rows of the small map
ACROSS = 1024  # columns of a program that enlarges, at most


class OutOfDeviceMemory(ArrCocError):
    """The GPU has too little memory for a batch."""


class TextureGraph:
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
        """levels: without level 0. moving: previous frames are given. embeddings: their grid (h, w)."""
        self.names = resolve_layout(layout)
        self.size, self.batch, self.moving = size, batch, moving
        if max(size) > MAX_SIDE:
            raise ArrCocError(f"expected images of at most {MAX_SIDE:,} px along a side, got {size[1]} x {size[0]}")
        if embeddings is not None and (embeddings[0] > size[0] or embeddings[1] > size[1]):
            raise ArrCocError(
                f"expected embeddings of at most {size[0]} x {size[1]} cells, got {embeddings[0]} x {embeddings[1]}"
            )
        self.device = torch.device(device)
        rules = [find_channel(name).pool for name in self.names]
        shape = (batch, len(self.names))
        try:
            self.block = torch.zeros(*shape, *size, dtype=dtype, device=self.device)
            self.levels = [
                torch.zeros(*shape, *level_size(size, number), dtype=dtype, device=self.device)
                for number in range(1, levels + 1)
            ]
            self.pixels = torch.zeros(batch, 3, *size, device=self.device)  # what the graph reads
            self.before = torch.zeros(batch, 3, *size, device=self.device) if moving else None
            self.features = None if embeddings is None else torch.zeros(batch, 16, *embeddings, device=self.device)
            self.edge = torch.empty(batch, *size, dtype=torch.uint8, device=self.device)
            self._distance = distance_buffers((batch, *size), self.device)
            self._passes = pass_buffers(batch, size, self.device)
        except torch.cuda.OutOfMemoryError:
            need = batch * size[0] * size[1] * (len(self.names) * dtype.itemsize * 4 / 3 + 39) / 1e9
            raise OutOfDeviceMemory(
                f"expected {need:.1f} GB of memory on {self.device}, and it has less: make the batch of {batch} smaller, or "
                f"the {size[1]} x {size[0]} px"
            ) from None
        self.slots = {name: number for number, name in enumerate(self.names)}
        self._saliency = CentreSurround(batch, size, self.device) if "saliency" in self.slots else None
        self._clusters: tuple[SlicSegmenter, RegionStats] | None = None
        if self.slots.keys() & set(REGION_CHANNELS):
            segmenter = SlicSegmenter(batch, size, self.device)
            self._clusters = segmenter, RegionStats(batch, segmenter.small, size, self.device)
        planes = list(self.block.flatten(0, 1))
        self._table = plane_table(planes)
        self._wide, self._packed = needs_int64(self.block), rows_aligned(planes)
        self._level_writer = LevelWriter(size, rules * batch, [level.flatten(0, 1) for level in self.levels])
        self._streams = [torch.cuda.Stream(self.device) for _ in range(3)] if self.device.type == "cuda" else []
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the textures and their levels, without the buffers."""
        return sum(one.nbytes for one in (self.block, *self.levels))

    def texture(self, number: int) -> TextureArray:
        """One of the textures as a `TextureArray` that reads from the block; the next update overwrites it."""
        return TextureArray.from_planes(dict(zip(self.names, self.block[number], strict=True)))

    def mips(self, number: int) -> MipTable:
        """The levels of one texture, for `sample_mips`."""
        rules = [find_channel(name).pool for name in self.names]
        return MipTable([list(level[number]) for level in (self.block, *self.levels)], rules)

    def update(
        self, pixels: torch.Tensor, before: torch.Tensor | None = None, features: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The textures of images `[B, 3, H, W]` in [0, 1]: `block`, written by the graph if it is captured."""
        for name, value in {"pixels": pixels, "before": before, "features": features}.items():
            target = getattr(self, name)
            if value is None:
                if target is not None:
                    raise ArrCocError(f"expected {name} {list(target.shape)}, got none")
                continue
            if target is None or value.shape != target.shape:
                expected = "none" if target is None else list(target.shape)
                raise ArrCocError(f"expected {name} {expected}, got {list(value.shape)}: make another TextureGraph")
            target.copy_(value, non_blocking=True)
        with device_guard(self.device):
            if self.graph is None:
                self.write()
            else:
                self.graph.replay()
        return self.block

    def capture(self) -> TextureGraph:
        """Capture `write`, so that `update` replays it in one launch. CUDA only."""
        self.graph = capture_graph(self.write, self.device)
        return self

    def write(self, first: Callable[[], None] | None = None) -> None:
        """Write everything from the input buffers. first: work that must be done before the features are enlarged."""
        with self._stream(0):
            if self._saliency is not None:
                self._saliency.write(self.pixels, self.block[:, self.slots["saliency"]])
        with self._stream(1):
            self._write_clusters()
        with self._stream(2):
            if first is not None:
                first()
            if self.features is not None:
                write_enlarged(self.features, self.block, self.slots[EMBEDDING_NAMES[0]])
        pointwise = {name: slot for name, slot in self.slots.items() if name in POINTWISE}
        edge = self.edge if "distance" in self.slots else None
        write_pointwise(self.pixels, self.block, pointwise, self.before, edge, self._passes)
        if edge is not None:
            write_distance(edge, *self._distance, self.block[:, self.slots["distance"]])
        for stream in self._streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)
        self._level_writer.write(self._table, self._wide, self._packed)

    def _write_clusters(self) -> None:
        if self._clusters is None:
            return
        segmenter, stats = self._clusters
        ids = segmenter.write(self.pixels)
        stats.measure(ids)
        stats.write(ids, self.block, {name: self.slots[name] for name in REGION_CHANNELS if name in self.slots})

    @contextmanager
    def _stream(self, number: int) -> Iterator[None]:
        """Work on a side stream, after everything launched so far."""
        if not self._streams:
            yield
            return
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            yield


class SampleGraph:
    """Samples at `count` points, repeated: fixed buffers, and one launch once it is captured."""

    def __init__(self, mips: MipTable, count: int) -> None:
        channels, device = int(mips.table.shape[1]), mips.table.device
        self.mips = mips
        self.xy = torch.zeros(count, 2, device=device)
        self.level = torch.zeros(count, device=device)
        self.values = torch.empty(count, channels, dtype=mips.dtype, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self) -> SampleGraph:
        """Capture the launch. CUDA only."""
        self._graph = capture_graph(lambda: sample_mips(self.mips, self.xy, self.level, self.values), self.xy.device)
        return self

    def read(self) -> torch.Tensor:
        """All channels at the points in `xy` and `level`: `values` `[N, C]`."""
        if self._graph is None:
            return sample_mips(self.mips, self.xy, self.level, self.values)
        self._graph.replay()
        return self.values


def in_chunks(pixels: torch.Tensor, make: Callable[[int], TextureGraph]) -> Iterator[tuple[slice, TextureGraph]]:
    """Textures of many images `[N, 3, H, W]`, as many at once as fit into memory: (which images, their textures).

    make: a `TextureGraph` for a batch, e.g. `lambda batch: TextureGraph(batch, size)`. A batch that does not fit is halved;
    a single image that does not fit is an error.
    """
    start, most = 0, len(pixels)
    made: TextureGraph | None = None
    while start < len(pixels):
        count = min(most, len(pixels) - start)
        try:
            if made is None or made.batch != count:
                made = None  # frees its memory before the next one is allocated
                made = make(count)
            made.update(pixels[start : start + count])
        except (OutOfDeviceMemory, torch.cuda.OutOfMemoryError):
            if count == 1:
                raise
            made, most = None, count // 2
            continue
        yield slice(start, start + count), made
        start += count


def write_enlarged(maps: torch.Tensor, out: torch.Tensor, first: int) -> None:
    """Enlarge maps `[B, N, h, w]`, float32, bilinearly into the planes of `out` `[B, C, H, W]` from `first` on."""
    batch, count, high, wide = maps.shape
    height, width = out.shape[2:]
    block = min(ACROSS, triton.next_power_of_2(width))
    _enlarge[(triton.cdiv(width, block), triton.cdiv(height, ROWS), batch * count)](
        maps, out, height, width, high, wide, count, first, *maps.stride(), *out.stride()[:3],
        ROWS=ROWS, BLOCK=block, WIDE=needs_int64(out), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _enlarge(
    maps, out, height, width, high, wide, count, first, in_b, in_n, in_y, in_x, out_b, out_c, out_y,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    image, which = (tl.program_id(2) // count).to(tl.int64), (tl.program_id(2) % count).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    left, right, across = _corners(columns, wide, width)
    source = maps + image * in_b + which * in_n
    target = out + image * out_b + (first + which) * out_c + columns
    held = -1  # the row of the small map above this one
    above = tl.zeros([BLOCK], tl.float32)
    below = tl.zeros([BLOCK], tl.float32)
    for number in tl.static_range(ROWS):
        y = tl.program_id(1) * ROWS + number
        top, bottom, down = _corners(y, high, height)
        if top != held:
            a = tl.load(source + top * in_y + left * in_x, mask=inside, other=0.0)
            b = tl.load(source + top * in_y + right * in_x, mask=inside, other=0.0)
            c = tl.load(source + bottom * in_y + left * in_x, mask=inside, other=0.0)
            d = tl.load(source + bottom * in_y + right * in_x, mask=inside, other=0.0)
            above = (1 - across) * a + across * b
            below = (1 - across) * c + across * d
            held = top
        value = (1 - down) * above + down * below
        row = y.to(tl.int64) if WIDE else y
        tl.store(target + row * out_y, value.to(out.dtype.element_ty), mask=columns < tl.where(y < height, width, 0))
