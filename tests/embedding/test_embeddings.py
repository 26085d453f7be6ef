"""Embeddings in the texture: lazy, encoded once, asked by cell, level and point."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc import EmbeddingCache, Embeddings, Projection, TextureArray
from arr_coc.embedding import embeddings as module
from arr_coc.embedding import open_encoder
from arr_coc.embedding.embeddings import SHIPPED
from arr_coc.embedding.field import Field
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import ArrCocError, ProjectionError
from arr_coc.selectors.scoring import area_mean
from arr_coc.texture.layout import EMBEDDING_NAMES
from arr_coc.types.grid import Grid
from tests.conftest import noise
from tests.embedding.fake import NAMES, Colours, blocks, photo
from tests.embedding.test_labels import installed

PLACES = ["Where is the cat?", "Where is the traffic light?"]
QUESTIONS = [f"Where is something {name}?" for name in NAMES]


def projection(encoder: Colours, dims: int = 16, weight: float = 0.5) -> Projection:
    rows = [encoder.dense(photo(seed=n)).features.flatten(1).T for n in range(30)]
    found = fit_projection(
        Moments.of(torch.cat(rows)), Moments.of(encoder.text(QUESTIONS)), dims, encoder=encoder.identity, text_weight=weight
    )  # fmt: skip
    encoder.pictures = encoder.texts = 0
    return found


@pytest.fixture
def embeddings() -> Embeddings:
    encoder = Colours()
    return Embeddings(encoder, projection(encoder))


def test_channels_are_lazy_and_the_encoder_runs_once(embeddings: Embeddings) -> None:
    texture = TextureArray.from_image(blocks(), embeddings=embeddings)
    assert "embedding_00" not in texture.absent
    texture["edges"], texture.grid(4, 4, ["red", "saliency"])
    assert embeddings.runs.pictures == 0
    first = texture["embedding_00"]
    assert first.shape == texture.size
    assert float(first.std()) > 0
    texture.tensor(), texture["embedding_15"], embeddings.scores(texture, QUESTIONS), embeddings(texture.pixels)
    assert embeddings.runs.pictures == 1
    assert embeddings.encoder.pictures == 1  # type: ignore[attr-defined]


def test_without_a_cache_a_texture_is_still_encoded_once() -> None:
    encoder = Colours()
    embeddings = Embeddings(encoder, projection(encoder), cache=EmbeddingCache(memory=0))
    texture = TextureArray.from_image(blocks(), embeddings=embeddings)
    embeddings.scores(texture, QUESTIONS)
    texture.grid(6, 6, EMBEDDING_NAMES)
    embeddings.scores(texture, QUESTIONS, grid=(5, 5))
    assert encoder.pictures == 1


def test_the_channels_hold_the_compressed_features(embeddings: Embeddings) -> None:
    texture = TextureArray.from_image(blocks(72, 72), embeddings=embeddings)  # a pixel lies on each cell's centre
    features = embeddings.compressed(texture)  # [16, 8, 8]
    full = embeddings.encoder.dense(texture.pixels).features
    torch.testing.assert_close(features, embeddings.projection.compress(full))
    centres = torch.stack(torch.meshgrid((torch.arange(8) + 0.5) / 8, (torch.arange(8) + 0.5) / 8, indexing="xy"), -1)
    read = texture.sample(centres.reshape(-1, 2), 0.0, EMBEDDING_NAMES)
    torch.testing.assert_close(read.T.reshape(16, 8, 8), features, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(96, 128), (61, 47), (5, 7)])  # the last is smaller than the encoder's own grid
@pytest.mark.parametrize("grid", [(1, 1), (7, 5), (13, 17), (40, 60)])
def test_scores_by_cell_equal_the_textures(
    embeddings: Embeddings, size: tuple[int, int], grid: tuple[int, int]
) -> None:
    texture = TextureArray.from_image(noise(*size), embeddings=embeddings)
    channels = texture.grid(*grid, EMBEDDING_NAMES).flatten(1)  # [16, N]
    asked = embeddings.query(QUESTIONS)
    by_hand = asked @ channels
    torch.testing.assert_close(embeddings.scores(texture, QUESTIONS, grid=grid), by_hand, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("level", [0, 1, 3, 6])
def test_scores_by_level_equal_the_textures(embeddings: Embeddings, level: int) -> None:
    texture = TextureArray.from_image(noise(61, 94), embeddings=embeddings)
    channels = texture.level(EMBEDDING_NAMES, level).flatten(1)
    asked = embeddings.query(QUESTIONS)
    by_hand = asked @ channels
    torch.testing.assert_close(embeddings.scores(texture, QUESTIONS, level=level), by_hand, atol=1e-5, rtol=1e-4)


def test_scores_by_point_equal_the_textures(embeddings: Embeddings) -> None:
    texture = TextureArray.from_image(noise(61, 94), embeddings=embeddings)
    points = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    levels = torch.linspace(0, 6, 50)
    asked = embeddings.query(QUESTIONS)
    by_hand = asked @ texture.sample(points, levels, EMBEDDING_NAMES).T
    found = embeddings.scores(texture, QUESTIONS, xy=points, level=levels)
    torch.testing.assert_close(found, by_hand, atol=1e-5, rtol=1e-4)
    finest = asked @ texture.sample(points, 0.0, EMBEDDING_NAMES).T
    torch.testing.assert_close(embeddings.scores(texture, QUESTIONS, xy=points), finest, atol=1e-5, rtol=1e-4)


def test_a_view_of_a_part_of_the_image(embeddings: Embeddings) -> None:
    """A model's tile covers a part, and may reach beyond the picture."""
    texture = TextureArray.from_image(noise(60, 80), embeddings=embeddings)
    view = Grid(1, 4, 3, (0.25, 0.5, 0.75, 1.25))
    found = embeddings.field(texture).view(view)
    for number, name in enumerate(EMBEDDING_NAMES[:4]):
        torch.testing.assert_close(found[number], area_mean(texture[name], view).float(), atol=1e-5, rtol=1e-4)


def test_scores_approximate_the_full_scores_and_find_colours(embeddings: Embeddings) -> None:
    picture = torch.full((3, 64, 64), 0.5)
    picture[:, 16:32, 40:56] = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    picture[:, 40:56, 8:24] = torch.tensor([0.0, 0.0, 1.0])[:, None, None]
    asked = ["the red thing", "the blue thing"]
    found = embeddings.scores(picture, asked)
    dense = embeddings.encoder.dense(picture).features
    full = embeddings.projection.full_scores(dense, embeddings.encoder.text(asked))
    assert float((found - full).abs().max()) < 0.2
    assert found[0].argmax() // 8 in (2, 3)
    assert found[0].argmax() % 8 in (5, 6)
    assert found[1].argmax() // 8 in (5, 6)
    assert found[1].argmax() % 8 in (1, 2)


def test_more_dimensions_than_channels_are_used_in_scores() -> None:
    encoder = Colours()
    wide = projection(encoder, 32)
    embeddings = Embeddings(encoder, wide)
    texture = TextureArray.from_image(blocks(), embeddings=embeddings)
    assert embeddings.compressed(texture).shape == (32, 8, 8)
    narrow = Embeddings(encoder, wide.first(16))
    # The channels hold the first 16 of 32: the narrow fit's directions, as much of each cell's vector as lies in them.
    shared = torch.nn.functional.normalize(embeddings.channels(texture), dim=0)
    torch.testing.assert_close(shared, narrow.compressed(blocks()), atol=1e-4, rtol=0)
    full = wide.full_scores(encoder.dense(blocks()).features, encoder.text(QUESTIONS))
    errors = [float((one.scores(blocks(), QUESTIONS) - full).square().mean()) for one in (embeddings, narrow)]
    assert errors[0] < errors[1]


def test_fewer_dimensions_than_channels_are_padded_with_zeros() -> None:
    encoder = Colours()
    embeddings = Embeddings(encoder, projection(encoder, 8))
    texture = TextureArray.from_image(blocks(), embeddings=embeddings)
    assert float(texture["embedding_07"].std()) > 0
    assert float(texture["embedding_08"].abs().max()) == 0


def test_other_embeddings_replace_the_first(embeddings: Embeddings) -> None:
    other = Colours(seed=50)
    second = Embeddings(other, projection(other))
    texture = TextureArray.from_image(blocks(), embeddings=embeddings)
    before = texture["embedding_00"].clone()
    edges = texture["edges"]
    changed = texture.supply(embeddings=second)
    assert not torch.allclose(changed["embedding_00"], before)
    assert changed["edges"] is edges
    assert torch.equal(changed.supply(embeddings=embeddings)["embedding_00"], before)
    assert embeddings.runs.pictures == 1
    plain = texture.supply(embeddings=lambda pixels: torch.ones(16, 2, 2))
    assert float(plain["embedding_03"].mean()) == 1
    gone = plain.supply(embeddings=None)
    assert "embedding_00" in gone.absent
    assert float(gone["embedding_00"].abs().max()) == 0


def test_a_batch_takes_embeddings_too(embeddings: Embeddings) -> None:
    batch = TextureArray.from_image([blocks(seed=1), blocks(80, 50, seed=2)], embeddings=embeddings)
    assert batch.grid(4, 4, EMBEDDING_NAMES).shape == (2, 16, 4, 4)
    assert embeddings.runs.pictures == 2
    alone = TextureArray.from_image(blocks(80, 50, seed=2), embeddings=embeddings)
    assert torch.equal(alone["embedding_02"], batch[1]["embedding_02"])
    with pytest.raises(ArrCocError, match="per image"):
        TextureArray.from_image([blocks()], embeddings=torch.zeros(16, 2, 2))


# Questions


def test_questions_are_encoded_in_one_batch_and_cached(embeddings: Embeddings) -> None:
    found = embeddings.query([*QUESTIONS, QUESTIONS[0]])
    assert found.shape == (11, 16)
    assert torch.equal(found[0], found[10])
    assert (embeddings.encoder.texts, embeddings.runs.questions) == (1, 10)  # type: ignore[attr-defined]
    embeddings.query(QUESTIONS[3:6])
    assert embeddings.encoder.texts == 1  # type: ignore[attr-defined]
    embeddings.query([QUESTIONS[0], "a new one"])
    assert (embeddings.encoder.texts, embeddings.runs.questions) == (2, 11)  # type: ignore[attr-defined]
    direct = embeddings.projection.compress_text(embeddings.encoder.text(QUESTIONS))
    torch.testing.assert_close(found[:10], direct)
    assert embeddings.query([]).shape == (0, 16)
    assert embeddings.scores(blocks(), []).shape == (0, 64)


def test_the_question_cache_is_bounded(embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_QUESTIONS", 3)
    embeddings.query(["a", "b", "c"])
    embeddings.query(["a"])
    embeddings.query(["d"])  # b goes
    embeddings.query(["a", "c", "d"])
    assert embeddings.runs.questions == 4
    embeddings.query(["b"])
    assert embeddings.runs.questions == 5


# One picture, many questions


def test_a_further_question_costs_little_more_than_its_text(embeddings: Embeddings) -> None:
    """At most 2 ms beyond the encoding of the text, on a texture of 1024 px and a grid of 44 x 44."""
    texture = TextureArray.from_image(noise(1024, 1024), embeddings=embeddings)
    embeddings.scores(texture, ["first"], grid=(44, 44))
    spent = []
    for number in range(30):
        question = f"question {number}"
        start = time.perf_counter()
        embeddings.encoder.text([question])
        text = time.perf_counter() - start
        start = time.perf_counter()
        embeddings.scores(texture, [question], grid=(44, 44))
        spent.append((time.perf_counter() - start - text) * 1e3)
    assert sorted(spent)[len(spent) // 2] < 2
    assert embeddings.runs.pictures == 1


def test_the_cache_finds_an_image_by_its_content(embeddings: Embeddings, tmp_path: Path) -> None:
    image = photo()
    image.save(tmp_path / "a.png")
    first = embeddings.scores(image, QUESTIONS)
    assert torch.equal(embeddings.scores(str(tmp_path / "a.png"), QUESTIONS), first)
    assert embeddings.runs.pictures == 1
    embeddings.scores(photo(seed=9), QUESTIONS)
    assert embeddings.runs.pictures == 2
    field = embeddings.field(image)
    assert isinstance(field, Field)
    assert torch.equal(embeddings.scores(field, QUESTIONS), first)
    assert embeddings.cache.counts.made == 2


def test_mode_and_projection_have_their_own_cache_entries() -> None:
    encoder = Colours()
    cache = EmbeddingCache()
    fitted = projection(encoder)
    shapes = [
        Embeddings(encoder, one, cache=cache, mode=mode).compressed(blocks(96, 128)).shape  # type: ignore[arg-type]
        for one, mode in ((fitted, "fast"), (fitted, "native"), (fitted.first(4), "fast"), (fitted, "fast"))
    ]
    assert shapes == [(16, 8, 8), (16, 6, 8), (4, 8, 8), (16, 8, 8)]
    assert cache.counts.made == 3


def test_threads_encode_an_image_once(embeddings: Embeddings) -> None:
    gate = threading.Barrier(6)
    found = []

    def ask() -> None:
        gate.wait()
        found.append(embeddings.scores(noise(40, 40), QUESTIONS))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert embeddings.runs.pictures == 1
    assert all(torch.equal(one, found[0]) for one in found)


def test_embeddings_can_be_pickled(embeddings: Embeddings) -> None:
    embeddings.query(["a"])
    there = pickle.loads(pickle.dumps(embeddings))
    assert torch.equal(there.scores(blocks(), QUESTIONS), embeddings.scores(blocks(), QUESTIONS))
    assert there.runs.questions == len(QUESTIONS)


# What does not fit


def test_a_projection_for_another_encoder(tmp_path: Path) -> None:
    fitted = projection(Colours())
    with pytest.raises(ProjectionError, match=r"fitted to the encoder 'colours-0' of 40.*'colours-1'.*fit-embeddings"):
        Embeddings(Colours(seed=1), fitted)
    fitted.save(tmp_path / "p.safetensors")
    assert Embeddings(Colours(), tmp_path / "p.safetensors").dims == 16
    with pytest.raises(ProjectionError, match="no projection ships for the encoder 'colours-0'"):
        Embeddings(Colours())


def test_bad_input_is_one_sentence(embeddings: Embeddings) -> None:
    for wrong, complaint in (
        ({"grid": (3, 3), "level": 1}, "got a grid and"),
        ({"grid": (0, 3)}, "at least 1x1"),
        ({"level": 20}, "level from 0"),
        ({"xy": torch.zeros(3, 3)}, r"\[N, 2\]"),
    ):
        with pytest.raises(ArrCocError, match=complaint):
            embeddings.scores(blocks(), QUESTIONS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ArrCocError, match="brackets"):
        embeddings.query("one text")
    with pytest.raises(ArrCocError, match="mode"):
        Embeddings(Colours(), projection(Colours()), mode="slow")  # type: ignore[arg-type]
    with pytest.raises(arr_coc.ImageError):
        embeddings.scores("/no/such/file.png", QUESTIONS)


# The projection that ships


def test_the_shipped_projection_is_small_and_has_its_history() -> None:
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
def test_the_shipped_projection_matches_the_encoder(labels: Any) -> None:
    """If this fails, the encoder has changed: run benchmarks/fit_shipped_projection.py."""
    assert Projection.load(SHIPPED / "labels.safetensors").encoder == labels.identity
    assert Embeddings(labels).dims == 32


@installed
def test_a_cat_is_found_where_it_is(labels: Any) -> None:
    """Its face fills the middle of the picture; the question about something else finds nothing there."""
    image = pytest.importorskip("skimage.data").chelsea()
    embeddings = Embeddings(labels)
    texture = TextureArray.from_image(image, embeddings=embeddings)
    cat, light = embeddings.scores(texture, PLACES, grid=(6, 9)).reshape(2, 6, 9)
    assert float(cat.max()) > 0.4 > float(light.max())
    assert float(cat[1:5, 2:7].mean()) > float(cat.mean())
    dense = labels.dense(texture.pixels)
    full = embeddings.projection.full_scores(dense.features, labels.text(PLACES))
    assert torch.corrcoef(torch.stack([embeddings.scores(texture, PLACES)[0], full[0]]))[0, 1] > 0.95
