"""Dense features against slow references, written out place by place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from arr_coc.embedding.checkpoints import ClipTower, Siglip2Tower, SiglipTower
from arr_coc.errors import EncoderError
from tests.embedding import tiny

SHAPES = [(24, 24), (16, 36), (4, 60)]  # px: the towers' own square, another shape, one row of cells


def pictures(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


def norm(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + layer.eps).sqrt() * layer.weight + layer.bias


def clip_reference(model: Any, pixels: torch.Tensor, path: str) -> torch.Tensor:
    """The last block's value path, one place at a time, from the input that the stock model gives its last block."""
    stock = model.vision_model(pixels, interpolate_pos_encoding=True, output_hidden_states=True)
    before = stock.hidden_states[-2]
    block = model.vision_model.encoder.layers[-1]
    attention = block.self_attn
    rows = []
    for picture in before:
        for place in picture[1:]:
            x = norm(place, block.layer_norm1)
            value = attention.v_proj.weight @ x + attention.v_proj.bias
            value = attention.out_proj.weight @ value + attention.out_proj.bias
            if path == "block":
                value = place + value
                inner = block.mlp.fc1.weight @ norm(value, block.layer_norm2) + block.mlp.fc1.bias
                inner = inner * torch.sigmoid(1.702 * inner)  # quick gelu, CLIP's own
                value = value + block.mlp.fc2.weight @ inner + block.mlp.fc2.bias
            rows.append(model.visual_projection.weight @ norm(value, model.vision_model.post_layernorm))
    return torch.stack(rows).view(len(pixels), -1, model.config.projection_dim)


@pytest.mark.parametrize("path", ["value", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_clip_gives_each_place_the_last_blocks_value(shape: tuple[int, int], path: Any) -> None:
    model, pixels = tiny.model("clip"), pictures(*shape)
    with torch.no_grad():
        found = ClipTower(model, path).patch_features(pixels)
        assert torch.allclose(found, clip_reference(model, pixels, path), atol=1e-5)


def test_clip_value_differs_from_what_attention_made_of_it() -> None:
    model, pixels = tiny.model("clip"), pictures(24, 24)
    with torch.no_grad():
        hidden = model.vision_model(pixels).last_hidden_state[:, 1:]
        raw = model.visual_projection(model.vision_model.post_layernorm(hidden))
        value, block = (ClipTower(model, path).patch_features(pixels) for path in ("value", "block"))
    for other in (raw, block):
        assert (value - other).abs().mean() > 0.1 * value.abs().mean()


def test_clip_is_the_stock_model_where_attention_looks_at_one_place_only() -> None:
    """A picture of one cell, its class token the same as the cell: then attention has nothing else to gather."""
    model = tiny.model("clip")
    with torch.no_grad():
        states = model.vision_model(pictures(24, 24), output_hidden_states=True).hidden_states[-2]
        block = model.vision_model.encoder.layers[-1]
        alone = states[:, 5:6]
        attended, _ = block.self_attn(block.layer_norm1(alone), None)
        stock = model.visual_projection(model.vision_model.post_layernorm(attended))
        found = ClipTower(model).patch_features(pictures(24, 24))
    assert torch.allclose(found[:, 4], stock[:, 0], atol=1e-5)  # token 5 is place 4, behind the class token


@pytest.mark.parametrize("shape", SHAPES)
def test_siglip_gives_each_place_the_stock_head_of_that_place_alone(shape: tuple[int, int]) -> None:
    model, pixels = tiny.model("siglip"), pictures(*shape)
    with torch.no_grad():
        hidden = model.vision_model(pixels, interpolate_pos_encoding=True).last_hidden_state
        slow = torch.stack([model.vision_model.head(hidden[:, n : n + 1]) for n in range(hidden.shape[1])], dim=1)
        assert torch.allclose(SiglipTower(model).patch_features(pixels), slow, atol=1e-5)
        assert (slow - hidden).abs().mean() > 0.1 * slow.abs().mean()


@pytest.mark.parametrize("shape", SHAPES)
def test_siglip2_sees_patches_as_its_own_processor_cuts_them(shape: tuple[int, int]) -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import convert_image_to_patches

    model, pixels = tiny.model("siglip2"), pictures(*shape)
    cut = torch.stack([torch.as_tensor(convert_image_to_patches(one.numpy(), tiny.CELL)) for one in pixels])
    shapes = torch.tensor([[shape[0] // tiny.CELL, shape[1] // tiny.CELL]] * 2)
    with torch.no_grad():
        hidden = model.vision_model(cut, torch.ones(cut.shape[:2], dtype=torch.long), shapes).last_hidden_state
        slow = torch.stack([model.vision_model.head(hidden[:, n : n + 1]) for n in range(hidden.shape[1])], dim=1)
        assert torch.allclose(Siglip2Tower(model).patch_features(pixels), slow, atol=1e-5)


def test_siglip_without_its_head_is_refused() -> None:
    config = tiny.config("siglip")
    config.vision_config.vision_use_head = False
    from transformers import SiglipModel

    with pytest.raises(EncoderError, match="pooling head"):
        SiglipTower(SiglipModel(config))


def test_a_part_of_the_picture_moves_its_own_places_most() -> None:
    """Features are for localisation: what changes in a corner must be seen in that corner."""
    for kind in ("clip", "siglip", "siglip2"):
        encoder = tiny.encoder(kind)
        calm = torch.full((3, tiny.SIDE, tiny.SIDE), 0.5)
        struck = calm.clone()
        struck[:, : tiny.CELL, : tiny.CELL] = torch.rand(3, tiny.CELL, tiny.CELL)
        moved = 1 - F.cosine_similarity(encoder.dense(calm).features, encoder.dense(struck).features, dim=0)
        assert moved.argmax() == 0, kind
