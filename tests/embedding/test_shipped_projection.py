"""The projection that ships, and fitting one to checkpoints and to encoders of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc import Embeddings, Projection, TextureArray
from arr_coc.cli import main
from arr_coc.embedding import encoder, open_encoder, register_encoder
from arr_coc.embedding.embeddings import SHIPPED
from arr_coc.errors import EncoderError
from tests.embedding import tiny
from tests.embedding.fake import Colours, photo
from tests.embedding.test_labels import installed

QUESTIONS = ["Where is the cat?", "Where is the traffic light?"]


def test_it_is_small_and_says_where_it_comes_from() -> None:
    path = SHIPPED / "labels.safetensors"
    assert path.stat().st_size < 60_000
    found = Projection.load(path)
    assert (found.dims, found.width) == (32, 384)
    assert found.pictures > 20
    assert found.questions > 90
    assert found.is_pca


@pytest.fixture(scope="module")
def labels() -> Any:
    return open_encoder("labels")


@installed
def test_it_fits_the_encoder_as_it_is_now(labels: Any) -> None:
    """If this fails, the encoder has changed: run benchmarks/fit_shipped_projection.py."""
    assert Projection.load(SHIPPED / "labels.safetensors").encoder == labels.identity
    assert Embeddings(labels).dims == 32


@installed
def test_a_cat_is_found_where_it_is(labels: Any) -> None:
    """Its face fills the middle of the picture; the question about something else finds nothing there."""
    image = pytest.importorskip("skimage.data").chelsea()
    embeddings = Embeddings(labels)
    texture = TextureArray.from_image(image, embeddings=embeddings)
    cat, light = embeddings.scores(texture, QUESTIONS, grid=(6, 9)).reshape(2, 6, 9)
    assert float(cat.max()) > 0.4 > float(light.max())
    assert float(cat[1:5, 2:7].mean()) > float(cat.mean())
    dense = labels.dense(texture.pixels)
    full = embeddings.projection.full_scores(dense.features, labels.text(QUESTIONS))
    assert torch.corrcoef(torch.stack([embeddings.scores(texture, QUESTIONS)[0], full[0]]))[0, 1] > 0.95


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_checkpoint_is_fitted_in_worker_processes(kind: str, tmp_path: Path) -> None:
    pictures, folder = tmp_path / "pictures", tmp_path / kind
    pictures.mkdir()
    for number in range(24):
        photo(30, 40, seed=number).save(pictures / f"{number:02d}.png")
    tiny.checkpoint(kind, folder)
    out = tmp_path / "e.safetensors"
    assert main(["fit-embeddings", str(pictures), "-o", str(out), "--encoder", str(folder), "--workers", "2"]) == 0
    embeddings = Embeddings(open_encoder(folder), out)
    assert embeddings.scores(photo(seed=90), ["a", "b"], grid=(3, 3)).shape == (2, 9)


def test_names_with_a_colon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
