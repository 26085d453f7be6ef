"""Measures the largest difference of every kernel from its torch reference on a GPU, on odd sizes, one pixel and large images.

    python benchmarks/kernel_differences.py [--largest 4096] [--out differences.json]

Inputs are random; outputs are filled with NaN before they are written. The tolerance is relative to the largest value of the
reference: 1e-5 in float32, 1e-3 in float16, 8e-3 in bfloat16. Where rounding decides a threshold (a polarity, a pixel equally near
to two centres), the share of differing pixels is compared instead: at most 0.1% and 1%.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from arr_coc.bench.gpu import check_cuda
from arr_coc.bench.timing import machine
from arr_coc.errors import ArrCocError
from arr_coc.frames import flow
from arr_coc.texture import TextureArray, sampler
from arr_coc.texture.channels import clusters
from arr_coc.texture.channels.edges import distance_to
from arr_coc.texture.filters import Pyramid, pool
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.connected_components import ConnectedComponents, Variants
from arr_coc.texture.kernels.distance import distance_buffers, write_distance
from arr_coc.texture.kernels.pointwise import POINTWISE, write_pointwise
from arr_coc.texture.kernels.pooling import make_levels, pool_cells
from arr_coc.texture.kernels.saliency import CentreSurround
from arr_coc.texture.kernels.sampling import MipTable, sample_mips, warp_planes
from arr_coc.texture.kernels.superpixels import REGION_CHANNELS, RegionStats, SlicKMeans
from gpu_graphs.flow import PyramidFlow
from gpu_graphs.texture_graph import write_enlarged

SIZES = ((1, 1), (1, 77), (63, 1), (37, 70), (129, 255), (512, 512), (1000, 1531), (1024, 1024), (4096, 4096))
ALLOWED = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
RULES = ("mean", "max", "nearest")


@dataclass(frozen=True)
class Difference:
    kernel: str
    size: tuple[int, int]
    dtype: str
    difference: float  # relative to the reference's largest value, or a share of pixels
    allowed: float

    @property
    def close(self) -> bool:
        return self.difference <= self.allowed  # False for NaN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=4096, help="skip larger sizes (4096)")
    parser.add_argument("--device", default="cuda", help="cuda; or cpu with TRITON_INTERPRET=1, for tiny sizes")
    parser.add_argument("--out", type=Path, help="write all differences as JSON")
    arguments = parser.parse_args()
    try:
        if arguments.device == "cuda":
            check_cuda()
        found = []
        with using("triton"):
            for size in SIZES:
                if max(size) <= arguments.largest:
                    for one in compare(size, arguments.device):
                        found.append(one)
                        mark = "" if one.close else "   TOO LARGE"
                        print(
                            f"{one.kernel:28s} {size[0]:5d} x {size[1]:<5d} {one.dtype:9s} {one.difference:.2e}{mark}",
                            flush=True,
                        )
    except ArrCocError as error:
        print(error, file=sys.stderr)
        return 2
    wrong = [one for one in found if not one.close]
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"machine": machine(), "differences": [asdict(one) for one in found]}, indent=1)
        )
    print(f"\n{machine()}: {len(found)} comparisons, {len(wrong)} too large")
    return 1 if wrong else 0


def compare(size: tuple[int, int], device: str) -> Iterator[Difference]:
    """Every kernel on images of one size."""
    yield from _pointwise(size, device)
    yield from _maps(size, device)
    yield from _planes(size, device)
    if min(size) >= 16 and max(size) <= 1600:
        yield from _clusters(size, device)
        yield from _flow(size, device)


def _largest(made: torch.Tensor, expected: torch.Tensor) -> float:
    if made.numel() == 0:
        return 0.0
    return float((made.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1))


def _pointwise(size: tuple[int, int], device: str) -> Iterator[Difference]:
    image, before = torch.rand(2, *size, 3, device=device).permute(0, 3, 1, 2), torch.rand(2, 3, *size, device=device)
    with using("torch"):
        plain = [
            TextureArray.from_image(one, max_side=None, supplied={"previous_frame": old})
            for one, old in zip(image, before, strict=True)
        ]
        wanted = {name: torch.stack([one[name] for one in plain]) for name in POINTWISE}
    for dtype, allowed in ALLOWED.items():
        out = torch.full((2, len(POINTWISE), *size), float("nan"), dtype=dtype, device=device)
        write_pointwise(image, out, {name: number for number, name in enumerate(POINTWISE)}, before)
        for number, name in enumerate(POINTWISE):
            short = str(dtype).removeprefix("torch.")
            if name.startswith("edges"):
                share = float(((out[:, number].float() - wanted[name]).abs() > 2 * allowed).float().mean())
                yield Difference(f"{name}, share of pixels", size, short, share, 1e-3)
            else:
                yield Difference(name, size, short, _largest(out[:, number], wanted[name]), allowed)


def _maps(size: tuple[int, int], device: str) -> Iterator[Difference]:
    edge = (torch.rand(1, *size, device=device) < 1e-3).to(torch.uint8)
    edge[0, size[0] // 2, size[1] // 3] = 1
    out = torch.full((1, *size), float("nan"), device=device)
    write_distance(edge, *distance_buffers((1, *size), torch.device(device)), out)
    half = (size[0] ** 2 + size[1] ** 2) ** 0.5 / 2
    yield Difference(
        "distance",
        size,
        "float32",
        _largest(out[0].cpu(), (distance_to(edge[0].bool().cpu()) / half).clamp(max=1)),
        1e-5,
    )
    image = torch.rand(2, 3, *size, device=device)
    out = torch.full((2, *size), float("nan"), device=device)
    CentreSurround(2, size, torch.device(device)).write(image, out)
    with using("torch"):
        # On the CPU: on a GPU, the error of torch's float32 interpolation is as large as the tolerance.
        plain = torch.stack([TextureArray.from_image(one, max_side=None)["saliency"] for one in image.cpu()])
    yield Difference("saliency", size, "float32", _largest(out.cpu(), plain), 1e-5)
    maps = torch.randn(2, 5, min(7, size[0]), min(9, size[1]), device=device)
    block = torch.full((2, 6, *size), float("nan"), device=device)
    write_enlarged(maps, block, 1)
    expected = torch.nn.functional.interpolate(maps, size, mode="bilinear", align_corners=False)
    yield Difference("enlarged", size, "float32", _largest(block[:, 1:], expected), 1e-5)


def _planes(size: tuple[int, int], device: str) -> Iterator[Difference]:
    for dtype, allowed in ALLOWED.items():
        short = str(dtype).removeprefix("torch.")
        planes = [
            torch.rand(size[::-1], device=device).to(dtype).T,
            *(torch.rand(size, device=device).to(dtype) for _ in "ab"),
        ]
        levels = make_levels(planes, RULES)
        pyramids = [Pyramid(plane.float(), rule) for plane, rule in zip(planes, RULES, strict=True)]  # type: ignore[arg-type]
        worst = [
            _largest(level[number], one.level(depth))
            for depth, level in enumerate(levels, start=1)
            for number, one in enumerate(pyramids)
        ]
        yield Difference("pyramid", size, short, max(worst, default=0.0), allowed)
        for grid in ((1, 1), (7, 5), (36, 36)):
            made = pool_cells(planes, grid, RULES)
            expected = torch.stack([pool(plane.float(), grid, rule) for plane, rule in zip(planes, RULES, strict=True)])  # type: ignore[arg-type]
            yield Difference(f"cells {grid[0]} x {grid[1]}", size, short, _largest(made, expected), allowed)
        mips = MipTable([planes, *(list(level) for level in levels)], RULES)
        xy = torch.rand(1000, 2, device=device) * 1.2 - 0.1
        at = torch.rand(1000, device=device) * (len(levels) + 2) - 1
        full = [[plane.float() for plane in level] for level in mips.levels]
        smooth = sampler.trilinear(lambda level: full[level][:2], xy, at, len(levels))  # noqa: B023
        ids = sampler.nearest(lambda level: full[level][2:], xy, at, len(levels))  # noqa: B023
        yield Difference(
            "samples", size, short, _largest(sample_mips(mips, xy, at), torch.cat([smooth, ids], dim=1)), allowed
        )
        vectors = torch.randn(2, *size, device=device) * 3
        block = torch.stack(planes)
        # Rounding of positions grows with the width and mixes in that much of a neighbour.
        yield Difference(
            "warp",
            size,
            short,
            _largest(warp_planes(block, vectors), flow._sample_torch(block.float(), vectors, False)),
            allowed + 2e-7 * max(size),
        )


def _clusters(size: tuple[int, int], device: str) -> Iterator[Difference]:
    place = torch.device(device)
    image = torch.rand(1, 3, *size, device=device) * 0.2
    image[:, :, : size[0] // 2, size[1] // 3 :] += torch.tensor([0.6, 0.2, 0.0], device=device).view(3, 1, 1)
    found = SlicKMeans(1, size, place)
    found.set_images(image)
    labels = found.assign(Variants(0, len(clusters.COMPACTNESS)), ConnectedComponents(1, found.small, place))
    lab = found.lab[0].cpu().numpy()
    shares = [
        float((labels[number].cpu().numpy() != clusters._k_means(lab, compactness)).mean())
        for number, compactness in enumerate(clusters.COMPACTNESS)
    ]
    yield Difference("superpixels, share of pixels", size, "int32", max(shares), 1e-2)
    for number in range(len(clusters.COMPACTNESS)):
        ids = ConnectedComponents(1, found.small, place, variants=1).write(labels[number : number + 1].contiguous())
        expected = clusters.connect(labels[number].cpu().numpy().astype(np.int64))
        yield Difference("connected ids", size, "int32", float((ids[0].cpu().numpy() != expected).mean()), 0.0)
    regions, out = RegionStats(1, found.small, size, place), torch.full((1, 4, *size), float("nan"), device=device)
    regions.measure(ids)
    regions.write(ids, out, {name: number for number, name in enumerate(REGION_CHANNELS)})
    with using("torch"):
        plain = TextureArray.from_image(image[0], max_side=None, segmenter=lambda pixels: ids[0].long())
        for number, name in enumerate(REGION_CHANNELS):
            yield Difference(name, size, "float32", _largest(out[0, number], plain[name]), 1e-5)


def _flow(size: tuple[int, int], device: str) -> Iterator[Difference]:
    small = (min(size[0], 240), min(size[1], 320))
    wide = torch.nn.functional.interpolate(torch.rand(1, 1, 12, 16), (small[0] + 4, small[1] + 4), mode="bicubic")
    wide = wide[0, 0].clamp(0, 1).to(device)
    before, after = wide[:-4, :-4].contiguous(), wide[2:-2, 1:-3].contiguous()
    made = PyramidFlow(small, device).between(before, after)
    with using("torch"):
        expected = flow.lucas_kanade(after, before)
    share = float(((made.vectors - expected).abs() > 0.01).float().mean())
    yield Difference("flow, share beyond 0.01 px", small, "float32", share, 1e-2)


if __name__ == "__main__":
    sys.exit(main())
