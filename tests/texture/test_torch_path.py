"""What a GPU runs, run on the CPU: every filter and every average by torch instead of OpenCV gives the same channels."""

from __future__ import annotations

import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.texture import filters, pooling
from arr_coc.texture.channels import distance


@pytest.mark.parametrize("picture", ["receipt", "scene"])
def test_all_channels_levels_and_cells_agree(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = getattr(arr_coc.pictures, picture)().resize((300, 411))
    layout = [*arr_coc.FULL40, "sobel_x", "sobel_y", "edge_magnitude"]
    by_opencv = TextureArray.from_image(image, layout=layout)
    expected = {name: by_opencv[name] for name in layout}
    cells, coarse = by_opencv.grid(31, 17), by_opencv.tensor(2)
    monkeypatch.setattr(filters, "_on_cpu", lambda plane: False)
    monkeypatch.setattr(pooling, "_opencv_serves", lambda plane, size: False)
    monkeypatch.setattr(distance, "distance_to", distance.jump_flooding)
    by_torch = TextureArray.from_image(image, layout=layout)
    for name in layout:
        difference = (by_torch[name] - expected[name]).abs()
        # A pixel whose luma equals its surroundings' may fall to either polarity; jump flooding errs in rare corners.
        assert (difference < 1e-4).float().mean() > 0.995, name
    assert ((by_torch.grid(31, 17) - cells).abs() < 1e-3).float().mean() > 0.995
    assert ((by_torch.tensor(2) - coarse).abs() < 1e-3).float().mean() > 0.995
    assert torch.equal(by_torch["cluster_id"], expected["cluster_id"])
