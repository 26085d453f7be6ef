"""Saliency by kernels is the channel's."""

from __future__ import annotations

import pytest
import torch

from arr_coc import TextureArray
from arr_coc.kernels import using
from arr_coc.kernels.centre_surround import CentreSurround


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (33, 45)])
def test_equals_the_channel(size: tuple[int, int], image: torch.Tensor) -> None:
    pictures = torch.cat([image[:, :, : size[0], : size[1]], torch.full_like(image[:1, :, : size[0], : size[1]], 0.3)])
    found = CentreSurround(3, size, image.device)
    out = torch.full((3, *size), float("nan"), device=image.device)
    found.write(pictures, out)
    with using("torch"):
        for picture, made in zip(pictures, out, strict=True):
            expected = TextureArray.from_image(picture, max_side=None)["saliency"]
            assert torch.allclose(made, expected, atol=1e-5)
