"""A layer sees a picture once, and is asked about it often."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from arr_coc import TextureArray
from arr_coc.layer.blocks import Lines, Question, Words
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.heads import Coupling
from arr_coc.layer.inference import judge, predict, seen
from arr_coc.layer.model import ArrCocLayer
from arr_coc.selectors.base import ImageSource, SelectionInput
from arr_coc.types.grid import Grid
from tests.conftest import structured
from tests.selectors.selections import DIMENSIONS, TILES, selection, words

GRID = Grid(1, 6, 9)


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> ArrCocLayer:
    """One with weights that say something, and that counts how often it looks."""
    torch.manual_seed(0)
    made = ArrCocLayer(LayerConfig("some", token_width=DIMENSIONS, word_width=DIMENSIONS, width=16, heads=2)).eval()
    for weights in made.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    made.looks = 0  # type: ignore[assignment]
    own = made.see

    def counted(*what: Any) -> Any:
        made.looks += 1  # type: ignore[operator]
        return own(*what)

    monkeypatch.setattr(made, "see", counted)
    return made


def asked(seed: int, **changes: Any) -> Any:
    return replace(BASE, question=words(seed), **changes)


BASE: SelectionInput = selection(GRID, None)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """A texture of its own for every test."""
    global BASE
    texture = TextureArray.from_image(structured(60, 90))
    BASE = replace(BASE, source=ImageSource(texture=texture))


def test_a_second_question_does_not_look_again_and_hears_the_same(layer: ArrCocLayer) -> None:
    for number in range(3):
        one = asked(number)
        found = predict(layer, one)
        with torch.inference_mode():
            heard = one.question.embeddings[None]
            whole = judge(
                layer, [seen(one, layer.config)], torch.zeros(1, dtype=torch.long), heard, torch.ones(1, heard.shape[1], dtype=torch.bool)
            )  # fmt: skip
        assert torch.equal(found.relevance, whole.relevance[0].sigmoid())
        assert layer.looks == 2 + number  # type: ignore[comparison-overlap]  # once for all questions, and once each for `judge`


def test_other_tokens_cells_or_weights_are_looked_at_anew(layer: ArrCocLayer) -> None:
    assert BASE.tokens is not None
    predict(layer, asked(0))
    predict(layer, asked(1))
    assert layer.looks == 1  # type: ignore[comparison-overlap]
    some = torch.arange(0, GRID.n, 2)
    others: list[dict[str, Any]] = [
        {"tokens": None}, {"tokens": BASE.tokens.clone()}, {"tokens": BASE.tokens[::2], "candidates": some},
    ]  # fmt: skip
    for number, changes in enumerate(others):
        predict(layer, asked(0, **changes))
        assert layer.looks == 2 + number  # type: ignore[comparison-overlap]
    before = predict(layer, asked(0)).relevance
    looks = int(layer.looks)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.from_channels.weight += 1
    assert not torch.equal(predict(layer, asked(0)).relevance, before)
    assert layer.looks == looks + 1  # type: ignore[comparison-overlap]


def test_another_layer_looks_for_itself(layer: ArrCocLayer) -> None:
    other = ArrCocLayer(layer.config).eval()
    one, two = predict(layer, asked(0)).relevance, predict(other, asked(0)).relevance
    assert not torch.equal(one, two)


def test_tiles_are_remembered_too(layer: ArrCocLayer) -> None:
    tiles = replace(selection(TILES, None), source=BASE.source)
    predict(layer, tiles)
    looks = layer.looks
    predict(layer, replace(tiles, question=words(3)))
    assert looks == layer.looks == len(TILES.views)


def test_a_copied_texture_drags_no_layer_along(layer: ArrCocLayer) -> None:
    texture = BASE.texture
    predict(layer, asked(0))
    for made in (copy.deepcopy(texture), pickle.loads(pickle.dumps(texture))):
        looks = int(layer.looks)  # type: ignore[arg-type]
        predict(layer, asked(1, source=ImageSource(texture=made)))
        assert layer.looks == looks + 1  # type: ignore[comparison-overlap]


def test_lines_attend_along_their_row_and_column_only() -> None:
    torch.manual_seed(0)
    lines, cells = Lines(8, 2), torch.randn(2, 3, 5, 8)
    into = lines.into(lines.norm(cells)).view(2, 3, 5, 3, 2, 4)
    found = torch.zeros(2, 3, 5, 2, 4)
    for picture in range(2):
        for y in range(3):
            for x in range(5):
                for head, line in ((0, into[picture, y]), (1, into[picture, :, x])):
                    share = (line[:, 1, head] @ into[picture, y, x, 0, head] / 2).softmax(0)
                    found[picture, y, x, head] = share @ line[:, 2, head]
    assert torch.allclose(lines(cells), cells + lines.out(found.flatten(-2)), atol=1e-5)


def test_cells_attend_to_the_words_that_are_there() -> None:
    torch.manual_seed(0)
    question, cells, words = Question(8, 2), torch.randn(2, 3, 5, 8), torch.randn(2, 4, 8)
    there = torch.tensor([[True, True, True, True], [True, True, False, False]])
    query = question.query(question.norm(cells)).view(2, 15, 2, 4).transpose(1, 2)
    key, value = question.keys(words).view(2, 4, 2, 2, 4).permute(2, 0, 3, 1, 4)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=there[:, None, None])
    expected = cells + question.out(found.transpose(1, 2).reshape(2, 3, 5, 8))
    assert torch.allclose(question(cells, words, there), expected, atol=1e-6)
    assert torch.equal(question(cells, words, there, question.wonder(cells)), question(cells, words, there))


def test_words_are_heard_with_those_around_them() -> None:
    torch.manual_seed(0)
    words, asked = torch.randn(2, 7, 5), torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    layer = Words(5, 8)
    here = layer.into(layer.norm(words)) * asked[..., None]
    for around in layer.around:
        here = (here + F.gelu(around(here.transpose(1, 2)).transpose(1, 2))) * asked[..., None]
    assert torch.allclose(layer(words, asked), layer.out(here), atol=1e-6)


def test_likeness_is_that_of_mapped_cells_and_mapped_words() -> None:
    torch.manual_seed(0)
    coupling, cells, words = Coupling(8, "max"), torch.randn(2, 3, 5, 8), torch.randn(2, 4, 8)
    alike = coupling.cells(cells).flatten(1, 2) @ coupling.words(words).transpose(1, 2) / 8**0.5
    expected = alike.amax(-1).view(2, 3, 5) + coupling.own(cells)[..., 0]
    found = coupling(cells, words, torch.ones(2, 4, dtype=torch.bool))
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_question_is_heard_once(layer: ArrCocLayer) -> None:
    layer.remember(torch.randn(5, layer.config.width))
    times = []
    layer.words.register_forward_hook(lambda *what: times.append(1))
    predict(layer, replace(selection(TILES, None), source=BASE.source))  # whatever it is for, and for all tiles
    assert len(times) == 1
