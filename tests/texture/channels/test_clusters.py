"""Superpixels: connected, compact, stable, about fifty; and their statistics by direct loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage.segmentation import find_boundaries

import arr_coc
from arr_coc import ArrCocError, ChannelError, TextureArray
from arr_coc.texture.channels.clusters import connect

from ...conftest import noise


@pytest.fixture(scope="module")
def scene() -> TextureArray:
    return TextureArray.from_image(arr_coc.pictures.scene())


def test_about_fifty_and_numbered_without_gaps(scene: TextureArray) -> None:
    ids = scene["cluster_id"].unique()
    assert 40 <= len(ids) <= 60
    assert torch.equal(ids, torch.arange(len(ids)).float())


@pytest.mark.parametrize("image", ["scene", "receipt", "noise", "constant"])
def test_every_cluster_is_connected(image: str) -> None:
    made = {"noise": noise(90, 130), "constant": torch.full((3, 70, 50), 0.3)}
    picture = made[image] if image in made else getattr(arr_coc.pictures, image)()
    ids = TextureArray.from_image(picture)["cluster_id"].numpy()
    for number in np.unique(ids):
        assert ndimage.label(ids == number)[1] == 1, number


def test_ids_are_the_same_from_run_to_run(scene: TextureArray) -> None:
    again = TextureArray.from_image(arr_coc.pictures.scene())
    assert torch.equal(scene["cluster_id"], again["cluster_id"])


def test_clusters_follow_the_image() -> None:
    page = torch.full((3, 120, 160), 0.8)
    page[:, 40:80, 60:110] = torch.tensor([0.8, 0.1, 0.1])[:, None, None]
    ids = TextureArray.from_image(page)["cluster_id"]
    inside, outside = set(ids[41:79, 61:109].unique().tolist()), ids.clone()
    outside[40:80, 60:110] = -1
    assert not inside & set(outside.unique().tolist())


@pytest.mark.parametrize("size", [(61, 83), (480, 301)])  # smaller and larger than the working size
def test_statistics_by_direct_loop(size: tuple[int, int]) -> None:
    texture = TextureArray.from_image(noise(*size, seed=2))
    ids = texture["cluster_id"].numpy()
    rows, columns = np.indices(ids.shape) + 0.5
    for number in np.unique(ids):
        mine = ids == number
        assert np.abs(texture["cluster_size"].numpy()[mine] - mine.mean()).max() < 1e-6
        away = np.hypot(rows[mine] - rows[mine].mean(), columns[mine] - columns[mine].mean())
        expected = away / max(away.max(), 1e-6)
        assert np.abs(texture["cluster_distance"].numpy()[mine] - expected).max() < 1e-4
    assert np.array_equal(texture["boundaries"].numpy(), find_boundaries(ids.astype(int), connectivity=1, mode="thick"))


def test_connect_splits_merges_and_renumbers() -> None:
    labels = np.zeros((40, 40), int)
    labels[:, 20:] = 5
    labels[0:10, 0:10] = 5  # a second part of 5, large enough to stay
    labels[30, 5] = 5  # a speck, which is merged into its surroundings
    ids = connect(labels)
    assert ids.max() == 2
    assert ids[0, 0] == 0
    assert ids[0, 39] != ids[0, 0]
    assert ids[30, 5] == ids[30, 6]


def test_a_users_masks_replace_slic() -> None:
    def halves(pixels: torch.Tensor) -> torch.Tensor:
        ids = torch.full(pixels.shape[1:], 7)
        ids[:, pixels.shape[2] // 2 :] = 900
        return ids

    texture = TextureArray.from_image(noise(20, 30), segmenter=halves)
    assert texture["cluster_id"].unique().tolist() == [0, 1]
    assert texture["cluster_size"].unique().tolist() == [0.5]
    assert texture["boundaries"][:, 14:16].min() == 1
    assert texture["boundaries"].sum() == 40


@pytest.mark.parametrize(
    ("segmenter", "words"),
    [
        (lambda p: torch.zeros(5), r"ids \[h, w\]"),
        (lambda p: torch.zeros(99, 99), r"at most \[20, 30\], got \[99, 99\]"),
        (lambda p: "masks", "a segmenter's ids as a tensor"),
        (lambda p: torch.rand(20, 30), "whole ids"),
    ],
)
def test_a_segmenters_bad_result_is_refused(segmenter: object, words: str) -> None:
    with pytest.raises(ArrCocError, match=words):
        TextureArray.from_image(noise(20, 30), segmenter=segmenter)["cluster_id"]  # type: ignore[call-overload]


def test_more_ids_than_a_dtype_can_represent() -> None:
    many = lambda p: torch.arange(600).view(20, 30)  # noqa: E731
    assert TextureArray.from_image(noise(20, 30), segmenter=many, dtype=torch.float16)["cluster_id"].max() == 599
    with pytest.raises(ChannelError, match="600 segments cannot be represented in bfloat16"):
        TextureArray.from_image(noise(20, 30), segmenter=many, dtype=torch.bfloat16)["cluster_id"]
