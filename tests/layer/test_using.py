"""A layer in use: loaded with a model, asked for by name, left out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, LayerError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.config import CHANNELS
from arr_coc.layer.identity import config_for
from arr_coc.layer.image_novelty import strangeness, told, usual
from arr_coc.layer.inference import picture, predict, seen
from arr_coc.layer.question_novelty import padded
from arr_coc.relevance import coupling
from arr_coc.relevance.realizing import realized
from arr_coc.relevance.selector import AUTO_GLANCE, ArrCoc
from arr_coc.training.examples import load_examples, read_folder, selection_input
from arr_coc.vlm.model import VLM
from arr_coc.vlm.request import is_image
from recipes.reader import folder as folders
from recipes.reader.model import TINY, build
from tests.adapters.tiny_vlm import picture as noisy
from tests.training import squares

ASKED: dict[str, Any] = {"budget": 9, "max_new_tokens": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return folders.write(build(TINY), tmp_path_factory.mktemp("model"), torch.float32)


def test_loading_with_and_without(folder: Path, tmp_path: Path) -> None:
    bare = arr_coc.load(folder)
    assert bare.layer is None
    layer = ArrCocLayer(config_for(bare.adapter, **squares.SHAPE))
    layer.save_pretrained(tmp_path)
    assert arr_coc.load(folder, layer=tmp_path).layer is not None
    assert arr_coc.load(folder, layer=layer).layer is layer
    layer.save_pretrained(folder)
    try:
        assert arr_coc.load(folder).layer is not None  # auto: it lies beside the model
        assert arr_coc.load(folder, dtype="bfloat16").layer is not None
        assert arr_coc.load(folder, layer=None).layer is None
    finally:
        for name in ("layer.safetensors", "layer.json"):
            (folder / name).unlink()
    with pytest.raises(LayerError, match="holds no learned layer"):
        arr_coc.load(folder, layer=tmp_path / "nowhere")


def test_coupling_by_a_layer_that_is_not_there() -> None:
    vlm = squares.model()
    selection = selection_input(vlm, vlm.look(noisy(64, 64)), "Which?")
    with pytest.raises(ArrCocError, match="expected a learned layer for coupling 'layer', and this model has none"):
        ArrCoc(coupling="layer").select(selection)


def test_untrained_is_what_a_model_without_a_layer_gets() -> None:
    vlm = squares.model()
    taught = arr_coc.wrap(vlm.model, vlm.processor, layer=sure(squares.layer(vlm)))
    image = noisy(64, 64)
    plain = vlm.ask(image, "Which one?", **ASKED).allocations[0]
    untrained = taught.ask(image, "Which one?", selector="arr-coc-untrained", **ASKED).allocations[0]
    learned = taught.ask(image, "Which one?", **ASKED).allocations[0]
    assert torch.equal(plain.keep, untrained.keep)
    assert torch.equal(plain.relevance, untrained.relevance)
    assert not torch.equal(plain.relevance, learned.relevance)


def sure(layer: ArrCocLayer) -> ArrCocLayer:
    """One that is never in doubt: otherwise others are asked."""
    with torch.no_grad():
        layer.coupling.own.bias += 20
        layer.coupling.own.weight *= 20
    return layer


@pytest.mark.parametrize("family", ["qwen2_vl", "llava_next", "idefics3"])
def test_training_and_use_see_the_same(family: str, tmp_path: Path) -> None:
    vlm = squares.model(family)
    layer = squares.layer(vlm).eval()
    data = read_folder(squares.draw(tmp_path, 1, side=80))
    (lesson,) = load_examples(vlm, data, layer.config)
    image = data.pictures[0].still
    assert is_image(image)
    selection = selection_input(vlm, vlm.look(image), lesson.questions[0].sample.question)
    used = seen(selection, layer.config)
    assert [view.shape for view in used] == list(lesson.shape)
    for mine, its in zip(used, lesson.views, strict=True):
        assert torch.allclose(mine.channels, its.channels.float(), atol=1e-3)
        assert torch.allclose(mine.pixels, its.pixels.float(), atol=1e-3)
        assert its.tokens is not None
        assert torch.allclose(mine.tokens, its.tokens.float(), atol=2e-3)
    assert predict(layer, selection).relevance.shape == (selection.grid.n,)


def test_a_video_is_judged_moment_by_moment() -> None:
    vlm = squares.model()
    layer = sure(squares.layer(vlm))
    taught = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    frames = [noisy(48, 48, seed=number) for number in range(4)]
    prepared = taught.prepare(videos=[frames], text="Which one?", budget=10, selector="arr-coc")
    (found,) = prepared.allocations
    assert found.grid.views[0].t == 2
    assert len(found.keep) == 10
    textures = [arr_coc.TextureArray.from_image(np.asarray(frame)) for frame in frames]
    shown = picture(textures, found.grid.views[0], layer.config)
    halves = [
        picture(textures[:2], _still(found.grid), layer.config),
        picture(textures[2:], _still(found.grid), layer.config),
    ]
    assert torch.allclose(shown.channels, torch.cat([half.channels for half in halves]), atol=1e-6)


def _still(grid: Any) -> Any:
    from dataclasses import replace

    return replace(grid.views[0], t=1)


def test_how_much_is_encoded_is_left_to_a_layer_that_is_sure() -> None:
    vlm = squares.model()
    taught = arr_coc.wrap(vlm.model, vlm.processor, layer=sure(squares.layer(vlm)))
    image = noisy(128, 128)
    every = vlm.ask(image, "Which one?", glance="all", **ASKED).tokens["encoded"]

    def encoded(model: VLM, **options: Any) -> int:
        return int(model.ask(image, "Which one?", glance="auto", **ASKED | options).tokens["encoded"])

    assert encoded(taught) == math.ceil(AUTO_GLANCE * every) < every
    assert encoded(vlm) == every  # nothing was learned for this model
    assert encoded(taught, selector="arr-coc-untrained") == every
    assert encoded(taught, selector="divprune") == every  # it cannot say
    for how in ("none", "scout", "tokens"):  # the layer has no say
        assert encoded(taught, selector=ArrCoc(coupling=how)) == every
    for vague in ("What is this?", " "):
        assert taught.ask(image, vague, glance="auto", **ASKED).tokens["encoded"] == every
    strange = sure(squares.layer(vlm))
    strange.unusual.copy_(1e6 * torch.eye(len(strange.usual)))
    assert encoded(arr_coc.wrap(vlm.model, vlm.processor, layer=strange)) == every


def test_pictures_of_another_kind_are_strange() -> None:
    channels = [torch.rand(1, 10, 6, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(64)]
    mean, inverse = usual([told(one, CHANNELS) for one in channels])
    like = [strangeness(told(one, CHANNELS), mean, inverse) for one in channels]
    assert sum(like) / len(like) == pytest.approx(1, abs=0.2)
    assert strangeness(told(0.1 * channels[0], CHANNELS), mean, inverse) > 10 * max(like)
    moved = channels[0].clone()
    moved[:, [CHANNELS.index(name) for name in ("x", "y", "eccentricity")]] = (
        0.9  # where cells lie is the same everywhere
    )
    assert strangeness(told(moved, CHANNELS), mean, inverse) == pytest.approx(like[0])


def test_a_strange_picture_is_not_left_to_a_layer() -> None:
    vlm = squares.model()
    layer = sure(squares.layer(vlm))
    taught = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    image = noisy(64, 64)
    assert "layer" in taught.ask(image, "Which one?", **ASKED).allocation.strategy
    layer.unusual.copy_(1e6 * torch.eye(len(layer.usual)))
    assert "layer" not in taught.ask(image, "Which one?", **ASKED).allocation.strategy


def test_a_question_in_new_words_is_put_to_a_scout_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    layer = sure(squares.layer(vlm))
    taught = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    image = noisy(64, 64)

    def strategy(question: str) -> str:
        return taught.ask(image, question, **ASKED).allocation.strategy

    assert "(coupling by layer)" in strategy("Which one?")  # nothing is remembered: every question is believed
    layer.remember(heard_of(taught, layer, ["Which one?", "Where is the square?"]))
    assert "(coupling by layer)" in strategy("Which one?")
    monkeypatch.setattr(coupling, "CONFIRMED", 0.0)  # whatever the scout looks at
    assert "(coupling by layer, confirmed by probe)" in strategy("9173, 4, 4, 4?")
    monkeypatch.setattr(coupling, "CONFIRMED", 1.1)
    assert "(coupling by probe)" in strategy("9173, 4, 4, 4?")


def test_before_the_encoder_new_words_make_a_layer_one_voice_among_others() -> None:
    vlm = squares.model()
    layer = sure(squares.layer(vlm))
    layer.remember(heard_of(vlm, layer, ["Which one?", "Where is the square?"]))
    taught = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    for question, by, weighed in (("Which one?", "layer", False), ("9173, 4, 4, 4?", "layer, in new words", True)):
        selection = selection_input(taught, taught.look(noisy(64, 64)), question)
        found = realized(replace(selection, tokens=None, probe=None, k=9))
        assert found.strategy.endswith(f"(coupling by {by})")
        assert ("weight of text" in found.tensions) is weighed  # the layer's own relevance knows no such weight
    everything = taught.prepare(noisy(64, 64), "9173, 4, 4, 4?", glance="auto", budget=2)
    assert len(everything.allocations[0].encoded) == everything.allocations[0].n  # nobody knows better


def heard_of(vlm: VLM, layer: ArrCocLayer, questions: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return layer.hear(*padded([vlm.adapter.embed(vlm.prompter.ids(one)).detach() for one in questions]))
