"""The cascade keeps (nearly) the same cells as full encoding, from fewer windows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import arr_coc
from arr_coc import Embeddings, TextureArray
from arr_coc.embedding.projection import Projection
from arr_coc.embedding.windows import WindowedEncoder
from arr_coc.errors import ArrCocError
from arr_coc.relevance import cascade
from arr_coc.texture.channels.clusters import clusters


class Reds(WindowedEncoder):
    """An encoder whose features are mean colours. One pass sees 8 x 8 cells; windows see every pixel."""

    name, width, cell, side, overlap = "reds", 3, 8, 64, 0.25

    def __init__(self, offset: float = 0.0) -> None:
        self.device, self.dtype, self.windows, self.offset = torch.device("cpu"), torch.float32, 0, offset

    @property
    def identity(self) -> str:
        return "reds"

    def encode_batch(self, pictures: torch.Tensor) -> torch.Tensor:
        self.windows += len(pictures)
        return F.avg_pool2d(pictures, self.cell) - 0.5 + self.offset

    def embed(self, questions: list[str]) -> torch.Tensor:
        return torch.tensor([[1.0, -0.5, -0.5]]).expand(len(questions), -1)


def native(offset: float = 0.0, mode: Any = "native") -> Embeddings:
    encoder = Reds(offset)
    same = torch.eye(3)
    return Embeddings(
        encoder, Projection("reds", same, same, torch.zeros(3), torch.zeros(3), torch.ones(3) / 3), mode=mode
    )


def blocks(high: int = 512, wide: int = 512, reds: int = 5) -> torch.Tensor:
    """Grayish blocks of all tones, and a square of red ones."""
    dice = torch.Generator().manual_seed(0)
    tones = 0.2 + 0.6 * torch.rand(1, high // 32, wide // 32, generator=dice).expand(3, -1, -1).clone()
    tones += 0.05 * torch.rand(tones.shape, generator=dice)
    tones[:, 3 : 3 + reds, 4 : 4 + reds] = torch.tensor([0.9, 0.1, 0.1])[:, None, None]
    return F.interpolate(tones[None], (high, wide), mode="nearest")[0].clamp(0, 1)


def both(image: torch.Tensor, budget: Any = "6.25%", **settings: Any) -> tuple[arr_coc.Allocation, arr_coc.Allocation]:
    """Without and with a cascade, each with a new texture and new embeddings."""
    made = []
    for how in ("off", "on"):
        texture = TextureArray.from_image(image, max_side=None)
        options = {"coupling": "embeddings", "cascade": how} | settings
        made.append(arr_coc.realize(texture, "Where is the red?", (64, 64), budget, native(), **options))
    return made[0], made[1]


def overlap(one: arr_coc.Allocation, other: arr_coc.Allocation) -> float:
    return float(torch.isin(one.keep, other.keep).float().mean())


def test_with_all_clusters_the_cascade_equals_full_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "best_clusters", lambda texture, *_: torch.arange(len(clusters(texture).share)))
    monkeypatch.setattr(cascade, "EDGE_DISTANCE", float("inf"))
    every, some = both(blocks())
    assert torch.equal(every.keep, some.keep)
    assert every.relevance is not None
    assert some.relevance is not None
    assert torch.allclose(every.relevance, some.relevance, atol=1e-5)
    assert any("windows" in note for note in some.notes)
    assert not any("windows" in note for note in every.notes)


def test_the_best_clusters_give_nearly_the_same_cells() -> None:
    every, some = both(blocks(reds=4))
    assert every.k == some.k == 256
    assert overlap(every, some) >= 0.95
    note = next(one for one in some.notes if "windows" in one)
    few, all_of_them = (int(note.split(" of ")[place].split()[-1 if place == 1 else 0]) for place in (1, 2))
    assert few < 0.7 * all_of_them


@pytest.mark.parametrize("budget", ["auto", "mass 50%", 40, "all"])
def test_every_budget_is_kept(budget: str | int) -> None:
    every, some = both(blocks(), budget)
    assert abs(every.k - some.k) <= 0.2 * every.k
    assert overlap(every, some) >= 0.8


def test_the_next_question_encodes_only_new_windows() -> None:
    texture, embeddings = TextureArray.from_image(blocks(), max_side=None), native()
    encoder = embeddings.encoder
    assert isinstance(encoder, Reds)
    options: dict[str, Any] = {"coupling": "embeddings", "cascade": "on"}
    arr_coc.realize(texture, "Where is the red?", (64, 64), 100, embeddings, **options)
    encoded = encoder.windows
    assert encoded < len(encoder.plan(texture.pixels) or ())
    arr_coc.realize(texture, "Where is the red one?", (64, 64), 100, embeddings, **options)
    assert encoder.windows == encoded


def test_clusters_are_scored_by_their_best_member() -> None:
    """A ring around a square: the ring's centroid lies in the square."""
    ids = torch.zeros(32, 32, dtype=torch.long)
    ids[8:24, 8:24] = 1
    image = blocks(128, 128, 0)
    texture = TextureArray.from_image(image, segmenter=lambda pixels: ids)
    scores = torch.where(ids == 0, 1.0, 0.0)
    assert cascade.best_clusters(texture, scores, 0.0, least=1).tolist() == [0]
    assert cascade.best_clusters(texture, 1 - scores, 0.0, least=1).tolist() == [1]
    assert cascade.best_clusters(texture, 1 - scores, 0.9, least=1).tolist() == [1, 0]


def test_a_void_encodes_no_windows() -> None:
    texture, embeddings = TextureArray.from_image(torch.full((3, 512, 512), 0.5), max_side=None), native()
    found = arr_coc.realize(texture, "Where is the red?", (64, 64), 64, embeddings, coupling="embeddings", cascade="on")
    assert found.strategy.startswith("void")
    assert found.k == 64
    assert any("0 of" in note and "windows" in note for note in found.notes)


def test_scores_that_are_not_finite_raise_with_and_without_a_cascade() -> None:
    for how in ("on", "off"):
        texture = TextureArray.from_image(blocks(), max_side=None)
        with pytest.raises(ArrCocError, match="finite coupling from the embeddings"):
            arr_coc.realize(texture, "red", (64, 64), 64, native(float("nan")), coupling="embeddings", cascade=how)


def test_auto_needs_a_large_grid_and_a_large_image() -> None:
    large = TextureArray.from_image(blocks(), max_side=None)
    small = TextureArray.from_image(blocks(64, 64, 0), max_side=None)

    def used(texture: TextureArray, side: int, embeddings: Embeddings | None, **settings: Any) -> bool:
        found = arr_coc.realize(
            copy.copy(texture), "red", (side, side), 64, embeddings, **{"cascade": "auto"} | settings
        )
        return any("windows" in note for note in found.notes)

    assert used(large, 64, native())
    assert not used(large, 64, native(), cascade="off")
    assert not any("windows" in one for one in arr_coc.realize(large, "red", (64, 64), 64, native()).notes)
    assert not used(large, 63, native())
    assert not used(small, 64, native())
    assert not used(large, 64, native(mode="fast"))
    assert not used(large, 64, None)


def test_an_unsupported_cascade_raises() -> None:
    texture = TextureArray.from_image(blocks(), max_side=None)
    with pytest.raises(ArrCocError, match="expected embeddings in native mode"):
        arr_coc.realize(texture, "red", (64, 64), 64, native(mode="fast"), cascade="on")
    with pytest.raises(ArrCocError, match="expected a picture of several windows, longer than 64 px"):
        arr_coc.realize(blocks(64, 64, 0), "red", (64, 64), 64, native(), cascade="on")
    with pytest.raises(ArrCocError, match="expected cascade as one of auto, on, off, got 'never'"):
        arr_coc.realize(texture, "red", (64, 64), 64, native(), cascade="never")


def test_scores_of_cells_without_a_window_are_fitted_to_the_others() -> None:
    coarse = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    encoded = torch.tensor([[True, True, True, False]])
    assert torch.allclose(cascade.predict_fine(coarse, 2 * coarse + 1, encoded), 2 * coarse + 1)
    falling = cascade.predict_fine(coarse, -coarse, encoded)
    assert torch.allclose(falling, torch.full((1, 4), -1.0))  # a negative slope is clamped to 0
    assert torch.equal(cascade.predict_fine(coarse, coarse, torch.zeros_like(encoded)), coarse)
