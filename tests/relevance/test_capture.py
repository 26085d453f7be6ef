"""Choosing for a batch launches everything before the host waits, and its graphs can be captured: on a GPU that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from arr_coc import TextureArray
from arr_coc.layer.inference import LayerPredictor
from arr_coc.layer.universal import UniversalLayer, shipped_layer
from arr_coc.relevance import together
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.texture.kernels.cuda_graph import CAPTURE_AFTER
from arr_coc.types.grid import Grid
from tests.capturing import DEVICE, FakeGpu, Refused, Waits, fake_gpu
from tests.relevance.test_together import QUESTIONS, WIDTH, own_layer

pytest.importorskip("triton")


class Launched(Exception):
    """Everything is launched; what comes now may wait."""


def batch(gpu: FakeGpu, layer: Any, sizes: Sequence[tuple[int, int]], encoded: bool) -> list[SelectionInput]:
    found = []
    for number, (height, width) in enumerate(sizes):
        with unset_fake_temporarily():
            texture = TextureArray.from_image(torch.rand(3, height, width))
        grid = Grid(1, height // 28, width // 28)
        cells = torch.arange(0, grid.n, 2 if encoded else 1)
        words = torch.rand(3 + number, WIDTH, device=DEVICE)
        which = "universal" if isinstance(layer, UniversalLayer) else "layer"
        given: dict[str, Any] = {which: LayerPredictor(layer, DEVICE)}
        if encoded:
            given["tokens"] = torch.rand(len(cells), WIDTH, device=DEVICE)
        question = Question(QUESTIONS[number], torch.arange(3 + number), lambda ids, words=words: words)  # type: ignore[misc]
        source = ImageSource(texture=gpu.moved(texture))
        found.append(SelectionInput(grid, grid.n // 4, cells, question, source=source, **given))
    return found


def launch(gpu: FakeGpu, layer: Any, sizes: Sequence[tuple[int, int]], encoded: bool) -> None:
    """Several batches of new pictures; the first meets shapes that were not seen before, and may wait."""
    for number in range(CAPTURE_AFTER + 2):
        given = batch(gpu, layer, sizes, encoded)
        with Waits() if number else nullcontext(), pytest.raises(Launched):
            together.prepare(given)


@pytest.fixture(autouse=True)
def until_the_host_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(found: Sequence[torch.Tensor]) -> None:
        assert len(found) > 6
        assert all(one.is_cuda for one in found)
        raise Launched

    monkeypatch.setattr(together, "fetch", fetch)


@pytest.mark.parametrize("universal", [True, False])
@pytest.mark.parametrize("sizes", [((224, 280), (224, 280)), ((224, 280), (280, 168))])
@pytest.mark.parametrize("encoded", [False, True])
def test_a_batch_is_launched_without_a_wait(universal: bool, sizes: Any, encoded: bool) -> None:
    real = shipped_layer(torch.device("cpu")) if universal else own_layer()
    with fake_gpu() as gpu, torch.no_grad():
        launch(gpu, gpu.module(real), sizes, encoded)
        assert gpu.graphs >= 5  # channels, text, and the layer's three parts
        assert gpu.launches


@pytest.mark.parametrize("fault", ["layer", "doubts"])
def test_a_planted_wait_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shipped_layer(torch.device("cpu"))
    name = "score" if fault == "layer" else "doubt_logits"
    work = getattr(UniversalLayer, name)

    def waits(self: Any, *given: Any) -> Any:
        found = work(self, *given)
        values = found.relevance if fault == "layer" else found
        return found if values.max().item() > 0 else None

    monkeypatch.setattr(UniversalLayer, name, waits)
    with fake_gpu() as gpu, torch.no_grad(), pytest.raises(Refused, match="item waits"):
        launch(gpu, gpu.module(real), ((224, 280), (280, 168)), False)
