"""Measures sampling of 40 channels by a GPU's texture units against the Triton kernel that gathers.

    python benchmarks/texture_objects.py [--side 1024] [--out texture_objects.json]

nvcc compiles `texture_objects.cu` at run time. It stores 40 channels in half precision as ten layers of four, with mip levels, and
the texture units interpolate at 273, 4,096 and 65,536 points. The Triton kernel samples the same levels from separate planes. The
hardware interpolates in steps of 1/256; the largest difference is printed. Filling the texture is a copy and is timed separately:
a texture that kernels write has to be copied for every new image.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from arr_coc.bench.gpu import check_cuda, time_on_gpu
from arr_coc.bench.timing import machine
from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels.pooling import make_levels
from arr_coc.texture.kernels.sampling import MipTable, sample_mips

CHANNELS, LAYERS = 40, 10
POINTS = (273, 4096, 65536)
SOURCE = Path(__file__).with_suffix(".cu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1024, help="side of the texture in pixels (1024)")
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    arguments = parser.parse_args()
    try:
        found = measure(arguments.side)
    except ArrCocError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))
    print(f"{found['machine']}, {arguments.side} px; filling the texture takes {found['fill_ms']:.3f} ms\n")
    print("| points | texture hardware, ms | Triton, ms | largest difference |\n|---|---|---|---|")
    for one in found["points"]:
        print(f"| {one['points']:,} | {one['hardware_ms']:.4f} | {one['triton_ms']:.4f} | {one['difference']:.4f} |")
    return 0


def measure(side: int) -> dict[str, Any]:
    check_cuda()
    library = build()
    planes = [torch.rand(side, side, device="cuda").half() for _ in range(CHANNELS)]
    rules = ["mean"] * CHANNELS
    levels = [torch.stack(planes), *make_levels(planes, rules)]
    mips = MipTable([list(level) for level in levels], rules)
    # [layers, h, w, 4]: the texture units read four channels at once.
    packed = [level.view(LAYERS, 4, *level.shape[1:]).permute(0, 2, 3, 1).contiguous() for level in levels]
    texture = ctypes.c_void_p()
    check(library.make_texture(ctypes.byref(texture), side, side, LAYERS, len(levels)))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def fill() -> None:
        for number, level in enumerate(packed):
            height, width = level.shape[1:3]
            check(library.fill_level(texture, number, ctypes.c_void_p(level.data_ptr()), height, width, stream))

    filling = time_on_gpu(fill)
    found: dict[str, Any] = {"machine": machine(), "side": side, "fill_ms": filling.median, "points": []}
    for count in POINTS:
        xy, at = torch.rand(count, 2, device="cuda"), torch.rand(count, device="cuda") * (len(levels) - 1)
        ours = torch.empty(count, CHANNELS, dtype=torch.float16, device="cuda")
        theirs = torch.full((count, CHANNELS), float("nan"), device="cuda")
        pointers = [ctypes.c_void_p(one.data_ptr()) for one in (xy, at, theirs)]

        def by_hardware(count: int = count, pointers: list[ctypes.c_void_p] = pointers) -> None:
            check(library.sample(texture, *pointers, count, stream))

        def by_triton(xy: torch.Tensor = xy, at: torch.Tensor = at, ours: torch.Tensor = ours) -> None:
            sample_mips(mips, xy, at, ours)

        hardware, triton = time_on_gpu(by_hardware), time_on_gpu(by_triton)
        found["points"].append(
            {
                "points": count, "hardware_ms": hardware.median, "triton_ms": triton.median,
                "difference": float((theirs - ours.float()).abs().max()),
            }
        )  # fmt: skip
    torch.cuda.synchronize()
    check(library.drop_texture(texture))
    return found


def build() -> ctypes.CDLL:
    """Compile the shared library for the present GPU."""
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        raise ArrCocError("expected nvcc on the path, got none: install the CUDA toolkit")
    major, minor = torch.cuda.get_device_capability()
    target = Path(tempfile.mkdtemp()) / "texture_objects.so"
    command = [
        compiler,
        "-O3",
        f"-arch=sm_{major}{minor}",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-o",
        str(target),
        str(SOURCE),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ArrCocError(f"nvcc could not build {SOURCE.name}: {done.stderr.strip().splitlines()[-1]}")
    return ctypes.CDLL(str(target))


def check(error: int) -> None:
    if error:
        raise ArrCocError(f"the CUDA runtime answered with error {error}")


if __name__ == "__main__":
    sys.exit(main())
