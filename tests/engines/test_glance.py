"""The choice for an engine: the cells that the package itself would encode, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc import reader
from arr_coc.adapters.loading import load_processor
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.engines import glance as glance_module
from arr_coc.engines.glance import CACHED_PICTURES, Glance, last_question
from arr_coc.engines.options import GlanceOptions, ServerOptions
from arr_coc.errors import AllocationError, EncoderError, LayerError, SelectorError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.model import LayerConfig
from arr_coc.types.grid import Grid
from tests.conftest import noise
from tests.embedding.fake import Colours, photo
from tests.embedding.test_embeddings import projection

GRID = Grid(1, 37, 17)  # of the receipt, in the reader's cells
TOTAL = "What is the total amount?"


@pytest.fixture(scope="module")
def tokenize() -> Any:
    tokenizer = load_processor(reader.WEIGHTS).tokenizer
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def made(tokenize: Any, model: Path = reader.WEIGHTS, **server: Any) -> Glance:
    return Glance(ServerOptions.parse(server), str(model), tokenize)


def choose(glance: Glance, picture: Any, grid: Grid = GRID, question: str = TOTAL, **options: Any) -> list[int]:
    chosen = glance.choose([picture], [grid], question, GlanceOptions().merge(options))
    return chosen[0].tolist()


@pytest.mark.parametrize("learned", [True, False], ids=["layer", "texture"])
def test_the_cells_are_those_of_an_answers_glance(learned: bool, tokenize: Any) -> None:
    picture = arr_coc.pictures.receipt()
    vlm = arr_coc.load("reader", layer="auto" if learned else None)
    glance = made(tokenize, layer="auto" if learned else None)
    assert glance.reads_question(GlanceOptions(budget="25%")) == learned
    for budget in ("12.5%", "mass 50%", "auto"):
        expected = vlm.prepare(picture, TOTAL, glance=budget).allocations[0]
        grid = expected.grid.views[0]
        assert choose(glance, picture, grid, budget=budget) == expected.encoded.tolist()


def test_the_question_matters_with_a_layer_and_not_without_one(tokenize: Any) -> None:
    picture = arr_coc.pictures.receipt()
    for layer, same in (("auto", False), (None, True)):
        glance = made(tokenize, layer=layer)
        cells = [choose(glance, picture, question=one, budget="12.5%") for one in (TOTAL, "What is the date?")]
        assert (cells[0] == cells[1]) == same


def test_embeddings_relate_cells_to_the_question(tokenize: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Embeddings(Colours(), projection(Colours()))
    monkeypatch.setattr(glance_module, "Embeddings", {"colours": known}.__getitem__)
    glance = made(tokenize, layer=None, embeddings="colours")
    assert glance.reads_question(GlanceOptions(budget=8))
    assert glance.identity == known.identity
    picture, grid, question = photo(), Grid(1, 6, 8), "Where is it red?"
    expected = arr_coc.realize(picture, question, grid, "25%", using=known)
    assert choose(glance, picture, grid, question, budget="25%") == expected.keep.tolist()
    assert choose(glance, picture, grid, "Where is it blue?", budget="25%") != expected.keep.tolist()


def test_embeddings_that_do_not_exist(tokenize: Any) -> None:
    with pytest.raises(EncoderError, match="nonsense"):
        made(tokenize, embeddings="nonsense")


def test_pictures_of_any_kind_and_a_rotation_flag_that_the_engine_ignores(tokenize: Any) -> None:
    glance = made(tokenize, layer=None)
    pixels = (noise(120, 80).permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    pixels[:40] //= 8
    plain, grid = Image.fromarray(pixels), Grid(1, 6, 4)
    expected = choose(glance, plain, grid, budget=8)
    rotated = plain.copy()
    rotated.getexif()[0x0112] = 6
    for same in (rotated, pixels, torch.from_numpy(pixels).permute(2, 0, 1)):
        assert choose(glance, same, grid, budget=8) == expected


def test_textures_are_kept_for_the_next_question(tokenize: Any) -> None:
    glance = made(tokenize, layer=None)
    pictures = [Image.fromarray(np.full((32, 32, 3), shade, dtype=np.uint8)) for shade in range(CACHED_PICTURES + 2)]
    first = glance._source(pictures[0])
    assert glance._source(pictures[0].copy()) is first
    for picture in pictures:
        glance._source(picture)
    assert len(glance._sources) == CACHED_PICTURES
    assert glance._source(pictures[0]) is not first


def test_given_cells_and_counts(tokenize: Any) -> None:
    glance, picture = made(tokenize, layer=None), Image.new("RGB", (40, 40))
    grid = Grid(1, 4, 4)
    assert choose(glance, picture, grid, cells=[[3, 5]]) == [3, 5]
    assert choose(glance, picture, grid) == list(range(16))
    assert len(choose(glance, picture, grid, budget=1)) == 1
    with pytest.raises(AllocationError, match="expected cells for each of the 1 pictures, got 2 lists"):
        choose(glance, picture, grid, cells=[[3], [5]])
    with pytest.raises(AllocationError, match="between 0 and 15"):
        choose(glance, picture, grid, cells=[[16]])
    with pytest.raises(SelectorError, match="expected a selector that chooses cells, got 'resize'"):
        choose(glance, picture, grid, selector="resize", budget=8)
    with pytest.raises(SelectorError, match="expected a selector that chooses before encoding, got 'visionzip'"):
        choose(glance, picture, grid, selector="visionzip", budget=8)


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("<|user|><|vision_start|><|image_pad|><|vision_end|>What?<|assistant|>", "What?"),
        ("<|user|>One?<|assistant|>1<|end|><|user|>Two?<|assistant|>", "Two?"),
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA <|image_pad|>b\nc?<|im_end|>\n"
            "<|im_start|>assistant\n",
            "A b\nc?",
        ),
        ("<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\nTwo?", "Two?"),
        ("<|image_pad|>Describe: a < b | c", "Describe: a < b | c"),
        ("<|user|>" + 3000 * "a" + "What?<|assistant|>", 1995 * "a" + "What?"),
        ("", ""),
    ],
    ids=range(7),
)
def test_the_question_is_the_last_user_turn(prompt: str, question: str) -> None:
    assert last_question(prompt) == question


def test_a_layer_of_another_model_is_refused(tokenize: Any, tmp_path: Path) -> None:
    ArrCocLayer(LayerConfig("another-model", token_width=8, word_width=8)).save_pretrained(tmp_path)
    with pytest.raises(LayerError, match=r'trained for another-model, and the model is .*, or set "layer" to null'):
        made(tokenize, layer=str(tmp_path))
