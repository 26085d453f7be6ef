"""Every stage of the GPU path: the kernels of `arr-coc bench gpu`, and the paths that run as one CUDA graph.

    python benchmarks/gpu_stages.py [--size 1024] [--batch 16] [--alone] [--bars stages.png] [--json]

Paths: a whole texture, the encoder (CLIP-B/32's shape), image to allocation, another question, the next video frame; and as
a baseline 273 crops through the encoder in one batch. docs/gpu.md has the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from arr_coc.bench import gpu
from arr_coc.bench.gpu import GRID, LEVELS, GpuBench, Stage
from arr_coc.cli.bench import add_gpu_options, run_gpu_bench
from arr_coc.errors import ArrCocError
from arr_coc.texture import filters
from arr_coc.texture.channels.text import stroke_text
from arr_coc.texture.kernels.pooling import plane_table, rows_aligned, rule_codes, write_cells
from arr_coc.texture.layout import find_channel
from gpu_graphs.clip_encoder import CELLS, CROPS, ClipEncoder
from gpu_graphs.decision_graph import CHANNELS, DecisionGraph
from gpu_graphs.frame_graph import FrameGraph
from gpu_graphs.texture_graph import TextureGraph, write_enlarged

KEPT = 160
GOALS = (
    ("full40 without encoder and text engine", "full40, graph", 0.5),
    *gpu.GOALS,
    ("encoder, compression, upsampling", "encoder", 1.3),
    ("image to allocation, encoder included", "image to allocation", 2.5),
    ("another question on the same image", "another question", 0.1),
    ("next video frame, flow included", "next video frame", 0.8),
)


class GraphBench(GpuBench):
    """The kernels' stages, and whole paths as graphs."""

    def __init__(
        self, side: int, batch: int, dtype: torch.dtype = torch.float16, device: str = "cuda", encoder: bool = True
    ) -> None:
        super().__init__(side, batch, dtype, device)
        self.encoder = ClipEncoder(device=device) if encoder else None
        self.textures = TextureGraph(
            batch, (side, side), dtype=dtype, device=device, levels=LEVELS, moving=True, embeddings=(CELLS, CELLS)
        )
        self.textures.update(self.pixels, self.before, self.features)

    def stages(self) -> Iterator[Stage]:
        yield from self.kernel_stages()
        made, size = self.textures, (self.side, self.side)
        first = made.slots["embedding_00"]
        yield Stage(
            "16 embeddings enlarged", self.capture(lambda: write_enlarged(self.features, made.block, first)),
            lambda: F.interpolate(self.features, size, mode="bilinear").to(self.dtype), made.block[:, :16].nbytes,
        )  # fmt: skip
        moved = 2 * self.pixels.nbytes + made.block.nbytes * 39 // 40 + made.nbytes
        plain = lambda: [one.tensor() for one in self._textures()]  # noqa: E731
        yield Stage("full40, launched", made.write, plain, moved)
        yield Stage("full40, graph", self.capture(made.write), None, moved)
        if self.encoder is not None:
            yield from self.encoder_stages(self.encoder)

    def encoder_stages(self, encoder: ClipEncoder) -> Iterator[Stage]:
        made, size = self.textures, (self.side, self.side)

        def embed() -> None:
            self.features.copy_(encoder.features(self.pixels))
            write_enlarged(self.features, made.block, made.slots["embedding_00"])

        yield Stage("encoder, compressed, enlarged, graph", self.capture(embed), embed)
        decision = DecisionGraph(size, GRID, KEPT, self.device)
        planes = [made.block[0, made.slots[name]] for name in CHANNELS]
        table, codes = plane_table(planes), rule_codes([find_channel(name).pool for name in CHANNELS], made.device)
        cells = torch.empty(len(CHANNELS), *GRID, dtype=self.dtype, device=self.device)
        to_cells = torch.rand(GRID[0] * GRID[1], CELLS * CELLS, device=self.device).softmax(1)
        question = torch.randn(16, device=self.device)
        streams = [torch.cuda.Stream() for _ in range(2)] if self.device == "cuda" else []

        def allocate() -> None:
            works = (embed, self._write_text)
            for stream, work in zip(streams, works, strict=False):  # at the same time as the texture
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    work()
            made.write()
            for stream in streams:
                torch.cuda.current_stream().wait_stream(stream)
            if not streams:
                for work in works:
                    work()
            write_cells(table, codes, size, cells, packed=rows_aligned(planes))
            self.scores = decision.score(cells)
            self.by_cell = self.features[0].flatten(1) @ to_cells.T
            self.kept = decision.decide(self.scores, self.by_cell, question)

        yield Stage("image to allocation, encoder included, graph", self.capture(allocate), None)
        again = lambda: decision.decide(self.scores, self.by_cell, question)  # noqa: E731
        yield Stage("another question, graph", self.capture(again), again)
        yield self._next_frame()
        crops = torch.randn(CROPS, 3, 224, 224, dtype=encoder.dtype, device=self.device)
        yield Stage(f"baseline: {CROPS} crops through the encoder", lambda: encoder.crops(crops))

    def _next_frame(self) -> Stage:
        """Two frames in turn, so that something moves."""
        frames = FrameGraph(
            (self.side, self.side), dtype=self.dtype, device=self.device, levels=LEVELS, features=(CELLS, CELLS)
        )
        if self.device == "cuda":
            frames.capture()
        frames.begin(self.before[0], self.features[0])
        film = [self.pixels[0], self.before[0]]

        def step() -> None:
            film.reverse()
            frames.next(film[0])

        return Stage("next video frame, flow included, graph", step)

    def _write_text(self) -> None:
        """The text channel, in torch: strokes at half size, enlarged."""
        slot = self.textures.slots["text"]
        for number, one in enumerate(self.pixels):
            self.textures.block[number, slot].copy_(filters.resize(stroke_text(one), (self.side, self.side)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_gpu_options(parser)
    try:
        return run_gpu_bench(parser.parse_args(), GraphBench, GOALS)
    except ArrCocError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
