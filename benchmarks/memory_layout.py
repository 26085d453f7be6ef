"""Channels first or channels last: which is faster to sample and to pool? And what do single planes cost against one block?

    python benchmarks/memory_layout.py [--side 1024] [--device cpu|cuda] [--rounds 7]

Sampling reads 40 channels at 273 points bilinearly, by gathering four neighbours, as the sampler does. Pooling averages
all channels onto a 32 x 32 grid. "planes" are 40 separate tensors, which is how the texture array keeps its channels.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

from arr_coc.bench.timing import interleave, machine
from arr_coc.texture.pooling import pool
from arr_coc.texture.sampler import trilinear

CHANNELS, POINTS, CELLS = 40, 273, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    side, device = arguments.side, arguments.device
    first = torch.rand(CHANNELS, side, side, device=device)
    last = first.permute(1, 2, 0).contiguous()  # [H, W, C]
    planes = [plane.clone() for plane in first]
    xy = torch.rand(POINTS, 2, generator=torch.Generator().manual_seed(0)).to(device)
    at_0 = torch.zeros(POINTS, device=device)
    rows, columns, weights = corners(xy, side)

    def from_last() -> torch.Tensor:
        return (last[rows, columns] * weights[..., None]).sum(0)  # [N, C], one stretch of memory per neighbour

    def from_first() -> torch.Tensor:
        return (first[:, rows, columns] * weights).sum(1).T

    def from_planes() -> torch.Tensor:
        return trilinear(lambda level: planes, xy, at_0, 0)

    expected = from_first()
    for other in (from_last(), from_planes()):
        assert torch.allclose(expected, other, atol=1e-5), "the layouts must read the same values"
    cell = side // CELLS
    tasks = {
        "sample, channels first": from_first,
        "sample, channels last": from_last,
        "sample, planes (as kept)": from_planes,
        "pool, channels first": lambda: F.avg_pool2d(first[None], cell),
        "pool, channels last": lambda: F.avg_pool2d(last.permute(2, 0, 1)[None], cell),
        "pool, planes (as kept)": lambda: [pool(plane, (CELLS, CELLS), "mean") for plane in planes],
        "transpose, first to last": lambda: first.permute(1, 2, 0).contiguous(),
    }
    times = interleave(tasks, arguments.rounds)
    print(
        f"{machine()}; {CHANNELS} channels of {side} x {side} px on {device}, milliseconds, {arguments.rounds} rounds\n"
    )
    print("| | median | best |\n|---|---|---|")
    for name, timing in times.items():
        print(f"| {name} | {timing.median:.3f} | {timing.best:.3f} |")


def corners(xy: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, columns and weights of each point's four neighbours: each `[4, N]`."""
    place = (xy * side - 0.5).clamp(0, side - 1)
    low = place.floor().long()
    high = (low + 1).clamp(max=side - 1)
    (fx, fy) = (place - low).unbind(1)
    rows = torch.stack([low[:, 1], low[:, 1], high[:, 1], high[:, 1]])
    columns = torch.stack([low[:, 0], high[:, 0], low[:, 0], high[:, 0]])
    weights = torch.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx])
    return rows, columns, weights


if __name__ == "__main__":
    main()
