"""`benchmarks/gpu_stages.py`: every stage of the graph paths runs."""

from __future__ import annotations

import pytest
import torch

import gpu_stages
from arr_coc.bench import gpu
from arr_coc.texture.channels import clusters
from arr_coc.texture.kernels import connected_components, superpixels


@pytest.mark.skipif(torch.cuda.is_available(), reason="the script itself runs there")
def test_every_path_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (superpixels, connected_components, clusters):
        monkeypatch.setattr(module, "ROUNDS", 1, raising=False)
        monkeypatch.setattr(module, "SEGMENTS", 4)
        monkeypatch.setattr(module, "WORK_SIDE", 8, raising=False)
    for name, value in (("GRID", (8, 8)), ("LEVELS", 1), ("POINTS", 5)):
        monkeypatch.setattr(gpu, name, value)
        monkeypatch.setattr(gpu_stages, name, value, raising=False)
    bench = gpu_stages.GraphBench(16, 1, torch.float32, device="cpu", encoder=False)
    monkeypatch.setattr(bench, "kernel_stages", lambda: iter(()))  # tests/bench/test_gpu.py runs them
    names, done = [], []
    for stage in bench.stages():
        names.append(stage.name)
        if stage.work not in done:  # without CUDA a graph is the launched work
            stage.work()
            done.append(stage.work)
        stage.run_reference()
    assert names == ["16 embeddings enlarged", "full40, launched", "full40, graph"]
