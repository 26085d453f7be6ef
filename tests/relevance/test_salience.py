"""Salience by archetypes and by an encoder's attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image, ImageDraw

import arr_coc
from arr_coc.embedding import open_encoder
from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.relevance.salience import (
    FEATURES,
    WEIGHTS,
    archetype_matches,
    cell_features,
    salience_by,
    shipped,
    together,
)
from arr_coc.selectors.base import ImageSource
from arr_coc.types.grid import Grid
from tests.adapters.tiny_vlm import picture, wrapped
from tests.embedding import tiny
from tests.relevance.page import page_selection


def page() -> Image.Image:
    """Print on white paper at the top left, and nothing elsewhere."""
    image = Image.new("RGB", (560, 560), "white")
    pen = ImageDraw.Draw(image)
    for line in range(5):
        pen.text((30, 30 + 18 * line), "invoice number 20417 of 12 March", fill="black")
    return image


def test_archetypes_find_the_print_and_say_so() -> None:
    allocation = arr_coc.realize(page(), "Describe it.", budget="12.5%", salience="archetypes", coupling="none")
    rows = allocation.keep // allocation.grid.w
    assert "salience by archetypes (" in allocation.strategy
    assert "print" in allocation.strategy
    salience = allocation.scores["salience"].view(allocation.grid.h, allocation.grid.w)
    assert float(salience[1:5, 1:8].mean()) > 3 * float(salience[10:].mean())
    assert float((rows < 6).float().mean()) > 0.8


def test_the_shipped_archetypes_are_few_named_and_bounded() -> None:
    found = shipped()
    assert {"print", "object", "chart mark"} <= set(found.names)
    assert found.centre.shape == (len(found.names), len(FEATURES))
    assert len(found.names) <= 16
    assert WEIGHTS.stat().st_size < 8_000
    texture = arr_coc.TextureArray.from_image(page())
    view = Grid(1, 20, 20)
    matches = archetype_matches(texture, view)
    assert bool(((matches >= 0) & (matches <= 1)).all())
    assert bool((together(matches) >= matches.amax(0) - 1e-6).all())
    own = found.match(found.centre[:, :, None].transpose(0, 1))  # a centre is its own best match
    assert torch.allclose(own[..., 0].diagonal(), found.height)
    assert cell_features(texture, view).shape == (len(FEATURES), 20, 20)


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_an_encoders_attention_is_that_of_its_own_layer(kind: str, tmp_path: Path) -> None:
    """Against the stock model with eager attention, which returns the class token's and the pooling head's own weights."""
    encoder = open_encoder(tiny.checkpoint(kind, tmp_path))
    side = encoder.side
    found = encoder.attention(torch.rand(3, side, side, generator=torch.Generator().manual_seed(0)))
    assert found.shape == (side // encoder.cell,) * 2
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)
    pixels = torch.rand(3, side, side, generator=torch.Generator().manual_seed(0))[None]
    pixels = (pixels - encoder._mean) / encoder._deviation
    vision = encoder.tower.vision
    if kind == "clip":
        vision.config._attn_implementation = "eager"
        weights = vision(pixels, output_attentions=True).attentions[-1][0, :, 0, 1:].mean(0)
    else:
        hidden, head = encoder.tower.hidden(pixels), vision.head
        weights = head.attention(head.probe, hidden, hidden, need_weights=True)[1][0, 0]
    assert torch.allclose(found.flatten(), weights / weights.sum(), atol=1e-5)


def test_the_models_own_encoder_and_an_image_text_encoder_decide_what_stands_out(tmp_path: Path) -> None:
    vlm = wrapped("qwen2_vl")
    by_model = arr_coc.realize(picture(64, 64), "Describe it.", budget="25%", using=vlm, salience="encoder")
    usual = arr_coc.realize(picture(64, 64), "Describe it.", budget="25%", using=vlm)
    assert "salience by the model's vision encoder" in by_model.strategy
    assert not torch.equal(by_model.scores["salience"], usual.scores["salience"])
    glanced = arr_coc.realize(
        picture(64, 64), "Describe it.", budget="25%", using=vlm, salience="encoder", glance="50%"
    )
    assert "salience by the model's vision encoder" in glanced.strategy
    assert len(glanced.encoded) < glanced.n
    encoder = open_encoder(tiny.checkpoint("clip", tmp_path))
    texture = arr_coc.TextureArray.from_image(page())
    plain = page_selection()
    source = ImageSource(embeddings=SimpleNamespace(encoder=encoder), texture=texture)
    found, words = salience_by("encoder", replace(plain, source=source, attention={}), torch.zeros(plain.grid.n))
    assert words == "salience by the image-text encoder clip"
    whole = torch.nn.functional.interpolate(
        encoder.attention(texture.pixels)[None, None], texture.size, mode="bilinear"
    )
    pooled = torch.nn.functional.adaptive_avg_pool2d(whole, (plain.grid.h, plain.grid.w)).flatten()
    assert torch.allclose(found, pooled / pooled.max(), atol=1e-5)


def test_what_cannot_be_is_said_in_a_sentence() -> None:
    with pytest.raises(
        SelectorError, match="salience='encoder' needs a model whose encoder's attention is recorded, or embeddings"
    ):
        arr_coc.realize(page(), "Describe it.", salience="encoder")
    with pytest.raises(ArrCocError, match="expected salience as one of texture, archetypes, encoder, got 'eyes'"):
        arr_coc.realize(page(), "Describe it.", salience="eyes")
