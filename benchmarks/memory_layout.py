"""Measures sampling and pooling with channels first, channels last, tiles, and separate planes.

    python benchmarks/memory_layout.py [--side 1024] [--device cpu|cuda] [--dtype float32|float16] [--rounds 7] [--json]

Sampling reads 40 channels at 273 points bilinearly by gathering four neighbours, as the sampler does. Pooling averages all
channels onto a 32 x 32 grid. "planes" are 40 separate tensors, which is how the texture array stores its channels. "tiles" are
squares of 8 x 8 px, each with all of its channels. On CUDA the kernels are timed, too: they take any strides, so the same kernel
reads either layout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
import torch.nn.functional as F

from arr_coc.bench.gpu import time_on_gpu
from arr_coc.bench.timing import interleave, machine
from arr_coc.texture.filters import pool
from arr_coc.texture.sampler import trilinear

CHANNELS, POINTS, CELLS, TILE = 40, 273, 32, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1024, help="side of the texture in pixels (1024)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds on the CPU (7)")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    side, device = arguments.side, arguments.device
    if side % CELLS:
        parser.error(f"expected a side that is a multiple of {CELLS}, got {side}")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device, and torch sees none: use --device cpu")
    first = torch.rand(CHANNELS, side, side, device=device).to(getattr(torch, arguments.dtype))
    last = first.permute(1, 2, 0).contiguous()  # [H, W, C]
    planes = [plane.clone() for plane in first]
    xy = torch.rand(POINTS, 2, generator=torch.Generator().manual_seed(0)).to(device)
    at_0 = torch.zeros(POINTS, device=device)
    rows, columns, weights = corners(xy, side)
    tiles = last.view(side // TILE, TILE, side // TILE, TILE, CHANNELS).transpose(1, 2).contiguous()

    def from_last() -> torch.Tensor:
        return (last[rows, columns] * weights[..., None]).sum(0)  # [N, C], one contiguous read per neighbour

    def from_tiles() -> torch.Tensor:
        found = tiles[rows // TILE, columns // TILE, rows % TILE, columns % TILE]
        return (found * weights[..., None]).sum(0)

    def from_first() -> torch.Tensor:
        return (first[:, rows, columns] * weights).sum(1).T

    def from_planes() -> torch.Tensor:
        return trilinear(lambda level: planes, xy, at_0, 0)

    expected = from_first()
    tolerance = 1e-5 if arguments.dtype == "float32" else 2e-3
    for other in (from_last(), from_tiles(), from_planes()):
        assert torch.allclose(expected.float(), other.float(), atol=tolerance), "the layouts must read the same values"
    cell = side // CELLS
    tasks: dict[str, Callable[[], object]] = {
        "sample, channels first": from_first,
        "sample, channels last": from_last,
        "sample, tiles": from_tiles,
        "sample, planes (as kept)": from_planes,
        "pool, channels first": lambda: F.avg_pool2d(first[None], cell),
        "pool, channels last": lambda: F.avg_pool2d(last.permute(2, 0, 1)[None], cell),
        "pool, planes (as kept)": lambda: [pool(plane, (CELLS, CELLS), "mean") for plane in planes],
        "transpose, first to last": lambda: first.permute(1, 2, 0).contiguous(),
    }
    if device == "cuda":
        tasks |= by_kernel(first, last, xy, at_0)
        times = {
            name: (found.median, min(found.runs))
            for name, found in ((n, time_on_gpu(task)) for n, task in tasks.items())
        }
    else:
        times = {name: (found.median, found.best) for name, found in interleave(tasks, arguments.rounds).items()}
    if arguments.json:
        record = {"machine": machine(), "side": side, "device": device, "dtype": arguments.dtype}
        print(json.dumps(record | {"median_ms": {name: median for name, (median, _) in times.items()}}))
        return
    print(f"{machine()}; {CHANNELS} channels of {side} x {side} px on {device}, {arguments.dtype}, milliseconds\n")
    print("| | median | best |\n|---|---|---|")
    for name, (median, best) in times.items():
        print(f"| {name} | {median:.3f} | {best:.3f} |")


def by_kernel(
    first: torch.Tensor, last: torch.Tensor, xy: torch.Tensor, at_0: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """The kernels on either layout."""
    from arr_coc.texture.filters import level_size
    from arr_coc.texture.kernels.pooling import LevelWriter, plane_table, rows_aligned, rule_codes, write_cells
    from arr_coc.texture.kernels.sampling import MipTable, sample_mips

    means = ["mean"] * CHANNELS
    size = (int(first.shape[1]), int(first.shape[2]))
    tasks: dict[str, Callable[[], object]] = {}
    for name, planes in (("channels first", list(first)), ("channels last", list(last.permute(2, 0, 1)))):
        mips, table = MipTable([planes], means), plane_table(planes)
        rules, cells = rule_codes(means, first.device), first.new_empty(CHANNELS, CELLS, CELLS)
        levels = LevelWriter(
            size, means, [first.new_empty(CHANNELS, *level_size(size, number)) for number in range(1, 6)]
        )
        out, dense = first.new_empty(POINTS, CHANNELS), rows_aligned(planes)
        tasks[f"kernel: sample, {name}"] = lambda mips=mips, out=out: sample_mips(mips, xy, at_0, out)  # type: ignore[misc]
        tasks[f"kernel: cells, {name}"] = lambda table=table, rules=rules, cells=cells, dense=dense: write_cells(  # type: ignore[misc]
            table, rules, size, cells, packed=dense
        )
        tasks[f"kernel: five levels, {name}"] = lambda levels=levels, table=table, dense=dense: levels.write(  # type: ignore[misc]
            table, packed=dense
        )
    return tasks


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
