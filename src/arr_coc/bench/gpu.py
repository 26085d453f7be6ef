"""`arr-coc bench gpu`: the kernels that an answer uses, timed by CUDA events, against torch and a device copy.

Every kernel stage is captured as a CUDA graph, so that its launch from Python does not count; the last stage is a whole
texture launched from Python, as `TextureArray` does it. `benchmarks/gpu_stages.py` adds the paths that run as one graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from arr_coc.bench.timing import Goal, Timing
from arr_coc.draw import samples as pictures
from arr_coc.errors import ArrCocError
from arr_coc.texture import FULL40, TextureArray, sampler
from arr_coc.texture.channels.clusters import slic
from arr_coc.texture.channels.edges import IS_EDGE, jump_flooding
from arr_coc.texture.filters import Pyramid, level_size, pool
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.cuda_graph import capture_graph
from arr_coc.texture.layout import find_channel

GRID = (36, 36)  # cells that a model reads
LEVELS = 5
POINTS = 273  # positions that are sampled
FEATURES = (7, 7)  # grid of the embeddings: 224 px in patches of 32
WARMUP = 5  # runs before the timing: kernels are compiled, memory is allocated
REFERENCE_REPEATS = 10  # torch takes longer and is only a reference
GOALS = (
    ("pyramid, 5 levels, 40 channels", "pyramid", 0.12),
    ("273 positions x 40 channels, trilinear", "273 samples", 0.02),
)
TEAL, GRAY = (0, 128, 128), (200, 200, 200)


@dataclass(frozen=True)
class Stage:
    """One piece of work: by kernels, by torch if there is a counterpart, and the bytes it must read and write."""

    name: str
    work: Callable[[], object]
    reference: Callable[[], object] | None = None
    bytes: int = 0

    def run_reference(self) -> None:
        """The counterpart without kernels."""
        if self.reference is not None:
            with using("torch"):
                self.reference()


@dataclass(frozen=True)
class StageTime:
    """One stage, timed."""

    name: str
    time: Timing
    reference: Timing | None
    bytes: int
    bandwidth: float  # bytes per second of a device copy

    @property
    def share(self) -> float | None:
        """The share of the copy's bandwidth."""
        return self.bytes / (self.time.median / 1e3) / self.bandwidth if self.bytes else None

    def record(self) -> dict[str, Any]:
        return {
            "stage": self.name, "median_ms": round(self.time.median, 4), "spread_ms": round(self.time.spread, 4),
            "reference_ms": None if self.reference is None else round(self.reference.median, 4),
            "bytes": self.bytes, "share_of_copy": None if self.share is None else round(self.share, 4),
            "peak_mb": round(self.time.peak / 1e6, 1),
        }  # fmt: skip


@dataclass(frozen=True)
class GpuReport:
    """All stages of one size and batch."""

    side: int
    batch: int
    bandwidth: float
    stages: tuple[StageTime, ...]
    texture_bytes: int  # of one image, half precision, with its pyramid

    def median(self, prefix: str) -> float | None:
        """Milliseconds of the first stage whose name starts with `prefix`."""
        return next((one.time.median for one in self.stages if one.name.startswith(prefix)), None)


def check_cuda() -> None:
    """Raise an error if there is no GPU."""
    if not torch.cuda.is_available():
        raise ArrCocError("expected a CUDA device to measure, and torch sees none: run this on a machine with a GPU")


def time_on_gpu(work: Callable[[], object], repeats: int = 50) -> Timing:
    """Warm up, then run `work` `repeats` times, each between two CUDA events."""
    for _ in range(WARMUP):
        work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return Timing(tuple(start.elapsed_time(end) for start, end in events), peak)


def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes per second that a copy on the device reads and writes."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / (time_on_gpu(lambda: target.copy_(source), 20).median / 1e3)


def measure(
    bench: type[GpuBench],
    side: int,
    batch: int,
    repeats: int = 50,
    *,
    references: bool = True,
    tick: Callable[[str], None] = lambda name: None,
) -> GpuReport:
    """Time every stage of a bench for `batch` square pictures of `side` px; `tick` gets each stage's name before."""
    check_cuda()
    try:
        bandwidth = copy_bandwidth()
        made = bench(side, batch)
        found = []
        for stage in made.stages():
            tick(stage.name)
            time = time_on_gpu(stage.work, repeats)
            compared = references and stage.reference is not None
            by_torch = time_on_gpu(stage.run_reference, REFERENCE_REPEATS) if compared else None
            found.append(StageTime(stage.name, time, by_torch, stage.bytes, bandwidth))
    except torch.cuda.OutOfMemoryError:
        raise ArrCocError(
            f"expected memory on the GPU for {batch} pictures of {side} px, and it is full: use a smaller --batch or --size"
        ) from None
    return GpuReport(side, batch, bandwidth, tuple(found), made.nbytes // batch)


def check_goals(report: GpuReport, goals: Sequence[tuple[str, str, float]] = GOALS) -> list[Goal]:
    """Goals at 1024 px for one picture: milliseconds by (text, stage, most), and MiB of a texture in the last."""
    found = [Goal(what, report.median(stage), at_most=most) for what, stage, most in goals]
    memory = "memory an image, half precision, with pyramid, MiB"
    return [*found, Goal(memory, report.texture_bytes / 2**20, at_most=110)]


class GpuBench:
    """Pictures and buffers of one size and batch, and the stages on them."""

    def __init__(self, side: int, batch: int, dtype: torch.dtype = torch.float16, device: str = "cuda") -> None:
        self.side, self.batch, self.dtype, self.device = side, batch, dtype, device
        self.pixels = sample_images(side, batch, device)
        self.before = self.pixels.roll(3, -1).contiguous()
        self.features = torch.randn(batch, 16, *FEATURES, device=device)
        shape, size = (batch, len(FULL40)), (side, side)
        self.block = torch.zeros(*shape, *size, dtype=dtype, device=device)
        self.levels = [
            torch.zeros(*shape, *level_size(size, number), dtype=dtype, device=device)
            for number in range(1, LEVELS + 1)
        ]
        self.slots = {name: number for number, name in enumerate(FULL40)}

    @property
    def nbytes(self) -> int:
        """Bytes of the textures and their levels."""
        return sum(one.nbytes for one in (self.block, *self.levels))

    def stages(self) -> Iterator[Stage]:
        """The kernels, each captured as a graph, and a texture launched from Python."""
        yield from self.kernel_stages()
        yield Stage(
            "full40, launched", lambda: [one.tensor() for one in self._textures()],
            lambda: [one.tensor() for one in self._textures()], 2 * self.pixels.nbytes + self.block.nbytes * 39 // 40,
        )  # fmt: skip

    def kernel_stages(self) -> Iterator[Stage]:
        for one in (*self._channel_stages(), *self._reading_stages()):
            yield replace(one, work=self.capture(one.work))

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """A graph's replay; without CUDA the work itself."""
        return capture_graph(work, self.pixels.device).replay if self.device == "cuda" else work

    def _channel_stages(self) -> Iterator[Stage]:
        from arr_coc.texture.kernels.distance import distance_buffers, write_distance
        from arr_coc.texture.kernels.pointwise import POINTWISE, pass_buffers, write_pointwise
        from arr_coc.texture.kernels.saliency import CentreSurround
        from arr_coc.texture.kernels.superpixels import REGION_CHANNELS, RegionStats, SlicSegmenter

        images, device, size = list(self.pixels), self.pixels.device, (self.side, self.side)
        plane, image = self.side**2 * self.batch * self.dtype.itemsize, self.pixels.nbytes
        pointwise = {name: slot for name, slot in self.slots.items() if name in POINTWISE}
        passes = pass_buffers(self.batch, size, device)
        edge = torch.zeros(self.batch, *size, dtype=torch.uint8, device=device)
        yield Stage(
            "pointwise channels", lambda: write_pointwise(self.pixels, self.block, pointwise, self.before, edge, passes),
            lambda: [one[name] for one in self._textures() for name in pointwise],
            2 * image + len(pointwise) * plane + edge.nbytes,
        )  # fmt: skip
        steep = [TextureArray.from_image(one, max_side=None)["edge_magnitude"] > IS_EDGE for one in images]
        along, found = distance_buffers((self.batch, *size), device)
        yield Stage(
            "distance", lambda: write_distance(edge, along, found, self.block[:, self.slots["distance"]]),
            lambda: [jump_flooding(one) for one in steep], edge.nbytes + 2 * along.nbytes + plane,
        )  # fmt: skip
        saliency = CentreSurround(self.batch, size, device)
        yield Stage(
            "saliency", lambda: saliency.write(self.pixels, self.block[:, self.slots["saliency"]]),
            lambda: [one["saliency"] for one in self._textures()], image + plane,
        )  # fmt: skip
        segmenter = SlicSegmenter(self.batch, size, device)
        yield Stage(
            "superpixels", lambda: segmenter.write(self.pixels),
            lambda: [slic(one) for one in images], image,
        )  # fmt: skip
        stats = RegionStats(self.batch, segmenter.small, size, device)
        regions = {name: self.slots[name] for name in REGION_CHANNELS}

        def write_regions() -> None:
            stats.measure(segmenter.ids)
            stats.write(segmenter.ids, self.block, regions)

        yield Stage("regions", write_regions, None, 4 * plane)

    def _reading_stages(self) -> Iterator[Stage]:
        from arr_coc.frames.flow import _sample_torch
        from arr_coc.texture.kernels.pooling import LevelWriter, plane_table, rows_aligned, rule_codes, write_cells
        from arr_coc.texture.kernels.sampling import MipTable, sample_mips, warp_planes

        size, device = (self.side, self.side), self.pixels.device
        channels = [find_channel(name) for name in FULL40]
        rules = [one.pool for one in channels]
        every = list(self.block.flatten(0, 1))
        table, aligned = plane_table(every), rows_aligned(every)
        writer = LevelWriter(size, rules * self.batch, [level.flatten(0, 1) for level in self.levels])
        yield Stage(
            f"pyramid, {LEVELS} levels", lambda: writer.write(table, packed=aligned),
            lambda: [[Pyramid(one, rule).level(LEVELS) for one, rule in zip(block, rules, strict=True)] for block in self.block],
            self.nbytes,
        )  # fmt: skip
        mips = MipTable([list(level[0]) for level in (self.block, *self.levels)], rules)
        xy, level = torch.rand(POINTS, 2, device=device), torch.rand(POINTS, device=device) * (LEVELS - 1)
        out = torch.empty(POINTS, len(FULL40), dtype=self.dtype, device=device)
        yield Stage(
            f"{POINTS} samples, trilinear", lambda: sample_mips(mips, xy, level, out),
            lambda: sampler.sample(lambda name, number: mips.levels[number][self.slots[name]], channels, xy, level, LEVELS),
            POINTS * len(FULL40) * 9 * self.dtype.itemsize,
        )  # fmt: skip
        planes = list(self.block[0])
        first, codes = plane_table(planes), rule_codes(rules, device)
        cells = torch.empty(len(FULL40), *GRID, dtype=self.dtype, device=device)
        yield Stage(
            f"{GRID[0]} x {GRID[1]} cells", lambda: write_cells(first, codes, size, cells, packed=aligned),
            lambda: [pool(one, GRID, rule) for one, rule in zip(planes, rules, strict=True)],
            self.block[0].nbytes,
        )  # fmt: skip
        slot = self.slots["embedding_00"]
        sixteen, vectors = self.block[0, slot : slot + 16].contiguous(), torch.randn(2, *size, device=device)
        yield Stage(
            "16 planes warped", lambda: warp_planes(sixteen, vectors), lambda: _sample_torch(sixteen, vectors, False),
            2 * sixteen.nbytes + vectors.nbytes,
        )  # fmt: skip

    def _textures(self) -> list[TextureArray]:
        """New textures with everything supplied, without the text channel."""
        layout = [name for name in FULL40 if name != "text"]
        return [
            TextureArray.from_image(
                one, max_side=None, dtype=self.dtype, supplied={"previous_frame": old}, embeddings=features, layout=layout
            )
            for one, old, features in zip(self.pixels, self.before, self.features, strict=True)
        ]  # fmt: skip


def sample_images(side: int, batch: int, device: str) -> torch.Tensor:
    """A drawn street with a little noise, different for each of the batch: `[B, 3, side, side]`."""
    scene = torch.from_numpy(np.array(pictures.scene().resize((side, side)))).to(device).permute(2, 0, 1).float() / 255
    noise = torch.rand(batch, 3, side, side, device=device, generator=torch.Generator(device).manual_seed(0))
    return (0.9 * scene + 0.1 * noise).contiguous()


def stage_bars(report: GpuReport) -> Image.Image:
    """Each stage's median in milliseconds as a bar on a logarithmic scale, with torch's behind it."""
    row, left, wide = 26, 330, 520  # px of a row, of the names, of the longest bar
    times = [time.median for one in report.stages for time in (one.time, one.reference) if time]
    low, high = math.log10(min(times)) - 0.3, math.log10(max(times))
    font = ImageFont.load_default(15)
    image = Image.new("RGB", (left + wide + 150, row * (len(report.stages) + 2)), "white")
    draw = ImageDraw.Draw(image)
    head = f"{report.batch} x {report.side} px, milliseconds, logarithmic; gray: torch alone"
    draw.text((10, 5), head, fill="black", font=font)

    def length(milliseconds: float) -> int:
        return round(wide * (math.log10(milliseconds) - low) / max(high - low, 1e-9))

    for number, one in enumerate(report.stages, start=1):
        top = number * row + 8
        draw.text((10, top), one.name, fill="black", font=font)
        medians = [(one.time.median, TEAL)]
        label = f"{one.time.median:.3f}"
        if one.reference is not None:
            medians.insert(0, (one.reference.median, GRAY))
            label += f"  ({one.reference.median:.2f})"
        for median, colour in medians:
            draw.rectangle((left, top + 2, left + length(median), top + 17), fill=colour)
        draw.text((left + max(length(median) for median, _ in medians) + 8, top), label, fill="black", font=font)
    return image
