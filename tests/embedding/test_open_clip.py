"""Checkpoints under open_clip's names, against open_clip's arithmetic written out with torch's own layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from arr_coc.embedding import open_encoder
from arr_coc.embedding.checkpoints import CAPTION, convert_open_clip_weights
from arr_coc.errors import EncoderError
from arr_coc.reader import vocabulary
from tests.embedding import tiny

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


def weights(seed: int = 0) -> Weights:
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


def norm(x: torch.Tensor, stored: Weights, name: str) -> torch.Tensor:
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
        y = norm(x, stored, f"{block}ln_1")
        x = x + attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        y = F.linear(
            norm(x, stored, f"{block}ln_2"), stored[f"{block}mlp.c_fc.weight"], stored[f"{block}mlp.c_fc.bias"]
        )
        y = y * torch.sigmoid(1.702 * y) if quick else F.gelu(y)
        x = x + F.linear(y, stored[f"{block}mlp.c_proj.weight"], stored[f"{block}mlp.c_proj.bias"])
    return x


def picture_vector(pixels: torch.Tensor, stored: Weights, quick: bool) -> torch.Tensor:
    patches = F.conv2d(pixels, stored["visual.conv1.weight"], stride=4).flatten(2).mT
    first = stored["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = norm(torch.cat([first, patches], 1) + stored["visual.positional_embedding"], stored, "visual.ln_pre")
    x = transformer(x, stored, "visual.", WIDTH // 8, None, quick)
    return norm(x[:, 0], stored, "visual.ln_post") @ stored["visual.proj"]


def text_vector(ids: torch.Tensor, stored: Weights, quick: bool) -> torch.Tensor:
    length = ids.shape[1]
    x = stored["token_embedding.weight"][ids] + stored["positional_embedding"][:length]
    mask = torch.full((length, length), float("-inf")).triu(1)
    x = norm(transformer(x, stored, "", 4, mask, quick), stored, "ln_final")
    return x[torch.arange(len(ids)), ids.argmax(-1)] @ stored["text_projection"]


def checkpoint(place: Path, quick: bool = False, file: str = "open_clip_model.safetensors") -> Path:
    config = json.loads(json.dumps(CONFIG))
    if quick:
        config["model_cfg"]["quick_gelu"] = True
    (place / "open_clip_config.json").write_text(json.dumps(config))
    tiny.tokenizer().save_pretrained(place)
    if file.endswith("safetensors"):
        save_file(weights(), place / file)
    else:
        torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in weights().items()}}, place / file)
    return place


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("file", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_a_folder_computes_what_open_clip_does(tmp_path: Path, quick: bool, file: str) -> None:
    encoder: Any = open_encoder(f"open_clip:{checkpoint(tmp_path, quick, file)}")
    pixels = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    ids = encoder.tokenizer([CAPTION.format("dog")], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        pooled = encoder.tower.model.get_image_features(pixels).pooler_output
        assert torch.allclose(pooled, picture_vector(pixels, weights(), quick), atol=1e-4)
        assert not torch.allclose(pooled, picture_vector(pixels, weights(), not quick), atol=1e-4)
        spoken = F.normalize(text_vector(ids, weights(), quick), dim=1)
        assert torch.allclose(encoder.text(["Where is the dog?"]), spoken, atol=1e-4)
    assert encoder.name == "clip"
    assert encoder.dense(torch.rand(3, 30, 50)).features.shape[0] == JOINT


def test_swapped_projections_would_be_noticed() -> None:
    """The oracle can fail: queries in place of values give another vector."""
    stored = weights()
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
    place = checkpoint(tmp_path)
    config = json.loads((place / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"] |= {"timm_model_name": "vit"}
    (place / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="timm_model_name"):
        open_encoder(f"open_clip:{place}")


def test_broken_folders_get_one_sentence(tmp_path: Path) -> None:
    place = checkpoint(tmp_path)
    (place / "open_clip_config.json").write_text("{")
    with pytest.raises(EncoderError, match="cannot load the open_clip checkpoint"):
        open_encoder(f"open_clip:{place}")
    (place / "open_clip_model.safetensors").unlink()
    with pytest.raises(EncoderError, match="expected a folder with open_clip_config"):
        open_encoder(f"open_clip:{place}")
