"""Textures and frames of fixed shape can be captured as CUDA graphs: on a GPU that does not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_graphs.frame_graph import FrameGraph
from gpu_graphs.texture_graph import TextureGraph
from tests.capturing import Refused, capture, fake_gpu

MAKERS: dict[str, Callable[[], Any]] = {
    "texture": lambda: TextureGraph(2, (64, 80), device="cpu", moving=True, embeddings=(7, 7)),
    "frame": lambda: FrameGraph((64, 80), device="cpu"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_it_can_be_captured(name: str) -> None:
    made = MAKERS[name]()
    with fake_gpu() as gpu:
        capture(gpu.moved(made).write, [], owner=made)
        assert {"_halve", "_enlarge", "_settle"} <= set(gpu.launches)


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MAKERS["texture"]()
    write = type(made)._write_clusters

    def waits(self: TextureGraph) -> None:
        if float(self.pixels.sum()) >= 0:
            write(self)

    monkeypatch.setattr(TextureGraph, "_write_clusters", waits)
    with fake_gpu() as gpu, pytest.raises(Refused, match="__float__ waits"):
        capture(gpu.moved(made).write, [], owner=made)


def test_the_blocks_of_another_texture_are_found() -> None:
    """Control: a graph that writes to memory which it does not hold."""
    made, other = MAKERS["texture"](), torch.zeros(2, 40, 64, 80)
    with fake_gpu() as gpu:
        made, foreign = gpu.moved(made), gpu.tensor(other)
        held, made.block = [made.block, *made.levels, made.pixels, made.before, made.features, made.edge], foreign
        made.__dict__["_kept"] = held
        with pytest.raises(Refused, match="neither an input nor made in the capture"):
            capture(lambda: made.block.add_(1), [], known=held)
