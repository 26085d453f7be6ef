"""The encoder interface: what goes in, what comes out, and opening encoders by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.embedding import Encoder, encoder, open_encoder, register_encoder
from arr_coc.errors import ArrCocError, EncoderError, ImageError
from tests.embedding import tiny
from tests.embedding.fake import Colours

QUESTIONS = ["Where is the dog?", "What colour is the car on the left?"]


class Zero(Encoder):
    name, width = "zero", 4

    @property
    def identity(self) -> str:
        return "zero"

    def encode(self, pixels: torch.Tensor, mode: str) -> torch.Tensor:
        return torch.zeros(4, 2, 2)

    def embed(self, questions: list[str]) -> torch.Tensor:
        return torch.zeros(len(questions), 4)


def test_a_zero_vector_stays_zero() -> None:
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
def test_invalid_questions(questions: Any, said: str) -> None:
    with pytest.raises(EncoderError, match=said):
        Zero().text(questions)


def test_invalid_images() -> None:
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


def test_unknown_devices_and_dtypes() -> None:
    with pytest.raises(ArrCocError, match="no device"):
        open_encoder("labels", device="abacus")
    with pytest.raises(EncoderError, match=r"torch\.float64"):
        open_encoder("labels", dtype=torch.float64)


def test_dense_reads_the_same_images_as_the_texture() -> None:
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


def test_results_allow_gradients_of_other_tensors() -> None:
    """A projection may be trained on them."""
    encoder = tiny.encoder("clip")
    weight = torch.ones(encoder.width, requires_grad=True)
    image = torch.rand(3, 24, 24)
    ((encoder.dense(image).features.sum((1, 2)) * weight).sum() + (encoder.text(QUESTIONS) @ weight).sum()).backward()
    assert weight.grad is not None


# Opening by name


def test_an_own_encoder_is_imported_from_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_encoders.py").write_text(
        "from tests.embedding.fake import Colours\n\n\nclass Mine(Colours):\n    pass\n\n\ndef broken():\n    raise OSError('gone')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert open_encoder("my_encoders:Mine").identity == "colours-0"
    with pytest.raises(EncoderError, match="OSError: gone"):
        open_encoder("my_encoders:broken")
    with pytest.raises(EncoderError, match="No module named 'no_such_module'"):
        open_encoder("no_such_module:Name")


def test_a_registered_prefix_opens_its_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(encoder, "_openers", {})
    register_encoder("mine", lambda *given: asked.append(given) or Colours())  # type: ignore[func-returns-value]
    assert open_encoder("mine:a/b:c", dtype=torch.float16).identity == "colours-0"
    assert asked == [("a/b:c", torch.device("cpu"), torch.float16)]


@pytest.mark.parametrize("name", ["C:\\models\\clip", "/some:folder/clip"])
def test_a_path_with_a_colon_is_not_a_module(name: str) -> None:
    with pytest.raises(EncoderError, match="there is no encoder"):
        open_encoder(name)


def test_a_vision_language_model_is_opened_by_name() -> None:
    assert open_encoder("vlm:reader").name == "vlm"
