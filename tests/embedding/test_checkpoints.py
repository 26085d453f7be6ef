"""Checkpoints as encoders: opened from folders, in half precision, against slow references, and with broken files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, SiglipModel

from arr_coc.embedding import open_encoder
from arr_coc.embedding.checkpoints import (
    CAPTION,
    TOWERS,
    ClipTower,
    ContrastiveEncoder,
    Siglip2Tower,
    SiglipTower,
    convert_open_clip_weights,
)
from arr_coc.errors import EncoderError
from recipes.reader import vocabulary
from tests.embedding import tiny

KINDS = ["clip", "siglip", "siglip2"]
QUESTIONS = ["Where is the dog?", "What colour is the car on the left?"]


@pytest.fixture(params=KINDS)
def folder(request: Any, tmp_path: Path) -> Path:
    return tiny.checkpoint(request.param, tmp_path)


def test_a_folder_gives_the_encoder_that_was_saved(folder: Path) -> None:
    opened = open_encoder(folder)
    tower = TOWERS[opened.name](tiny.model(opened.name))
    made = ContrastiveEncoder(tower, AutoTokenizer.from_pretrained(folder), tiny.MEAN, tiny.DEVIATION, tiny.CPU)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8))
    assert torch.allclose(opened.dense(image).features, made.dense(image).features, atol=1e-5)
    assert torch.allclose(opened.text(QUESTIONS), made.text(QUESTIONS), atol=1e-5)
    assert opened.identity == made.identity
    assert opened.identity.startswith(opened.name + "-")


def test_a_copied_folder_is_the_same_encoder(folder: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, other)
    assert open_encoder(folder).identity == open_encoder(str(other)).identity


@pytest.mark.parametrize("kind", KINDS)
def test_text_equals_the_stock_model_on_a_caption(kind: str) -> None:
    encoder = tiny.encoder(kind)
    words = encoder.tokenizer(
        ["a photo of dog"], padding="max_length" if kind != "clip" else False, max_length=40, return_tensors="pt"
    )
    with torch.no_grad():
        stock = encoder.tower.model.get_text_features(
            input_ids=words["input_ids"], attention_mask=words["attention_mask"]
        ).pooler_output
    assert torch.allclose(encoder.text(["Where is the dog?"]), torch.nn.functional.normalize(stock, dim=1), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_batching_does_not_change_a_question(kind: str) -> None:
    encoder = tiny.encoder(kind)
    together, alone = encoder.text(QUESTIONS), torch.cat([encoder.text([question]) for question in QUESTIONS])
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together.norm(dim=1), torch.ones(2), atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_normalised_by_the_checkpoints_mean_and_deviation(kind: str) -> None:
    encoder = tiny.encoder(kind)
    image = torch.rand(3, tiny.SIDE, tiny.SIDE)
    by_hand = (image - torch.tensor(tiny.MEAN).view(3, 1, 1)) / torch.tensor(tiny.DEVIATION).view(3, 1, 1)
    with torch.no_grad():
        raw = encoder.tower.patch_features(by_hand[None])[0].T.reshape(encoder.width, 6, 6)
    assert torch.allclose(encoder.dense(image).features, raw / raw.norm(dim=0), atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_only_rounds(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    full, half = tiny.encoder(kind), tiny.encoder(kind, dtype)
    for mode in ("fast", "native"):
        image = torch.rand(3, 40, 52)
        there, here = full.dense(image, mode).features, half.dense(image, mode).features  # type: ignore[arg-type]
        assert here.dtype == torch.float32
        assert (here - there).abs().max() < tolerance
        assert not torch.equal(here, there)  # it did compute in half precision
    assert (half.text(QUESTIONS) - full.text(QUESTIONS)).abs().max() < tolerance
    assert half.identity == full.identity


def test_identity_covers_weights_and_settings() -> None:
    def made(seed: int = 0, path: Any = "value", mean: list[float] = tiny.MEAN) -> str:
        tower = ClipTower(tiny.model("clip", seed), path)
        return ContrastiveEncoder(tower, tiny.tokenizer(), mean, tiny.DEVIATION, tiny.CPU).identity

    assert made() == made() == tiny.encoder("clip").identity
    assert len({made(), made(seed=1), made(path="block"), made(mean=[0.5, 0.5, 0.5])}) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda(folder: Path, dtype: torch.dtype) -> None:
    here, there = open_encoder(folder), open_encoder(folder, "cuda", dtype)
    image = torch.rand(3, 40, 52)
    for mode in ("fast", "native"):
        features = there.dense(image, mode).features  # type: ignore[arg-type]
        assert features.is_cuda
        assert features.dtype == dtype
        assert (features.cpu().float() - here.dense(image, mode).features).abs().max() < 0.08  # type: ignore[arg-type]


def test_broken_folders_get_one_sentence(folder: Path) -> None:
    weights = folder / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:1000])
    with pytest.raises(EncoderError, match="cannot load the encoder"):
        open_encoder(folder)
    weights.write_bytes(kept)
    settings = folder / "preprocessor_config.json"
    settings.write_text("{}")
    with pytest.raises(EncoderError, match="image_mean"):
        open_encoder(folder)
    settings.unlink()
    with pytest.raises(EncoderError, match="cannot load the encoder"):
        open_encoder(folder)


def test_a_checkpoint_without_some_weights_is_refused(tmp_path: Path) -> None:
    place = tiny.checkpoint("clip", tmp_path)
    stored = load_file(place / "model.safetensors")
    del stored["visual_projection.weight"]
    save_file(stored, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(EncoderError, match=r"lacks 1 of its weights, e\.g\. visual_projection\.weight"):
        open_encoder(place)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(EncoderError, match="type 'bert', which is no encoder"):
        open_encoder(tmp_path)


# Towers against slow references, patch by patch

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
def test_clip_uses_the_last_blocks_value_path(shape: tuple[int, int], path: Any) -> None:
    model, pixels = tiny.model("clip"), pictures(*shape)
    with torch.no_grad():
        found = ClipTower(model, path).patch_features(pixels)
        assert torch.allclose(found, clip_reference(model, pixels, path), atol=1e-5)


def test_clip_value_differs_from_the_hidden_state() -> None:
    model, pixels = tiny.model("clip"), pictures(24, 24)
    with torch.no_grad():
        hidden = model.vision_model(pixels).last_hidden_state[:, 1:]
        raw = model.visual_projection(model.vision_model.post_layernorm(hidden))
        value, block = (ClipTower(model, path).patch_features(pixels) for path in ("value", "block"))
    for other in (raw, block):
        assert (value - other).abs().mean() > 0.1 * value.abs().mean()


def test_clip_equals_the_stock_block_on_a_single_token() -> None:
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
def test_siglip_equals_the_stock_head_on_each_patch(shape: tuple[int, int]) -> None:
    model, pixels = tiny.model("siglip"), pictures(*shape)
    with torch.no_grad():
        hidden = model.vision_model(pixels, interpolate_pos_encoding=True).last_hidden_state
        slow = torch.stack([model.vision_model.head(hidden[:, n : n + 1]) for n in range(hidden.shape[1])], dim=1)
        assert torch.allclose(SiglipTower(model).patch_features(pixels), slow, atol=1e-5)
        assert (slow - hidden).abs().mean() > 0.1 * slow.abs().mean()


@pytest.mark.parametrize("shape", SHAPES)
def test_siglip2_patches_equal_its_processors(shape: tuple[int, int]) -> None:
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
    with pytest.raises(EncoderError, match="pooling head"):
        SiglipTower(SiglipModel(config))


def test_a_change_in_a_corner_changes_that_corner_most() -> None:
    """Features are for localisation: what changes in a corner must be seen in that corner."""
    for kind in ("clip", "siglip", "siglip2"):
        encoder = tiny.encoder(kind)
        calm = torch.full((3, tiny.SIDE, tiny.SIDE), 0.5)
        struck = calm.clone()
        struck[:, : tiny.CELL, : tiny.CELL] = torch.rand(3, tiny.CELL, tiny.CELL)
        moved = 1 - F.cosine_similarity(encoder.dense(calm).features, encoder.dense(struck).features, dim=0)
        assert moved.argmax() == 0, kind


# open_clip, against its arithmetic written out with torch's own layers

WIDTH, WORDS, JOINT, LAYERS, LENGTH = 32, 24, 16, 2, 40
CONFIG = {
    "model_cfg": {
        "embed_dim": JOINT,
        "vision_cfg": {"image_size": 24, "layers": LAYERS, "width": WIDTH, "patch_size": 4, "head_width": 8},
        "text_cfg": {
            "context_length": LENGTH, "vocab_size": vocabulary.VOCABULARY_SIZE, "width": WORDS, "heads": 4, "layers": LAYERS,
        },
    },
    "preprocess_cfg": {"mean": tiny.MEAN, "std": tiny.DEVIATION},
}  # fmt: skip
Weights = dict[str, torch.Tensor]


def open_clip_weights(seed: int = 0) -> Weights:
    dice = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=dice) * (0.1 if len(shape) < 2 else shape[-1] ** -0.5)

    def blocks(place: str, width: int) -> Weights:
        out = {}
        for number in range(LAYERS):
            block = f"{place}transformer.resblocks.{number}."
            for norm in ("ln_1", "ln_2"):
                out |= {f"{block}{norm}.weight": 1 + drawn(width), f"{block}{norm}.bias": drawn(width)}
            out |= {
                f"{block}attn.in_proj_weight": drawn(3 * width, width),
                f"{block}attn.in_proj_bias": drawn(3 * width),
            }
            out |= {f"{block}attn.out_proj.weight": drawn(width, width), f"{block}attn.out_proj.bias": drawn(width)}
            out |= {f"{block}mlp.c_fc.weight": drawn(4 * width, width), f"{block}mlp.c_fc.bias": drawn(4 * width)}
            out |= {f"{block}mlp.c_proj.weight": drawn(width, 4 * width), f"{block}mlp.c_proj.bias": drawn(width)}
        return out

    out = blocks("visual.", WIDTH) | blocks("", WORDS)
    for norm, width in (("visual.ln_pre", WIDTH), ("visual.ln_post", WIDTH), ("ln_final", WORDS)):
        out |= {f"{norm}.weight": 1 + drawn(width), f"{norm}.bias": drawn(width)}
    return out | {
        "visual.class_embedding": drawn(WIDTH), "visual.positional_embedding": drawn(37, WIDTH),
        "visual.conv1.weight": drawn(WIDTH, 3, 4, 4) * 0.3, "visual.proj": drawn(WIDTH, JOINT),
        "token_embedding.weight": drawn(vocabulary.VOCABULARY_SIZE, WORDS), "positional_embedding": drawn(LENGTH, WORDS),
        "text_projection": drawn(WORDS, JOINT), "logit_scale": torch.tensor(2.0),
    }  # fmt: skip


def open_clip_norm(x: torch.Tensor, stored: Weights, name: str) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], stored[f"{name}.weight"], stored[f"{name}.bias"])


def transformer(
    x: torch.Tensor, stored: Weights, place: str, heads: int, mask: torch.Tensor | None, quick: bool
) -> Any:
    """open_clip's blocks `[B, T, W]`, with torch's own attention."""
    for number in range(LAYERS):
        block = f"{place}transformer.resblocks.{number}."
        attention = torch.nn.MultiheadAttention(x.shape[-1], heads, batch_first=True)
        attention.load_state_dict(
            {k.removeprefix(f"{block}attn."): v for k, v in stored.items() if k.startswith(f"{block}attn.")}
        )
        y = open_clip_norm(x, stored, f"{block}ln_1")
        x = x + attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        y = F.linear(
            open_clip_norm(x, stored, f"{block}ln_2"),
            stored[f"{block}mlp.c_fc.weight"],
            stored[f"{block}mlp.c_fc.bias"],
        )
        y = y * torch.sigmoid(1.702 * y) if quick else F.gelu(y)
        x = x + F.linear(y, stored[f"{block}mlp.c_proj.weight"], stored[f"{block}mlp.c_proj.bias"])
    return x


def picture_vector(pixels: torch.Tensor, stored: Weights, quick: bool) -> torch.Tensor:
    patches = F.conv2d(pixels, stored["visual.conv1.weight"], stride=4).flatten(2).mT
    first = stored["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = open_clip_norm(torch.cat([first, patches], 1) + stored["visual.positional_embedding"], stored, "visual.ln_pre")
    x = transformer(x, stored, "visual.", WIDTH // 8, None, quick)
    return open_clip_norm(x[:, 0], stored, "visual.ln_post") @ stored["visual.proj"]


def text_vector(ids: torch.Tensor, stored: Weights, quick: bool) -> torch.Tensor:
    length = ids.shape[1]
    x = stored["token_embedding.weight"][ids] + stored["positional_embedding"][:length]
    mask = torch.full((length, length), float("-inf")).triu(1)
    x = open_clip_norm(transformer(x, stored, "", 4, mask, quick), stored, "ln_final")
    return x[torch.arange(len(ids)), ids.argmax(-1)] @ stored["text_projection"]


def open_clip_checkpoint(place: Path, quick: bool = False, file: str = "open_clip_model.safetensors") -> Path:
    config = json.loads(json.dumps(CONFIG))
    if quick:
        config["model_cfg"]["quick_gelu"] = True
    (place / "open_clip_config.json").write_text(json.dumps(config))
    tiny.tokenizer().save_pretrained(place)
    if file.endswith("safetensors"):
        save_file(open_clip_weights(), place / file)
    else:
        torch.save(
            {"state_dict": {f"module.{name}": tensor for name, tensor in open_clip_weights().items()}}, place / file
        )
    return place


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("file", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_an_open_clip_folder_computes_what_open_clip_does(tmp_path: Path, quick: bool, file: str) -> None:
    encoder: Any = open_encoder(f"open_clip:{open_clip_checkpoint(tmp_path, quick, file)}")
    pixels = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    ids = encoder.tokenizer([CAPTION.format("dog")], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        pooled = encoder.tower.model.get_image_features(pixels).pooler_output
        assert torch.allclose(pooled, picture_vector(pixels, open_clip_weights(), quick), atol=1e-4)
        assert not torch.allclose(pooled, picture_vector(pixels, open_clip_weights(), not quick), atol=1e-4)
        spoken = F.normalize(text_vector(ids, open_clip_weights(), quick), dim=1)
        assert torch.allclose(encoder.text(["Where is the dog?"]), spoken, atol=1e-4)
    assert encoder.name == "clip"
    assert encoder.dense(torch.rand(3, 30, 50)).features.shape[0] == JOINT


def test_the_reference_notices_swapped_projections() -> None:
    """The oracle can fail: queries in place of values give another vector."""
    stored = open_clip_weights()
    wrong = dict(stored)
    for name in [name for name in stored if name.endswith("in_proj_weight")]:
        wrong[name] = torch.cat(stored[name].chunk(3)[::-1])
    pixels = torch.randn(1, 3, 24, 24)
    assert not torch.allclose(picture_vector(pixels, stored, False), picture_vector(pixels, wrong, False), atol=1e-3)


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"visual\.trunk\.blocks\.0"):
        convert_open_clip_weights({"visual.trunk.blocks.0.attn.qkv.weight": torch.zeros(1)})
    with pytest.raises(EncoderError, match=r"ls_1\.gamma"):
        convert_open_clip_weights({"visual.transformer.resblocks.0.ls_1.gamma": torch.zeros(1)})
    place = open_clip_checkpoint(tmp_path)
    config = json.loads((place / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"] |= {"timm_model_name": "vit"}
    (place / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="timm_model_name"):
        open_encoder(f"open_clip:{place}")


def test_broken_open_clip_folders_give_one_sentence(tmp_path: Path) -> None:
    place = open_clip_checkpoint(tmp_path)
    (place / "open_clip_config.json").write_text("{")
    with pytest.raises(EncoderError, match="cannot load the open_clip checkpoint"):
        open_encoder(f"open_clip:{place}")
    (place / "open_clip_model.safetensors").unlink()
    with pytest.raises(EncoderError, match="expected a folder with open_clip_config"):
        open_encoder(f"open_clip:{place}")
