"""Distance to the nearest edge, exact on the CPU, close by jump flooding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from arr_coc import TextureArray
from arr_coc.texture.channels.distance import distance_to, jump_flooding


def test_equals_scipys_transform(texture: TextureArray) -> None:
    height, width = texture.size
    edge = texture["edge_magnitude"].numpy() > 0.1
    expected = np.minimum(ndimage.distance_transform_edt(~edge) / (np.hypot(height, width) / 2), 1)
    assert np.abs(texture["distance"].numpy() - expected).max() < 1e-5


@pytest.mark.parametrize(("size", "share"), [((1, 1), 1), ((1, 50), 0.1), ((97, 513), 0.0005), ((200, 170), 0.02)])
def test_both_transforms_on_sparse_points(size: tuple[int, int], share: float) -> None:
    mask = np.random.default_rng(1).random(size) < share
    mask.flat[mask.size // 3] = True
    expected = ndimage.distance_transform_edt(~mask)
    exact = distance_to(torch.from_numpy(mask)).numpy()
    assert np.abs(exact - expected).max() < 1e-4
    flooded = jump_flooding(torch.from_numpy(mask)).numpy()
    assert (np.abs(flooded - expected) < 1e-4).mean() > 0.995
    assert np.abs(flooded - expected).max() < 2


def test_no_edge_at_all_gives_one_everywhere() -> None:
    assert TextureArray.from_image(torch.full((3, 30, 40), 0.4))["distance"].unique().tolist() == [1.0]


def test_far_away_is_clamped_to_one() -> None:
    page = torch.zeros(3, 4, 300)
    page[:, :, 0] = 1
    distance = TextureArray.from_image(page)["distance"]
    assert distance[0, 0] == 0
    assert distance[0, -1] == 1
