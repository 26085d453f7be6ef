"""Recorded work says the same as the work itself. Only a GPU records; everywhere else nothing changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from arr_coc.layer import graph_cache as replaying
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.model import ArrCocLayer
from arr_coc.layer.view_cache import state, weights
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.cuda_graph import CAPTURE_AFTER

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")
WIDTH = 12


@pytest.fixture
def layer() -> ArrCocLayer:
    torch.manual_seed(0)
    made = ArrCocLayer(LayerConfig("some", token_width=WIDTH, word_width=WIDTH, width=16, heads=2)).eval()
    for one in made.parameters():
        torch.nn.init.normal_(one, std=0.3)
    return made


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def shown(layer: ArrCocLayer, high: int = 5, wide: int = 7, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    channels = torch.rand(1, len(layer.config.channels), high, wide, device=device)
    return channels, torch.rand(1, 3 * layer.config.pixels**2, high, wide, device=device)


def judged(layer: ArrCocLayer, picture: tuple[torch.Tensor, ...], words: torch.Tensor) -> torch.Tensor:
    heard, there = replaying.hear(layer, state(layer), words)
    return replaying.judge(layer, state(layer), replaying.see(layer, state(layer), *picture), heard, there).relevance


def test_all_weights_are_walked_over(layer: ArrCocLayer) -> None:
    expected = {id(one) for one in (*layer.parameters(), *layer.buffers())}
    assert {id(one) for one in weights(layer)} == expected


def test_without_a_gpu_nothing_is_recorded(layer: ArrCocLayer) -> None:
    picture, words = shown(layer), torch.rand(5, WIDTH)
    plain = layer.judge(layer.see(*picture), layer.words(words[None], torch.ones(1, 5, dtype=torch.bool)),
                        torch.ones(1, 5, dtype=torch.bool))  # fmt: skip
    for _ in range(3):
        assert torch.equal(judged(layer, picture, words), plain.relevance)
    assert len(replaying.replays(layer)) == 0


@gpu
def test_recorded_work_says_the_same(layer: ArrCocLayer) -> None:
    layer.cuda()
    for number in range(CAPTURE_AFTER + 2):  # other pictures and questions of the same shapes
        picture, words = shown(layer, device="cuda"), torch.rand(3 + number, WIDTH, device="cuda")
        with using("torch"):
            plain = judged(layer, picture, words)
        assert torch.allclose(judged(layer, picture, words), plain, atol=1e-5)
    assert len(replaying.replays(layer)) == 3


@gpu
def test_results_stay_when_others_are_made(layer: ArrCocLayer) -> None:
    layer.cuda()
    pictures = [shown(layer, device="cuda") for _ in range(CAPTURE_AFTER + 3)]
    views = [replaying.see(layer, state(layer), *one) for one in pictures]
    for view, one in zip(views, pictures, strict=True):
        assert torch.allclose(view.cells, layer.see(*one).cells, atol=1e-6)


@gpu
def test_new_weights_are_seen(layer: ArrCocLayer) -> None:
    layer.cuda()
    picture = shown(layer, device="cuda")
    for _ in range(CAPTURE_AFTER + 1):
        before = replaying.see(layer, state(layer), *picture).cells
    layer.from_channels.weight.mul_(2)
    assert not torch.allclose(replaying.see(layer, state(layer), *picture).cells, before)
    layer.from_channels.weight.data = layer.from_channels.weight.data / 2  # elsewhere in memory, and no trace of it
    for _ in range(CAPTURE_AFTER + 1):
        assert torch.allclose(replaying.see(layer, state(layer), *picture).cells, before, atol=1e-6)


@gpu
def test_tokens_and_shapes_are_told_apart(layer: ArrCocLayer) -> None:
    layer.cuda()
    for _ in range(CAPTURE_AFTER + 1):
        for high in (4, 5):
            picture = shown(layer, high, device="cuda")
            tokens = torch.rand(1, high, 7, WIDTH, device="cuda")
            encoded = torch.rand(1, high, 7, device="cuda") > 0.5
            for more in ((), (tokens,), (tokens, encoded)):
                made = replaying.see(layer, state(layer), *picture, *more).cells
                assert torch.allclose(made, layer.see(*picture, *more).cells, atol=1e-5)


@gpu
def test_recordings_go_with_their_layer() -> None:
    layer = ArrCocLayer(LayerConfig("some", token_width=WIDTH, word_width=WIDTH, width=16, heads=2)).eval().cuda()
    before = len(replaying._replays)
    for _ in range(CAPTURE_AFTER):
        replaying.see(layer, state(layer), *shown(layer, device="cuda"))
    assert len(replaying.replays(layer)) == 1
    assert len(replaying._replays) == before + 1
    del layer
    gc.collect()
    assert len(replaying._replays) == before


@gpu
def test_recordings_lack_nothing_when_many_grids_were_seen_since(layer: ArrCocLayer) -> None:
    layer.cuda()
    picture = shown(layer, device="cuda")
    for _ in range(CAPTURE_AFTER):
        replaying.see(layer, state(layer), *picture)
    for high in range(6, 106):
        layer.see(*shown(layer, high, device="cuda"))
    torch.cuda.empty_cache()
    filling = [torch.full((1 << 18,), float("nan"), device="cuda") for _ in range(64)]
    made = replaying.see(layer, state(layer), *picture).cells
    assert torch.allclose(made, layer.see(*picture).cells, atol=1e-6)
    assert len(filling) == 64


@gpu
def test_gradients_are_not_recorded(layer: ArrCocLayer) -> None:
    layer.cuda()
    picture = shown(layer, device="cuda")
    with torch.enable_grad():
        for _ in range(CAPTURE_AFTER + 1):
            assert replaying.see(layer, state(layer), *picture).cells.requires_grad
    assert len(replaying.replays(layer)) == 0
