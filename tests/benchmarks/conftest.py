"""Kernels of `benchmarks/gpu_graphs` run on a GPU or in Triton's interpreter, with the fixtures of the texture's kernels."""

from __future__ import annotations

import pytest
import torch

from ..texture.kernels.conftest import by_triton, collect_ignore_glob, device, image, unwritten_lanes

__all__ = ["by_triton", "collect_ignore_glob", "device", "image", "unwritten_lanes"]


@pytest.fixture
def large_blocks(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Flow in larger blocks in the interpreter, where every program takes its time."""
    from gpu_graphs import flow

    if device.type == "cpu":
        monkeypatch.setattr(flow, "BLOCK", 1024)
