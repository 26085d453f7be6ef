"""A layer in use: encoded once per image, run as CUDA graphs on a GPU, loaded with its model."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.errors import LayerError
from arr_coc.layer import ArrCocLayer, inference
from arr_coc.layer.batching import run_batch
from arr_coc.layer.identity import config_for, fit_to_model, model_identity
from arr_coc.layer.inference import (
    CellFeatures,
    GraphedLayer,
    all_weights,
    layer_graphs,
    predict,
    selection_features,
    texture_features,
)
from arr_coc.layer.model import EncodedView, LayerConfig
from arr_coc.selectors.base import ImageSource, SelectionInput
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.cuda_graph import CAPTURE_AFTER
from arr_coc.training.examples import load_examples, read_folder, selection_input
from arr_coc.types.grid import Grid
from arr_coc.vlm.request import is_image
from recipes.reader import folder as folders
from recipes.reader.model import TINY, build
from tests.adapters.tiny_vlm import picture as noisy
from tests.conftest import structured
from tests.selectors.selections import DIMENSIONS, TILES, selection, words
from tests.training import squares

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
ASKED: dict[str, Any] = {"budget": 9, "max_new_tokens": 1}
GRID = Grid(1, 6, 9)
WIDTH = 12


class CountingLayer(ArrCocLayer):
    """A layer with random weights that counts how often it encodes a view."""

    encodes = 0

    def encode_view(self, *inputs: Any, **named: Any) -> EncodedView:
        self.encodes += 1
        return super().encode_view(*inputs, **named)


def random_layer(width: int, kind: type[ArrCocLayer] = ArrCocLayer) -> Any:
    torch.manual_seed(0)
    made = kind(LayerConfig("some", token_width=width, word_width=width, width=16, heads=2)).eval()
    for weights in made.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    return made


@pytest.fixture
def layer() -> CountingLayer:
    return random_layer(DIMENSIONS, CountingLayer)  # type: ignore[no-any-return]


@pytest.fixture
def base() -> SelectionInput:
    """An image with a texture of its own."""
    texture = TextureArray.from_image(structured(60, 90))
    return replace(selection(GRID, None), source=ImageSource(texture=texture))


def test_a_second_question_does_not_encode_again_and_changes_nothing(
    layer: CountingLayer, base: SelectionInput
) -> None:
    for number in range(3):
        one = replace(base, question=words(number))
        found = predict(layer, one)
        with torch.inference_mode():
            embeddings = one.question.embeddings[None]
            features, mask = selection_features(one, layer.config), torch.ones(embeddings.shape[:2], dtype=torch.bool)
            whole = run_batch(layer, [features], torch.tensor([0]), embeddings, mask)
        assert torch.equal(found.relevance, whole.relevance[0].sigmoid())
        assert layer.encodes == 2 + number  # once for all questions, and once for each `run_batch`


def test_other_tokens_cells_or_weights_are_encoded_again(layer: CountingLayer, base: SelectionInput) -> None:
    assert base.tokens is not None
    predict(layer, base)
    predict(layer, replace(base, question=words(1)))
    assert layer.encodes == 1
    half = replace(base, tokens=base.tokens[::2], candidates=torch.arange(0, GRID.n, 2))
    others = [replace(base, tokens=None), replace(base, tokens=base.tokens.clone()), half]
    for number, other in enumerate(others):
        predict(layer, other)
        assert layer.encodes == 2 + number
    before = predict(layer, base).relevance
    encodes = layer.encodes
    with torch.no_grad():
        layer.from_channels.weight += 1
    assert not torch.equal(predict(layer, base).relevance, before)
    assert layer.encodes == encodes + 1


def test_layers_do_not_share_cached_views(layer: CountingLayer, base: SelectionInput) -> None:
    other = ArrCocLayer(layer.config).eval()
    assert not torch.equal(predict(layer, base).relevance, predict(other, base).relevance)


def test_tiles_are_cached_and_words_encoded_once(layer: CountingLayer, base: SelectionInput) -> None:
    layer.store_questions(torch.randn(5, layer.config.width))
    calls: list[int] = []
    layer.words.register_forward_hook(lambda *_: calls.append(1))
    tiles = replace(selection(TILES, None), source=base.source)
    predict(layer, tiles)
    assert len(calls) == 1  # for all tiles and for the novelty
    predict(layer, replace(tiles, question=words(3)))
    assert layer.encodes == len(TILES.views)


def test_a_copied_texture_has_an_empty_cache(layer: CountingLayer, base: SelectionInput) -> None:
    predict(layer, base)
    for made in (copy.deepcopy(base.texture), pickle.loads(pickle.dumps(base.texture))):
        encodes = layer.encodes
        predict(layer, replace(base, source=ImageSource(texture=made)))
        assert layer.encodes == encodes + 1


def test_all_parameters_and_buffers_are_found(layer: CountingLayer) -> None:
    assert {id(one) for one in all_weights(layer)} == {id(one) for one in (*layer.parameters(), *layer.buffers())}


@pytest.fixture
def small() -> ArrCocLayer:
    return random_layer(WIDTH)  # type: ignore[no-any-return]


def shown(layer: ArrCocLayer, high: int = 5, device: str = "cpu") -> CellFeatures:
    channels = torch.rand(1, len(layer.config.channels), high, 7, device=device)
    return CellFeatures(channels, torch.rand(1, 3 * layer.config.pixels**2, high, 7, device=device))


def encode(layer: ArrCocLayer, view: CellFeatures) -> torch.Tensor:
    return GraphedLayer(layer).encode_view(view).cells


def encode_eagerly(layer: ArrCocLayer, view: CellFeatures) -> torch.Tensor:
    return layer.encode_view(view.channels, view.pixels, view.tokens, view.encoded).cells


def relevance(layer: ArrCocLayer, view: CellFeatures, question: torch.Tensor) -> torch.Tensor:
    graphed = GraphedLayer(layer)
    return graphed.score(graphed.encode_view(view), *graphed.encode_words([question])).relevance


@torch.no_grad()
def test_without_a_gpu_nothing_is_captured(small: ArrCocLayer) -> None:
    view, question, mask = shown(small), torch.rand(5, WIDTH), torch.ones(1, 5, dtype=torch.bool)
    eager = small(view.channels, view.pixels, None, None, question[None], mask)
    for _ in range(3):
        assert torch.equal(relevance(small, view, question), eager.relevance)
    assert len(layer_graphs(small)) == 0


@gpu
@torch.no_grad()
def test_graphs_give_the_eager_results(small: ArrCocLayer) -> None:
    small.cuda()
    for number in range(CAPTURE_AFTER + 2):  # other images and questions of the same shapes
        view, question = shown(small, device="cuda"), torch.rand(3 + number, WIDTH, device="cuda")
        with using("torch"):
            eager = relevance(small, view, question)
        assert torch.allclose(relevance(small, view, question), eager, atol=1e-5)
    assert len(layer_graphs(small)) == 3


@gpu
@torch.no_grad()
def test_results_are_not_overwritten_by_the_next_replay(small: ArrCocLayer) -> None:
    small.cuda()
    views = [shown(small, device="cuda") for _ in range(CAPTURE_AFTER + 3)]
    found = [encode(small, view) for view in views]
    for cells, view in zip(found, views, strict=True):
        assert torch.allclose(cells, encode_eagerly(small, view), atol=1e-6)


@gpu
@torch.no_grad()
def test_changed_weights_are_captured_again(small: ArrCocLayer) -> None:
    small.cuda()
    view = shown(small, device="cuda")
    for _ in range(CAPTURE_AFTER + 1):
        before = encode(small, view)
    small.from_channels.weight.mul_(2)
    assert not torch.allclose(encode(small, view), before)
    small.from_channels.weight.data = small.from_channels.weight.data / 2  # new memory, unchanged version
    for _ in range(CAPTURE_AFTER + 1):
        assert torch.allclose(encode(small, view), before, atol=1e-6)


@gpu
@torch.no_grad()
def test_graphs_depend_on_tokens_and_shapes(small: ArrCocLayer) -> None:
    small.cuda()
    for _ in range(CAPTURE_AFTER + 1):
        for high in (4, 5):
            view = shown(small, high, device="cuda")
            tokens = torch.rand(1, high, 7, WIDTH, device="cuda")
            encoded = torch.rand(1, high, 7, device="cuda") > 0.5
            for one in (view, replace(view, tokens=tokens), replace(view, tokens=tokens, encoded=encoded)):
                assert torch.allclose(encode(small, one), encode_eagerly(small, one), atol=1e-5)


@gpu
@torch.no_grad()
def test_graphs_are_freed_with_their_layer() -> None:
    layer = random_layer(WIDTH).cuda()
    before = len(inference._graphs)
    for _ in range(CAPTURE_AFTER):
        encode(layer, shown(layer, device="cuda"))
    assert len(layer_graphs(layer)) == 1
    assert len(inference._graphs) == before + 1
    del layer
    gc.collect()
    assert len(inference._graphs) == before


@gpu
@torch.no_grad()
def test_graphs_stay_valid_after_many_other_grids(small: ArrCocLayer) -> None:
    small.cuda()
    view = shown(small, device="cuda")
    for _ in range(CAPTURE_AFTER):
        encode(small, view)
    for high in range(6, 106):
        encode_eagerly(small, shown(small, high, device="cuda"))
    torch.cuda.empty_cache()
    filling = [torch.full((1 << 18,), float("nan"), device="cuda") for _ in range(64)]
    assert torch.allclose(encode(small, view), encode_eagerly(small, view), atol=1e-6)
    assert len(filling) == 64


@gpu
def test_gradients_are_not_captured(small: ArrCocLayer) -> None:
    small.cuda()
    view = shown(small, device="cuda")
    with torch.enable_grad():
        for _ in range(CAPTURE_AFTER + 1):
            assert encode(small, view).requires_grad
    assert len(layer_graphs(small)) == 0


def test_a_layer_belongs_to_one_model_in_any_precision() -> None:
    vlm, other = squares.model(), squares.model("qwen2_5_vl")
    layer, mine = squares.layer(vlm), model_identity(vlm.adapter)
    with pytest.raises(LayerError, match=f"trained for {mine}, and the model is {model_identity(other.adapter)}"):
        fit_to_model(layer, other.adapter)
    with pytest.raises(LayerError, match="trained for qwen2_vl-"):
        arr_coc.wrap(other.model, other.processor, layer=layer)
    for dtype in (torch.bfloat16, torch.float16):
        assert model_identity(arr_coc.wrap(squares.model().model.to(dtype)).adapter) == mine
    with torch.no_grad():
        vlm.model.get_input_embeddings().weight[3] *= -1
    assert model_identity(vlm.adapter) != mine


def test_a_model_in_bfloat16() -> None:
    vlm = squares.model()
    vlm.model.to(torch.bfloat16)
    layer = squares.layer(vlm)
    selection = selection_input(vlm, vlm.look(noisy(64, 64)), "Which one?")
    assert selection.tokens is not None
    assert selection.tokens.dtype == torch.bfloat16
    found = predict(layer.to(torch.bfloat16).float(), selection)
    assert found.relevance.dtype == torch.float32
    assert bool(found.relevance.isfinite().all())
    assert not found.relevance.is_inference()
    answer = arr_coc.wrap(vlm.model, vlm.processor, layer=layer).ask(
        noisy(64, 64), "Which?", budget=8, max_new_tokens=2
    )
    assert len(answer.allocations[0].keep) == 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return folders.write(build(TINY), tmp_path_factory.mktemp("model"), torch.float32)


@pytest.mark.parametrize("place", ["layer", "."])  # "." is where older versions wrote it
def test_load_with_and_without_a_layer(place: str, folder: Path, tmp_path: Path) -> None:
    bare = arr_coc.load(folder)
    assert bare.layer is None
    layer = ArrCocLayer(config_for(bare.adapter, **squares.SHAPE))
    layer.save_pretrained(tmp_path / "alone")
    assert arr_coc.load(folder, layer=tmp_path / "alone").layer is not None
    assert arr_coc.load(folder, layer=layer).layer is layer
    model = shutil.copytree(folder, tmp_path / "model")
    layer.save_pretrained(model / place)
    assert arr_coc.load(model).layer is not None  # auto: it is in the model's folder
    assert arr_coc.load(model, dtype="bfloat16").layer is not None
    assert arr_coc.load(model, layer=None).layer is None
    assert ArrCocLayer.from_pretrained(model).config == layer.config
    with pytest.raises(LayerError, match="holds no learned layer"):
        arr_coc.load(folder, layer=tmp_path / "nowhere")


@pytest.mark.parametrize("family", ["qwen2_vl", "llava_next", "idefics3"])
def test_training_and_inference_use_the_same_features(family: str, tmp_path: Path) -> None:
    vlm = squares.model(family)
    layer = squares.layer(vlm).eval()
    data = read_folder(squares.draw(tmp_path, 1, side=80))
    (example,) = load_examples(vlm, data, layer.config)
    image = data.pictures[0].still
    assert is_image(image)
    selection = selection_input(vlm, vlm.look(image), example.questions[0].sample.question)
    used = selection_features(selection, layer.config)
    assert [view.shape for view in used] == list(example.shape)
    for mine, its in zip(used, example.views, strict=True):
        assert torch.allclose(mine.channels, its.channels.float(), atol=1e-3)
        assert torch.allclose(mine.pixels, its.pixels.float(), atol=1e-3)
        assert its.tokens is not None
        assert torch.allclose(mine.tokens, its.tokens.float(), atol=2e-3)
    assert predict(layer, selection).relevance.shape == (selection.grid.n,)


def test_a_video_step_is_the_mean_of_its_frames() -> None:
    vlm = squares.model()
    layer = squares.confident(squares.layer(vlm))
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    frames = [noisy(48, 48, seed=number) for number in range(4)]
    prepared = trained.prepare(videos=[frames], text="Which one?", budget=10, selector="arr-coc")
    (found,) = prepared.allocations
    assert found.grid.views[0].t == 2
    assert len(found.keep) == 10
    textures = [arr_coc.TextureArray.from_image(np.asarray(frame)) for frame in frames]
    shown = texture_features(textures, found.grid.views[0], layer.config)
    halves = [
        texture_features(textures[:2], _still(found.grid), layer.config),
        texture_features(textures[2:], _still(found.grid), layer.config),
    ]
    assert torch.allclose(shown.channels, torch.cat([half.channels for half in halves]), atol=1e-6)


def _still(grid: Any) -> Any:
    return replace(grid.views[0], t=1)
