"""Text likelihood: high on print of either polarity, low on paper, solid rules and pictures."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage import data

import arr_coc
from arr_coc import ChannelError, TextureArray
from arr_coc.texture.channels.text import BIAS, WEIGHTS, _engine, text_features, text_likelihood

from ...conftest import noise


@pytest.fixture(scope="module")
def receipt() -> np.ndarray:
    return np.asarray(arr_coc.pictures.receipt())


def slow_features(luma: np.ndarray) -> np.ndarray:
    """The five features in scipy."""
    small = luma.reshape(luma.shape[0] // 2, 2, luma.shape[1] // 2, 2).mean((1, 3))
    box = lambda x, size: ndimage.uniform_filter(x, size, mode="nearest")  # noqa: E731
    down, across = (np.abs(ndimage.sobel(small, axis, mode="nearest") / 4) for axis in (0, 1))
    slopes = np.minimum(box(across, (7, 15)), box(down, (7, 15)))
    mean = box(small, 15)
    spread = box(small * small, 15) - mean * mean
    above = small > mean
    swing = np.zeros(small.shape)
    swing[:, :-1] = (above[:, 1:] != above[:, :-1]) & (spread[:, :-1] > 0.04**2)
    light, dark = ndimage.maximum_filter(small, 9, mode="nearest"), ndimage.minimum_filter(small, 9, mode="nearest")
    rough = [box(np.abs(extreme - box(extreme, 21)), 15) for extreme in (light, dark)]
    imbalance = np.clip(np.abs(light + dark - 2 * mean) / np.maximum(light - dark, 0.02), 0, 1)
    joined = ndimage.maximum_filter(np.maximum(across, down), (1, 9), mode="nearest")
    height = box(ndimage.grey_opening(joined, (5, 1), mode="nearest"), (7, 15))
    logs = [np.log(feature + 0.01) for feature in (slopes, np.minimum(*rough), height)]
    return np.stack([logs[0], box(swing, (7, 21)), logs[1], box(imbalance, (7, 15)), logs[2]])


def test_features_and_likelihood_equal_scipys() -> None:
    luma = np.asarray(arr_coc.pictures.receipt().convert("L").crop((40, 100, 440, 400))).astype(np.float64) / 255
    expected = slow_features(luma)
    got = text_features(torch.from_numpy(luma).float())
    assert np.abs(got[[0, 2, 3, 4]].numpy() - expected[[0, 2, 3, 4]]).max() < 1e-3
    # A pixel exactly at its surroundings' mean may count as above or below.
    assert (np.abs(got[1].numpy() - expected[1]) < 1e-4).mean() > 0.99
    likelihood = 1 / (1 + np.exp(-(np.tensordot(WEIGHTS, expected, axes=1) + BIAS)))
    assert (np.abs(text_likelihood(torch.from_numpy(luma).float()).numpy() - likelihood) < 5e-3).mean() > 0.99


def test_print_is_text_and_paper_is_not(receipt: np.ndarray) -> None:
    text = TextureArray.from_image(receipt, max_side=None)["text"]
    assert text[70:88, 100:460].median() > 0.8  # the shop's name
    assert text[1130:1200, 60:500].max() < 0.1  # empty paper below the bars


def test_light_print_on_dark_ground_counts_the_same(receipt: np.ndarray) -> None:
    dark, light = TextureArray.from_image(receipt)["text"], TextureArray.from_image(255 - receipt)["text"]
    assert (dark - light).abs().mean() < 0.01


def held_out() -> dict[str, np.ndarray]:
    """Pictures without text that the fit has not seen."""
    street = np.asarray(arr_coc.pictures.scene())[:300]  # roofs, windows and the tree, above the signs
    return {"engine": data.stereo_motorcycle()[0], "phantom": data.shepp_logan_phantom(), "street": street}


@pytest.mark.parametrize("name", ["engine", "phantom", "street"])
def test_pictures_without_text_have_almost_none(name: str) -> None:
    assert (TextureArray.from_image(held_out()[name])["text"] > 0.5).float().mean() < 0.02


@pytest.mark.parametrize("dash", [4, 8, 300])
def test_rules_dashed_and_solid_are_no_text(dash: int) -> None:
    page = torch.full((3, 200, 300), 0.9)
    for start in range(30, 270, 2 * dash):
        page[:, 100:102, start : min(270, start + dash)] = 0.1
    assert TextureArray.from_image(page)["text"].max() < 0.5


def test_blank_and_noise_are_no_text() -> None:
    assert TextureArray.from_image(torch.full((3, 50, 60), 0.7))["text"].max() < 0.01
    assert (TextureArray.from_image(noise(200, 200))["text"] > 0.5).float().mean() < 0.03


def test_rapidocr_finds_the_lines(receipt: np.ndarray) -> None:
    pytest.importorskip("rapidocr", reason="the extra 'ocr' is not installed")
    text = TextureArray.from_image(receipt, text="rapidocr", max_side=None)["text"]
    assert text[72:86, 120:440].mean() > 0.6
    assert text[1130:].max() == 0
    assert TextureArray.from_image(torch.ones(3, 40, 40), text="rapidocr")["text"].max() == 0


def test_a_users_detector() -> None:
    texture = TextureArray.from_image(noise(20, 30), text=lambda pixels: torch.ones(2, 3))
    assert texture["text"].unique().tolist() == [1.0]
    with pytest.raises(ChannelError, match=r"likelihood \[h, w\], got \[3\]"):
        TextureArray.from_image(noise(20, 30), text=lambda pixels: torch.ones(3))["text"]
    for nonsense in (7.0, float("nan")):
        with pytest.raises(ChannelError, match=r"likelihoods in \[0, 1\]"):
            TextureArray.from_image(noise(20, 30), text=lambda pixels, v=nonsense: torch.full((2, 3), v))["text"]
    with pytest.raises(ChannelError, match="did you mean 'rapidocr'"):
        TextureArray.from_image(noise(20, 30), text="rapid")["text"]


def test_a_missing_extra_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _engine.cache_clear()
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(ChannelError, match=r'pip install "arr-coc\[ocr\]"'):
        TextureArray.from_image(noise(20, 30), text="rapidocr")["text"]
