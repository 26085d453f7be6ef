"""Compile every kernel for a GPU that is not there, as its launch would ask for it: run by test_compiling.py."""

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


def main() -> None:
    JITFunction.run = compile_only
    from arr_coc.texture.kernels.cells import pool_cells
    from arr_coc.texture.kernels.flowing import Flowing
    from arr_coc.texture.kernels.pyramid import make_levels
    from arr_coc.texture.kernels.ranking import keep
    from arr_coc.texture.kernels.sampling import sample
    from arr_coc.texture.kernels.segmenting import Segmenting
    from arr_coc.texture.kernels.warping import warp_planes
    from arr_coc.texture.kernels.whole import Whole

    Whole(1, (512, 512), dtype=torch.float16, device="cpu", moving=True, embeddings=(16, 16)).write()
    Segmenting(4, (64, 64), torch.device("cpu")).write(torch.rand(4, 3, 64, 64))  # a batch: one weight, then the others
    planes = [torch.rand(96, 97) for _ in range(2)]
    make_levels(planes, ["mean", "max"], 2)
    pool_cells(planes, (5, 5), ["mean", "nearest"])
    sample(Whole(1, (64, 64), device="cpu", levels=1, layout=["red", "x"]).places(0), torch.rand(9, 2), torch.rand(9))
    warp_planes(torch.stack(planes), torch.rand(2, 96, 97), torch.rand(96, 97))
    keep(torch.rand(4, 99), torch.arange(9), torch.rand(16, 99), torch.rand(16))
    Flowing((20, 30), "cpu").between(torch.rand(20, 30), torch.rand(20, 30))
    print(json.dumps(compiled))


if __name__ == "__main__":
    main()
