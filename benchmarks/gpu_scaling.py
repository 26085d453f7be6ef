"""Measures how the GPU path scales with image size, batch size, sampled positions, questions and frames.

    python benchmarks/gpu_scaling.py --out scaling.json [--seconds 240]    # measure, on a GPU
    python benchmarks/gpu_scaling.py --plot scaling.json --picture docs/images/gpu_scaling.png
    torchrun --nproc-per-node 8 benchmarks/gpu_scaling.py --throughput     # several GPUs, one process each

Times are medians of CUDA events. A case that does not fit into GPU memory is skipped and listed in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from arr_coc.bench.gpu import GRID, check_cuda, sample_images, time_on_gpu
from arr_coc.bench.timing import machine
from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels.cuda_graph import capture_graph
from gpu_graphs.clip_encoder import CELLS
from gpu_graphs.decision_graph import CHANNELS, DecisionGraph
from gpu_graphs.frame_graph import FrameGraph
from gpu_graphs.texture_graph import SampleGraph, TextureGraph
from gpu_stages import KEPT

SIZES = (256, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
POSITIONS = (64, 273, 1024, 4096, 16384, 65536)
QUESTIONS = (1, 2, 5, 10, 20, 50)
FRAMES = (1, 3, 10, 30, 100, 300)
KEYFRAME = 30  # frames between two calls of the encoder

Case = tuple[str, int, Callable[[], float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    parser.add_argument("--seconds", type=float, default=240, help="start no further case after this long (240)")
    parser.add_argument("--plot", type=Path, help="measurements to plot")
    parser.add_argument(
        "--picture", type=Path, default=Path("gpu_scaling.png"), help="where to write the plot (gpu_scaling.png)"
    )
    parser.add_argument("--throughput", action="store_true", help="images per second, summed over all processes")
    arguments = parser.parse_args()
    try:
        if arguments.throughput:
            throughput()
        if arguments.out:
            measure(arguments.out, arguments.seconds)
    except ArrCocError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.plot:
        draw(json.loads(arguments.plot.read_text()), arguments.picture)
    return 0


def measure(out: Path, seconds: float) -> None:
    """Run all cases. The file is written after each of them."""
    check_cuda()
    start = time.monotonic()
    found: dict[str, Any] = {"machine": machine(), "cases": [], "left_out": []}
    for what, count, run in cases():
        if time.monotonic() - start > seconds:
            found["left_out"].append([what, count, "no time"])
        else:
            try:
                found["cases"].append({"what": what, "count": count, "median_ms": run()})
                print(
                    f"{time.monotonic() - start:5.0f} s",
                    what,
                    count,
                    f"{found['cases'][-1]['median_ms']:.4f} ms",
                    flush=True,
                )
            except (torch.cuda.OutOfMemoryError, ArrCocError) as error:
                found["left_out"].append([what, count, str(error).split("\n")[0]])
            torch.cuda.empty_cache()
        out.write_text(json.dumps(found, indent=1))


def cases() -> Iterator[Case]:
    for side in SIZES:
        yield "full40, px", side, lambda side=side: textures(side, 1)  # type: ignore[misc]
    for batch in BATCHES:
        yield "full40 at 1024 px, batch", batch, lambda batch=batch: textures(1024, batch)  # type: ignore[misc]
    for count in POSITIONS:
        yield "positions", count, lambda count=count: positions(count)  # type: ignore[misc]
    for count in QUESTIONS:
        yield "questions on one image", count, lambda count=count: questions(count)  # type: ignore[misc]
    for count in FRAMES:
        yield "frames, each", count, lambda count=count: frames(count)  # type: ignore[misc]


def textures(side: int, batch: int) -> float:
    pixels = sample_images(side, batch, "cuda")
    made = TextureGraph(batch, (side, side), moving=True, embeddings=(CELLS, CELLS)).capture()
    features = torch.randn(batch, 16, CELLS, CELLS, device="cuda")
    made.update(pixels, pixels.roll(3, -1), features)
    graph = made.graph
    assert graph is not None
    return time_on_gpu(graph.replay, 20).median


def positions(count: int) -> float:
    made = TextureGraph(1, (1024, 1024), moving=False)
    made.update(sample_images(1024, 1, "cuda"))
    samples = SampleGraph(made.mips(0), count).capture()
    samples.xy.uniform_()
    samples.level.uniform_(0, 4)
    return time_on_gpu(samples.read).median


def questions(count: int) -> float:
    """Milliseconds for all of them, one decision after the other, in one graph."""
    decision = DecisionGraph((1024, 1024), GRID, KEPT)
    scores = decision.score(torch.rand(len(CHANNELS), *GRID, device="cuda"))
    features, asked = torch.randn(16, GRID[0] * GRID[1], device="cuda"), torch.randn(count, 16, device="cuda")
    graph = capture_graph(lambda: [decision.decide(scores, features, one) for one in asked], torch.device("cuda"))
    return time_on_gpu(graph.replay).median


def frames(count: int) -> float:
    """Milliseconds per frame of a video of `count` frames, keyframes included, without the encoder's own time."""
    film = [sample_images(1024, 1, "cuda")[0].roll(4 * number, -1) for number in range(8)]
    seen = FrameGraph((1024, 1024)).capture()
    features = torch.randn(16, CELLS, CELLS, device="cuda")

    def watch() -> None:
        for number in range(count):
            if number % KEYFRAME == 0:
                seen.begin(film[number % 8], features)
            else:
                seen.next(film[number % 8])

    return time_on_gpu(watch, 5).median / count


def throughput(batch: int = 32, seconds: float = 5.0) -> None:
    """Images per second, summed over all processes. Images are on the GPU already; the encoder is not run."""
    check_cuda()
    rank, world = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(rank)
    if world > 1:
        torch.distributed.init_process_group("gloo")
    made = TextureGraph(batch, (1024, 1024), device=f"cuda:{rank}", moving=True, embeddings=(CELLS, CELLS)).capture()
    pixels = sample_images(1024, batch, f"cuda:{rank}")
    made.update(pixels, pixels.roll(3, -1), torch.randn(batch, 16, CELLS, CELLS, device=f"cuda:{rank}"))
    graph = made.graph
    assert graph is not None
    done, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        done += 10 * batch
    total = torch.tensor([done / (time.monotonic() - start)])
    if world > 1:
        torch.distributed.all_reduce(total)
    if rank == 0:
        print(f"{machine()}: {world} processes, batch {batch}, {float(total):,.0f} images/s")


def draw(found: dict[str, Any], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(case["what"] for case in found["cases"]))
    figure, axes = pyplot.subplots(1, len(names), figsize=(3.4 * len(names), 3.2), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        points = [(case["count"], case["median_ms"]) for case in found["cases"] if case["what"] == name]
        counts, times = zip(*points, strict=True)
        axis.loglog(counts, times, marker="o", color="teal")
        axis.set_xticks(counts, [f"{one:,}" for one in counts], rotation=45, fontsize=8)
        axis.set_xticks([], minor=True)
        axis.set_ylim(min(times) / 2, max(times) * 3)
        axis.set_yticks([], [])
        axis.set_yticks([], minor=True)
        for count, milliseconds in points:
            axis.annotate(
                f"{milliseconds:.3g}",
                (count, milliseconds),
                (0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axis.set_title(f"{name}: ms", fontsize=10)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
