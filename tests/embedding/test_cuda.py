"""Embeddings on an accelerator are those of the CPU, to the rounding of their precision. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc import EmbeddingCache, Embeddings, Projection, TextureArray
from arr_coc.adapters.families import check_transformers
from arr_coc.cli import main
from arr_coc.embedding import Mode, open_encoder
from arr_coc.embedding.labels import EfficientNetLite0
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import ModelError
from arr_coc.vlm.token_encoder import VlmTokens
from recipes.texture_vlm.model import TextureEmbeddingVLM
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import picture
from tests.embedding import tiny
from tests.embedding.test_checkpoints import open_clip_checkpoint
from tests.precision import full_precision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
DEVICE = torch.device("cuda")
KINDS = ["clip", "siglip", "siglip2"]
FAMILIES = families.QWEN
QUESTIONS = ["Where is the dog?", "Where is the red car?", "a cup"]
APART = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 2e-2}  # 1 minus the cosine


def too_old() -> bool:
    try:
        check_transformers()
    except ModelError:
        return True
    return False


wrapping = pytest.mark.skipif(too_old(), reason="this transformers is too old to wrap a model")


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with full_precision():
        yield


def photo(height: int = 50, width: int = 70, seed: int = 0) -> Image.Image:
    """Blocks of colours, each of some cells."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def alike(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype, dim: int) -> None:
    """Vectors of length 1 along `dim` that point the same way, to the rounding of `dtype`."""
    assert ours.shape == theirs.shape
    cosines = torch.cosine_similarity(ours.cpu().double(), theirs.cpu().double(), dim=dim)
    assert float(1 - cosines.min()) < APART[dtype]


@lru_cache
def projection(kind: str, dims: int = 16) -> Projection:
    encoder = tiny.encoder(kind)
    rows = [encoder.dense(photo(seed=number)).features.flatten(1).T for number in range(20)]
    return fit_projection(Moments.of(torch.cat(rows)), dims=dims, encoder=encoder.identity)


def embeddings(kind: str, device: torch.device, dtype: torch.dtype = torch.float32, **options: Any) -> Embeddings:
    return Embeddings(tiny.encoder(kind, dtype, device), projection(kind), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", list(APART))
@pytest.mark.parametrize("mode", ["fast", "native"])
def test_towers_equal_the_cpu(kind: str, dtype: torch.dtype, mode: Mode) -> None:
    slow, fast = tiny.encoder(kind), tiny.encoder(kind, dtype, DEVICE)
    assert fast.identity == slow.identity
    seen = fast.dense(photo(), mode).features
    assert (seen.device.type, seen.dtype) == (DEVICE.type, dtype)
    alike(seen, slow.dense(photo(), mode).features, dtype, dim=0)
    asked = fast.text(QUESTIONS)
    assert (asked.device.type, asked.dtype) == (DEVICE.type, torch.float32)
    alike(asked, slow.text(QUESTIONS), dtype, dim=1)
    assert fast.dense(photo()).similarity(asked).shape == (3, *fast.dense(photo()).grid)


def test_windows_in_several_batches_are_one_batch() -> None:
    encoder = tiny.encoder("clip", torch.float16, DEVICE)
    whole = encoder.dense(photo(150, 200), "native").features
    encoder.cells_per_batch = 100
    alike(encoder.dense(photo(150, 200), "native").features, whole, torch.float16, dim=0)


@pytest.mark.parametrize("dtype", list(APART))
def test_an_open_clip_folder(tmp_path: Path, dtype: torch.dtype) -> None:
    name = f"open_clip:{open_clip_checkpoint(tmp_path)}"
    slow, fast = open_encoder(name), open_encoder(name, DEVICE, dtype)
    alike(fast.dense(photo()).features, slow.dense(photo()).features, dtype, dim=0)
    alike(fast.text(QUESTIONS), slow.text(QUESTIONS), dtype, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_classifier_of_the_default_encoder(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = EfficientNetLite0().eval()
    pictures = torch.rand(2, 3, 96, 128) * 2 - 1
    expected = network(pictures)
    found = network.to(DEVICE, dtype)(pictures.to(DEVICE, dtype))
    assert found.shape == (2, 1000, 3, 4)
    alike(found, expected, dtype, dim=1)


@wrapping
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_own_tokens(family: str, dtype: torch.dtype) -> None:
    model, processor = families.model(family), tiny_vlm.processor(family)
    slow = VlmTokens(arr_coc.wrap(model, processor))
    expected, spoken = slow.dense(photo(72, 56)).features, slow.text(QUESTIONS)
    fast = VlmTokens(arr_coc.wrap(families.model(family).to(DEVICE, dtype), processor))
    seen = fast.dense(photo(72, 56)).features
    assert (seen.device.type, seen.dtype) == (DEVICE.type, dtype)
    alike(seen, expected, dtype, dim=0)
    alike(fast.text(QUESTIONS), spoken, dtype, dim=1)


@pytest.mark.parametrize("dtype", list(APART))
def test_moments_and_compression(dtype: torch.dtype) -> None:
    encoder, made = tiny.encoder("clip"), projection("clip")
    features = encoder.dense(photo(seed=50)).features
    there, asked = features.to(DEVICE, dtype), encoder.text(QUESTIONS)
    rounded = there.float().cpu()
    moments, expected = (Moments.of(some.flatten(1).T) for some in (there, rounded))
    torch.testing.assert_close(moments.scatter, expected.scatter)
    small = made.compress(there)
    assert (small.device.type, small.dtype) == (DEVICE.type, torch.float32)
    torch.testing.assert_close(small.cpu(), made.compress(rounded), atol=1e-5, rtol=0)
    scores = made.scores(small, asked.to(DEVICE))
    torch.testing.assert_close(scores.cpu(), made.scores(made.compress(rounded), asked), atol=1e-5, rtol=0)
    full = made.full_scores(there, asked.to(DEVICE))
    torch.testing.assert_close(full.cpu(), made.full_scores(rounded, asked), atol=1e-5, rtol=0)
    back = made.reconstruct(made.transform(there))
    torch.testing.assert_close(back.cpu(), made.reconstruct(made.transform(rounded)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-4), (torch.float16, 2e-2)])
def test_scores_and_channels_of_a_texture(place: str, dtype: torch.dtype, apart: float) -> None:
    """A texture on either device, asked by an encoder on the accelerator."""
    slow, fast = embeddings("clip", tiny.CPU), embeddings("clip", DEVICE, dtype)
    device = DEVICE if place == "cuda" else tiny.CPU
    theirs = TextureArray.from_image(photo(), embeddings=slow)
    ours = TextureArray.from_image(photo(), embeddings=fast, device=device)
    assert ours["embedding_07"].device.type == device.type
    for name in ("embedding_00", "embedding_07"):
        torch.testing.assert_close(ours[name].cpu(), theirs[name], atol=apart, rtol=0)
    points = torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    for where in ({}, {"grid": (5, 9)}, {"level": 2}, {"xy": points, "level": 1.5}):
        found = fast.scores(ours, QUESTIONS, **where)
        assert found.device.type == device.type
        torch.testing.assert_close(found.cpu(), slow.scores(theirs, QUESTIONS, **where), atol=apart, rtol=0)
    assert fast.runs.pictures == 1


def test_cpu_and_accelerator_share_a_cache_on_disk(tmp_path: Path) -> None:
    slow = embeddings("clip", tiny.CPU, cache=EmbeddingCache(folder=tmp_path))
    expected = slow.scores(photo(), QUESTIONS)
    fast = embeddings("clip", DEVICE, cache=EmbeddingCache(folder=tmp_path))
    torch.testing.assert_close(fast.scores(photo(), QUESTIONS).cpu(), expected, atol=1e-4, rtol=0)
    assert (fast.runs.pictures, fast.cache.counts.disk) == (0, 1)


def test_a_cache_holds_no_memory_of_the_device(tmp_path: Path) -> None:
    cache = EmbeddingCache(folder=tmp_path)
    large = torch.rand(16, 64, 64, device=DEVICE)
    found = cache.get("0" * 64, lambda: large[:, :8, :8])
    assert found.device.type == "cpu"
    assert torch.equal(found, large[:, :8, :8].cpu())
    assert cache.bytes == 16 * 8 * 8 * 4
    again = EmbeddingCache(folder=tmp_path)
    assert torch.equal(again.get("0" * 64, lambda: large), found)
    assert again.counts.disk == 1


@wrapping
def test_coupling_keeps_the_same_cells_as_on_the_cpu() -> None:
    kept = []
    for device in (tiny.CPU, DEVICE):
        model = families.model("qwen2_vl").to(device)
        vlm = arr_coc.wrap(model, tiny_vlm.processor("qwen2_vl"), embeddings=embeddings("clip", device))
        answer: Any = vlm.ask(
            photo(112, 112), QUESTIONS[0], budget="25%", glance="50%", selector="coupling", max_new_tokens=2
        )
        kept.append(answer.allocation.keep.tolist())
    assert kept[0] == kept[1]


@wrapping
@pytest.mark.parametrize("family", FAMILIES)
def test_reading_from_the_texture(family: str) -> None:
    pictures = [picture(72, 56, seed) for seed in range(4)]
    processor = tiny_vlm.processor(family)
    slow = TextureEmbeddingVLM.fit(arr_coc.wrap(families.model(family), processor), pictures, 16)
    there = arr_coc.wrap(families.model(family).to(DEVICE), processor)
    fast = TextureEmbeddingVLM(there, slow.projection)
    options: dict[str, Any] = {"keep": "50%", "selector": "uniform", "max_new_tokens": 4, "do_sample": False}
    answers: list[Any] = [reader.ask(picture(), "What is it?", **options) for reader in (slow, fast)]
    assert answers[0].ids.tolist() == answers[1].ids.tolist()
    planes = [reader.planes(picture())[0].planes[0] for reader in (slow, fast)]
    assert planes[1].device.type == DEVICE.type
    torch.testing.assert_close(planes[1].cpu(), planes[0], atol=1e-3, rtol=1e-3)
    fitted = TextureEmbeddingVLM.fit(there, pictures, 16)
    torch.testing.assert_close(fitted.projection.variance, slow.projection.variance, atol=1e-4, rtol=1e-3)


@wrapping
def test_reading_from_the_texture_in_half_precision(tmp_path: Path) -> None:
    vlm = arr_coc.wrap(families.model("qwen2_vl").to(DEVICE, torch.bfloat16), tiny_vlm.processor("qwen2_vl"))
    made = TextureEmbeddingVLM.fit(vlm, [picture(72, 56, seed) for seed in range(4)], 16, hidden=8)
    read = TextureEmbeddingVLM.from_pretrained(made.save_pretrained(tmp_path), vlm)
    options: dict[str, Any] = {"keep": "50%", "selector": "uniform", "max_new_tokens": 4, "do_sample": False}
    answers: list[Any] = [reader.ask(picture(), "What is it?", **options) for reader in (made, read)]
    assert answers[0].ids.tolist() == answers[1].ids.tolist()


def test_the_command_fits_the_same_as_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(24):
        photo(seed=number).save(tmp_path / "in" / f"{number:02d}.png")
    (tmp_path / "clip").mkdir()
    folder = tiny.checkpoint("clip", tmp_path / "clip")
    for device in ("cpu", DEVICE.type):
        out = tmp_path / f"{device}.safetensors"
        given = [str(tmp_path / "in"), "-o", str(out), "--encoder", str(folder), "--device", device, "--dims", "8"]
        assert main(["fit-embeddings", *given, "--exactly"]) == 0
    slow, fast = (Projection.load(tmp_path / f"{device}.safetensors") for device in ("cpu", DEVICE.type))
    assert fast.encoder == slow.encoder
    torch.testing.assert_close(fast.image_mean, slow.image_mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(fast.variance, slow.variance, atol=1e-4, rtol=0)
