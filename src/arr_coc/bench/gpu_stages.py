"""The stages that `arr-coc bench gpu` times: each by kernels and by torch, with the bytes that it cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from arr_coc.bench.clip_shape import CELLS, CROPS, ClipShape
from arr_coc.draw import samples as pictures
from arr_coc.frames.flow import _sample_torch
from arr_coc.texture import FULL40, TextureArray, filters, sampler
from arr_coc.texture.channels.distance import IS_EDGE, jump_flooding
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.cells import write_cells
from arr_coc.texture.kernels.cheap import NAMES as CHEAP
from arr_coc.texture.kernels.cheap import write_cheap
from arr_coc.texture.kernels.deciding import CHANNELS, Deciding
from arr_coc.texture.kernels.distance import write_distance
from arr_coc.texture.kernels.enlarging import write_enlarged
from arr_coc.texture.kernels.frames import Frames
from arr_coc.texture.kernels.recording import captured
from arr_coc.texture.kernels.regions import NAMES as REGIONS
from arr_coc.texture.kernels.sampling import Sampling
from arr_coc.texture.kernels.tables import packed, rules, table
from arr_coc.texture.kernels.warping import warp_planes
from arr_coc.texture.kernels.whole import Whole
from arr_coc.texture.layout import find_channel
from arr_coc.texture.pooling import pool
from arr_coc.texture.pyramid import Pyramid
from arr_coc.texture.slic import slic
from arr_coc.texture.strokes import stroke_text

GRID = (36, 36)  # cells that a model reads
KEPT = 160
LEVELS = 5


@dataclass(frozen=True)
class Stage:
    """One piece of work: by kernels, by torch where it has a counterpart, and the bytes it must read and write."""

    name: str
    work: Callable[[], object]
    reference: Callable[[], object] | None = None
    bytes: int = 0


class Bench:
    """Pictures, buffers and encoder for one size and batch."""

    def __init__(
        self, side: int, batch: int, dtype: torch.dtype = torch.float16, encoder: bool = True, device: str = "cuda"
    ) -> None:
        self.side, self.batch, self.dtype, self.device = side, batch, dtype, device
        self.pixels = drawn(side, batch, device)
        self.before = self.pixels.roll(3, -1).contiguous()
        self.features = torch.randn(batch, 16, CELLS, CELLS, device=self.device)
        self.whole = Whole(
            batch, (side, side), dtype=dtype, device=device, levels=LEVELS, moving=True, embeddings=(CELLS, CELLS)
        )
        self.whole.update(self.pixels, self.before, self.features)
        self.encoder = ClipShape(device=device) if encoder else None

    def stages(self) -> Iterator[Stage]:
        """The parts, each as a graph, so that its launch from Python does not count; then the whole."""
        for one in self.parts():
            yield replace(one, work=self._recorded(one.work))
        yield from self.paths()

    def parts(self) -> Iterator[Stage]:
        made, images = self.whole, list(self.pixels)
        plane, image = self.side**2 * self.batch * self.dtype.itemsize, self.pixels.nbytes
        slots = made._slots
        cheap = {name: slot for name, slot in slots.items() if name in CHEAP}
        yield Stage(
            "cheap channels", lambda: write_cheap(self.pixels, made.block, cheap, self.before, made.edge, made.work),
            lambda: [[one[name] for name in cheap] for one in self._plain()],
            2 * image + len(cheap) * plane + made.edge.nbytes,
        )  # fmt: skip
        steep = [TextureArray.from_image(one, max_side=None)["edge_magnitude"] > IS_EDGE for one in images]
        yield Stage(
            "distance", lambda: write_distance(made.edge, *made.scratch, made.block[:, slots["distance"]]),
            lambda: [jump_flooding(one) for one in steep], made.edge.nbytes + 2 * made.scratch[0].nbytes + plane,
        )  # fmt: skip
        assert made._saliency is not None
        saliency = made._saliency
        yield Stage(
            "saliency", lambda: saliency.write(self.pixels, made.block[:, slots["saliency"]]),
            lambda: [one["saliency"] for one in self._plain()], image + plane,
        )  # fmt: skip
        assert made._clusters is not None
        found, regions = made._clusters
        yield Stage(
            "superpixels", lambda: found.write(self.pixels),
            lambda: [_by_torch(lambda one=one: slic(one)) for one in images],  # type: ignore[misc]
            image,
        )  # fmt: skip
        ids = found.ids
        four = {name: slots[name] for name in REGIONS}

        def spread() -> None:
            regions.measure(ids)
            regions.write(ids, made.block, four)

        yield Stage("regions", spread, None, 4 * plane)
        first = slots["embedding_00"]
        yield Stage(
            "16 embeddings enlarged", lambda: write_enlarged(self.features, made.block, first),
            lambda: F.interpolate(self.features, (self.side, self.side), mode="bilinear").to(self.dtype), 16 * plane,
        )  # fmt: skip
        planes = list(made.block[0])
        yield Stage(
            f"pyramid, {LEVELS} levels", made.write_levels,
            lambda: [[Pyramid(one, find_channel(name).pool).level(LEVELS) for one, name in zip(block, FULL40, strict=True)]
                     for block in made.block],
            made.nbytes,
        )  # fmt: skip
        samples = Sampling(made.places(0), CROPS)
        samples.xy.uniform_()
        samples.level.uniform_(0, LEVELS - 1)
        held, channels = samples.places.held, [find_channel(name) for name in FULL40]
        yield Stage(
            f"{CROPS} samples, trilinear", samples.read,
            lambda: sampler.sample(lambda name, level: held[level][FULL40.index(name)], channels, samples.xy, samples.level, LEVELS),
            CROPS * len(FULL40) * 9 * self.dtype.itemsize,
        )  # fmt: skip
        where, how = table(planes), rules([one.pool for one in channels], self.pixels.device)
        cells = torch.empty(len(FULL40), *GRID, dtype=self.dtype, device=self.device)
        dense = packed(planes)
        yield Stage(
            f"{GRID[0]} x {GRID[1]} cells", lambda: write_cells(where, how, (self.side, self.side), cells, packed=dense),
            lambda: [_by_torch(lambda one=one, c=c: pool(one, GRID, c.pool)) for one, c in zip(planes, channels, strict=True)],  # type: ignore[misc]
            sum(one.nbytes for one in planes),
        )  # fmt: skip
        sixteen, vectors = (
            made.block[0, first : first + 16].contiguous(),
            torch.randn(2, self.side, self.side, device=self.device),
        )
        yield Stage(
            "16 planes warped", lambda: warp_planes(sixteen, vectors), lambda: _sample_torch(sixteen, vectors, False),
            2 * sixteen.nbytes + vectors.nbytes,
        )  # fmt: skip

    def paths(self) -> Iterator[Stage]:
        made = self.whole
        moved = 2 * self.pixels.nbytes + made.block.nbytes * 39 // 40
        yield Stage(
            "full40, launched", made.write, lambda: [one.tensor() for one in self._plain()], moved + made.nbytes
        )
        graph = self._recorded(made.write)
        yield Stage("full40, graph", graph, None, moved + made.nbytes)
        if self.encoder is None:
            return
        encoder = self.encoder

        def embed() -> None:
            self.features.copy_(encoder.features(self.pixels))
            write_enlarged(self.features, made.block, made._slots["embedding_00"])

        graph_2 = self._recorded(embed)
        yield Stage("encoder, compressed, enlarged, graph", graph_2, embed)
        deciding = Deciding((self.side, self.side), GRID, KEPT, self.device)
        some = [made.block[0, made._slots[name]] for name in CHANNELS]
        where, how = table(some), rules([find_channel(name).pool for name in CHANNELS], made.device)
        cells = torch.empty(len(CHANNELS), *GRID, dtype=self.dtype, device=self.device)
        down = torch.rand(GRID[0] * GRID[1], CELLS * CELLS, device=self.device).softmax(1)
        question = torch.randn(16, device=self.device)
        beside = [torch.cuda.Stream() for _ in range(2)] if self.device == "cuda" else []

        def allocate() -> None:
            works = (embed, self._write_text)
            for stream, work in zip(
                beside, works, strict=False
            ):  # the encoder and the text engine run beside the texture
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    work()
            made.write()
            for stream in beside:
                torch.cuda.current_stream().wait_stream(stream)
            if not beside:
                for work in works:
                    work()
            write_cells(where, how, (self.side, self.side), cells, packed=packed(some))
            self.scores = deciding.look(cells)
            self.by_cell = self.features[0].flatten(1) @ down.T
            self.kept = deciding.decide(self.scores, self.by_cell, question)

        graph_3 = self._recorded(allocate)
        yield Stage("image to allocation, encoder included, graph", graph_3, None)
        graph_4 = self._recorded(lambda: deciding.decide(self.scores, self.by_cell, question))
        yield Stage("another question, graph", graph_4, lambda: deciding.decide(self.scores, self.by_cell, question))
        yield self._next_frame()
        crops = torch.randn(CROPS, 3, 224, 224, dtype=encoder.dtype, device=self.device)
        yield Stage(f"baseline: {CROPS} crops through the encoder", lambda: encoder.crops(crops))

    def _next_frame(self) -> Stage:
        """Two frames in turn, so that something moves."""
        size = (self.side, self.side)
        frames = Frames(size, dtype=self.dtype, device=self.device, levels=LEVELS, features=(CELLS, CELLS))
        if self.device == "cuda":
            frames.capture()
        frames.begin(self.before[0], self.features[0])
        film = [self.pixels[0], self.before[0]]

        def step() -> None:
            film.reverse()
            frames.next(film[0])

        return Stage("next video frame, flow included, graph", step)

    def _recorded(self, work: Callable[[], object]) -> Callable[[], object]:
        """A graph's replay; without CUDA the work itself."""
        return captured(work, self.whole.device).replay if self.device == "cuda" else work

    def _write_text(self) -> None:
        """The text channel, in torch: strokes at half size, enlarged."""
        slot = self.whole._slots["text"]
        for number, one in enumerate(self.pixels):
            self.whole.block[number, slot].copy_(filters.resize(stroke_text(one), (self.side, self.side)))

    def _plain(self) -> list[TextureArray]:
        """Textures by torch alone, with everything that is supplied."""
        with using("torch"):
            made = [
                TextureArray.from_image(
                    one, max_side=None, dtype=self.dtype, supplied={"previous_frame": old}, embeddings=features,
                    layout=[name for name in FULL40 if name != "text"],
                )
                for one, old, features in zip(self.pixels, self.before, self.features, strict=True)
            ]  # fmt: skip
        return [_Torch(one) for one in made]  # type: ignore[misc]


class _Torch:
    """A texture whose channels are worked out by torch, whenever they are asked for."""

    def __init__(self, texture: TextureArray) -> None:
        self.texture = texture

    def __getitem__(self, name: str) -> torch.Tensor:
        return _by_torch(lambda: self.texture[name])

    def tensor(self) -> torch.Tensor:
        return _by_torch(self.texture.tensor)


def _by_torch(work: Callable[[], torch.Tensor]) -> torch.Tensor:
    with using("torch"):
        return work()


def drawn(side: int, batch: int, device: str) -> torch.Tensor:
    """A picture with something in it and a little noise, another one for each of the batch: `[B, 3, side, side]`."""
    scene = torch.from_numpy(np.array(pictures.scene().resize((side, side)))).to(device).permute(2, 0, 1).float() / 255
    noise = torch.rand(batch, 3, side, side, device=device, generator=torch.Generator(device).manual_seed(0))
    return (0.9 * scene + 0.1 * noise).contiguous()
