"""Compile every kernel for a GPU without having one, as its launch would: run by test_compile_kernels.py."""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.float64: "fp64", torch.uint8: "u8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
compiled: dict[str, int] = {}
seen: set[str] = set()


def compile_only(kernel: Any, *values: Any, grid: Any = None, warmup: bool = False, **named: Any) -> None:
    """In place of a launch: the same specialisation, without a device."""
    options = {name: named.pop(name) for name in list(named) if name not in kernel.arg_names}
    given = {**dict(zip(kernel.arg_names, values, strict=False)), **named}
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    hints: dict[tuple[int], Any] = {}
    for number, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        signature[parameter.name] = "constexpr"
        if parameter.is_constexpr or (type(value) is int and value == 1):
            constants[(number,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            hints[(number,)] = [["tt.divisibility", 16]]
        elif isinstance(value, bool):
            signature[parameter.name] = "i1"
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    key = f"{kernel.__name__} {signature} {constants} {options}"
    if key not in seen:
        seen.add(key)
        options.setdefault("enable_fp_fusion", True)
        made = triton.compile(
            ASTSource(kernel, signature, constants, hints), target=GPUTarget("cuda", 90, 32), options=options
        )
        assert made.asm["cubin"]
        compiled[kernel.__name__] = max(compiled.get(kernel.__name__, 0), made.metadata.shared)


def compile_texture_kernels() -> None:
    """The kernels of the package."""
    JITFunction.run = compile_only
    from arr_coc.texture.kernels.distance import distance_buffers, write_distance
    from arr_coc.texture.kernels.pointwise import POINTWISE, write_pointwise
    from arr_coc.texture.kernels.pooling import make_levels, pool_cells
    from arr_coc.texture.kernels.saliency import CentreSurround
    from arr_coc.texture.kernels.sampling import MipTable, sample_mips, warp_planes
    from arr_coc.texture.kernels.superpixels import REGION_CHANNELS, RegionStats, SlicSegmenter

    cpu, size = torch.device("cpu"), (512, 512)
    image, out = torch.rand(1, 3, *size), torch.empty(1, 16, *size, dtype=torch.float16)
    edge = torch.zeros(1, *size, dtype=torch.uint8)
    write_pointwise(image, out, {name: number for number, name in enumerate(POINTWISE)}, image, edge)
    write_distance(edge, *distance_buffers((1, *size), cpu), out[:, 0])
    CentreSurround(1, size, cpu).write(image, out[:, 0])
    segmenter = SlicSegmenter(1, size, cpu)
    regions = RegionStats(1, segmenter.small, size, cpu)
    regions.measure(segmenter.write(image))
    regions.write(segmenter.ids, out, {name: number for number, name in enumerate(REGION_CHANNELS)})
    SlicSegmenter(4, (64, 64), cpu).write(torch.rand(4, 3, 64, 64))  # a batch: one compactness, then the others
    make_levels(list(out[0]), ["mean", "max", "nearest", *["mean"] * 13], 5)
    planes = [torch.rand(96, 97) for _ in range(2)]
    levels = make_levels(planes, ["mean", "max"], 2)
    pool_cells(planes, (5, 5), ["mean", "nearest"])
    pool_cells(planes, (40, 40), ["mean", "nearest"])
    mips = MipTable([planes, *(list(level) for level in levels)], ["mean", "max"])
    sample_mips(mips, torch.rand(9, 2), torch.rand(9))
    warp_planes(torch.stack(planes), torch.rand(2, 96, 97), torch.rand(96, 97))


if __name__ == "__main__":
    compile_texture_kernels()
    print(json.dumps(compiled))
