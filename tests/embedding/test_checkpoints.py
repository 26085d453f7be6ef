"""Encoders as users open them: from folders, in half precision, and with everything that can be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from arr_coc.embedding import Encoder, open_encoder
from arr_coc.embedding.checkpoints import TOWERS, ClipTower, ContrastiveEncoder
from arr_coc.errors import ArrCocError, EncoderError, ImageError
from tests.embedding import tiny

KINDS = ["clip", "siglip", "siglip2"]
QUESTIONS = ["Where is the dog?", "What colour is the car on the left?"]


@pytest.fixture(params=KINDS)
def folder(request: Any, tmp_path: Path) -> Path:
    return tiny.checkpoint(request.param, tmp_path)


def test_a_folder_opens_as_what_was_saved(folder: Path) -> None:
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
def test_text_is_the_models_own_of_a_caption(kind: str) -> None:
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
def test_questions_do_not_change_one_another(kind: str) -> None:
    encoder = tiny.encoder(kind)
    together, alone = encoder.text(QUESTIONS), torch.cat([encoder.text([question]) for question in QUESTIONS])
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together.norm(dim=1), torch.ones(2), atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_normalised_by_the_checkpoints_own_numbers(kind: str) -> None:
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


def test_identity_names_weights_and_settings() -> None:
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


def test_dense_takes_what_the_texture_takes() -> None:
    encoder = tiny.encoder("siglip")
    pixels = np.random.default_rng(1).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    found = encoder.dense(image).features
    assert torch.equal(found, encoder.dense(tensor).features)
    assert torch.equal(found, encoder.dense(pixels).features)
    similar = encoder.dense(image).similarity(encoder.text(QUESTIONS))
    assert similar.shape == (2, *encoder.dense(image).grid)
    assert similar.abs().max() <= 1 + 1e-5


def test_results_are_ordinary_tensors() -> None:
    """A projection may be trained on them."""
    encoder = tiny.encoder("clip")
    weight = torch.ones(encoder.width, requires_grad=True)
    image = torch.rand(3, 24, 24)
    ((encoder.dense(image).features.sum((1, 2)) * weight).sum() + (encoder.text(QUESTIONS) @ weight).sum()).backward()
    assert weight.grad is not None


class Zero(Encoder):
    name, width = "zero", 4

    @property
    def identity(self) -> str:
        return "zero"

    def encode(self, pixels: torch.Tensor, mode: str) -> torch.Tensor:
        return torch.zeros(4, 2, 2)

    def embed(self, questions: list[str]) -> torch.Tensor:
        return torch.zeros(len(questions), 4)


def test_what_has_no_direction_is_zero_and_not_nan() -> None:
    assert torch.equal(Zero().dense(torch.rand(3, 5, 5)).features, torch.zeros(4, 2, 2))
    assert torch.equal(Zero().text(["x"]), torch.zeros(1, 4))
    assert Zero().text([]).shape == (0, 4)


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        (["  "], "with words in it, got an empty one .question 1"),
        (["a dog", ""], "question 2"),
        ([3], "got int"),
        ("a dog", "into brackets"),
    ],
)
def test_questions_that_are_none(questions: Any, said: str) -> None:
    with pytest.raises(EncoderError, match=said):
        Zero().text(questions)


def test_images_that_are_none() -> None:
    for image in (
        torch.rand(3, 0, 5),
        Image.new("RGB", (0, 3)),
        torch.full((3, 4, 4), float("nan")),
        "no such file.png",
    ):
        with pytest.raises(ImageError):
            Zero().dense(image)
    with pytest.raises(EncoderError, match="'fast' or 'native', got 'slow'"):
        Zero().dense(torch.rand(3, 4, 4), "slow")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["lables", "", "./nowhere", "/no/such/folder", "open_clip:/no/such/folder"])
def test_unknown_names_get_one_sentence(name: str) -> None:
    with pytest.raises(EncoderError) as raised:
        open_encoder(name)
    assert "\n" not in str(raised.value)
    assert "expected" in str(raised.value)


def test_devices_and_precisions_that_are_not_there() -> None:
    with pytest.raises(ArrCocError, match="no device"):
        open_encoder("labels", device="abacus")
    with pytest.raises(EncoderError, match=r"torch\.float64"):
        open_encoder("labels", dtype=torch.float64)


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
    from safetensors.torch import load_file, save_file

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
