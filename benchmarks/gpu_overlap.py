"""Measures the gain of overlapping upload, texture and encoder, on a stream of batches that run in sequence or overlapped.

    python benchmarks/gpu_overlap.py [--batch 16] [--side 1024] [--out overlap.json]

Images are 8-bit and come from host memory; consecutive batches differ. The encoder has the shape of CLIP-B/32. Times are
milliseconds per batch on the host's clock, from the first upload to the last finished texture.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from arr_coc.bench.gpu import check_cuda, sample_images
from arr_coc.bench.timing import machine
from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels.cuda_graph import capture_graph
from gpu_graphs.clip_encoder import CELLS, ClipEncoder
from gpu_graphs.prefetch import Prefetcher
from gpu_graphs.texture_graph import TextureGraph

BATCHES = 40  # per run, after as many for warm-up


class Stream:
    """Batches of images on the host, and the stages that process them."""

    def __init__(self, batch: int, side: int) -> None:
        self.textures = TextureGraph(batch, (side, side), embeddings=(CELLS, CELLS))
        self.encoder = ClipEncoder()
        first = (sample_images(side, batch, "cuda") * 255).round().to(torch.uint8).cpu()
        self.pictures = [first, first.flip(-1).contiguous()]
        self.prefetcher = Prefetcher((batch, 3, side, side))
        device = self.textures.device
        self.encode = capture_graph(self._encode, device)
        self.texture = capture_graph(self.textures.write, device)
        self.both = capture_graph(lambda: self.textures.write(first=self._encode), device)

    def _encode(self) -> None:
        assert self.textures.features is not None
        self.textures.features.copy_(self.encoder.features(self.textures.pixels))

    def upload(self, number: int) -> None:
        self.prefetcher.send(self.pictures[number % 2])
        self.textures.pixels.copy_(self.prefetcher.take())

    def run_in_sequence(self, number: int) -> None:
        self.upload(number)
        torch.cuda.synchronize()
        self.encode.replay()
        self.texture.replay()
        torch.cuda.synchronize()

    def run_overlapped(self, number: int) -> None:
        if number == 0:
            self.prefetcher.send(self.pictures[0])
        self.textures.pixels.copy_(self.prefetcher.take())
        self.both.replay()
        if number < BATCHES - 1:
            self.prefetcher.send(self.pictures[(number + 1) % 2])


def time_per_batch(work: Callable[[int], None]) -> float:
    """Milliseconds per batch."""
    for _ in range(2):  # the first run is a warm-up
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(BATCHES):
            work(number)
        torch.cuda.synchronize()
        taken = (time.perf_counter() - start) / BATCHES * 1e3
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="images per batch (16)")
    parser.add_argument("--side", type=int, default=1024, help="side of the images in pixels (1024)")
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    arguments = parser.parse_args()
    try:
        check_cuda()
    except ArrCocError as error:
        print(error, file=sys.stderr)
        return 2
    stream = Stream(arguments.batch, arguments.side)
    works: dict[str, Callable[[int], None]] = {
        "upload alone": stream.upload,
        "encoder alone": lambda number: stream.encode.replay(),
        "texture alone": lambda number: stream.texture.replay(),
        "one after the other": stream.run_in_sequence,
        "side by side": stream.run_overlapped,
    }
    found = {name: round(time_per_batch(work), 3) for name, work in works.items()}
    for name, taken in found.items():
        print(
            f"{name:20s} {taken:7.2f} ms per batch of {arguments.batch}, {arguments.batch / taken * 1e3:7,.0f} images/s"
        )
    if arguments.out:
        record = {"machine": machine(), "batch": arguments.batch, "side": arguments.side, "ms_a_batch": found}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
