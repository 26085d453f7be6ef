"""A model's own tokens as an encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.types.grid import Grid, Mosaic
from arr_coc.vlm.token_encoder import VlmTokens, evenly
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import picture


@pytest.fixture(params=families.QWEN)
def vlm(request: Any) -> Any:
    return arr_coc.wrap(families.model(request.param), tiny_vlm.processor(request.param))


def test_cells_are_the_tokens_that_the_stock_encoder_makes(vlm: Any) -> None:
    image = picture(72, 56)
    dense = VlmTokens(vlm).dense(image)
    inputs = vlm.processor(images=[image], text=["<|image_pad|>"], return_tensors="pt")
    with torch.no_grad():
        stock = vlm.model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output[0]
    rows, columns = inputs["image_grid_thw"][0, 1:] // 2
    assert dense.grid == (rows, columns)
    for row in range(rows):
        for column in range(columns):
            token = stock[row * columns + column]
            assert torch.allclose(dense.features[:, row, column], token / token.norm(), atol=1e-5)


def test_a_question_is_the_mean_of_its_words_embeddings(vlm: Any) -> None:
    table = vlm.model.get_input_embeddings().weight.detach()
    mean = table[[ord(letter) for letter in "stop sign"]].mean(0)
    encoder = VlmTokens(vlm)
    assert torch.allclose(encoder.text(["Where is the stop sign?"])[0], mean / mean.norm(), atol=1e-5)
    assert encoder.width == table.shape[1]


def test_both_modes_are_the_models_own_way_of_looking(vlm: Any) -> None:
    encoder = VlmTokens(vlm)
    image = picture(300, 200)
    assert torch.equal(encoder.dense(image, "fast").features, encoder.dense(image, "native").features)


def test_identity_follows_what_makes_the_tokens() -> None:
    def made(change: str = "") -> str:
        model = families.model("qwen2_vl")
        for name, weights in model.named_parameters():
            if change and change in name:
                weights.data += 1
        return VlmTokens(arr_coc.wrap(model, tiny_vlm.processor("qwen2_vl"))).identity

    assert made() == made() == made("language_model.layers.0")  # later than any token
    assert len({made(), made("visual.merger"), made("embed_tokens")}) == 3


def test_an_even_grid_is_taken_as_it_is() -> None:
    tokens = torch.rand(6, 4)
    assert torch.equal(evenly(tokens, Grid(1, 2, 3)), tokens.T.reshape(4, 2, 3))


def test_what_was_cut_off_is_zero() -> None:
    tokens = torch.rand(4, 5) + 1
    found = evenly(tokens, Grid(1, 2, 2, (0.25, 0.0, 0.75, 1.0)))  # the middle half of a wide picture
    assert found.shape == (5, 2, 4)
    assert torch.equal(found[:, :, 1:3], tokens.T.reshape(5, 2, 2))
    assert not found[:, :, [0, 3]].any()


def test_tiles_lie_over_the_overview() -> None:
    """An overview of 2 x 2 cells, and one tile of 2 x 2 over the upper left quarter."""
    tokens = torch.arange(1.0, 9.0)[:, None]
    found = evenly(tokens, Mosaic((Grid(1, 2, 2), Grid(1, 2, 2, (0.0, 0.0, 0.5, 0.5)))))
    assert found[0].tolist() == [[5, 6, 2, 2], [7, 8, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
