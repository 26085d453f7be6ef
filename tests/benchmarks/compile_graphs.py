"""Compile the kernels of `benchmarks/gpu_graphs`: run by tests/texture/kernels/test_compile_kernels.py."""

from __future__ import annotations

import json

import torch
from triton.runtime.jit import JITFunction

from tests.texture.kernels.compile_kernels import compile_only, compiled


def main() -> None:
    JITFunction.run = compile_only
    from gpu_graphs.decision_graph import keep
    from gpu_graphs.flow import PyramidFlow
    from gpu_graphs.texture_graph import write_enlarged

    write_enlarged(torch.rand(1, 16, 16, 16), torch.empty(1, 16, 512, 512, dtype=torch.float16), 0)
    keep(torch.rand(4, 99), torch.arange(9), torch.rand(16, 99), torch.rand(16))
    PyramidFlow((20, 30), "cpu").between(torch.rand(20, 30), torch.rand(20, 30))
    print(json.dumps(compiled))


if __name__ == "__main__":
    main()
