"""Saliency by kernels equals the channel."""

from __future__ import annotations

import pytest
import torch

from arr_coc import TextureArray
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.saliency import CentreSurround


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (33, 45), (32, 40)])
def test_equals_the_channel(size: tuple[int, int], packed: bool, image: torch.Tensor) -> None:
    """With cells that cut pixels or not, and with contiguous rows or not."""
    pictures = torch.cat([image[:, :, : size[0], : size[1]], torch.full_like(image[:1, :, : size[0], : size[1]], 0.3)])
    pictures = pictures.contiguous() if packed else pictures.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    found = CentreSurround(3, size, image.device)
    out = torch.full((3, *size), float("nan"), device=image.device)
    found.write(pictures, out)
    with using("torch"):
        for picture, made in zip(pictures, out, strict=True):
            expected = TextureArray.from_image(picture, max_side=None)["saliency"]
            assert torch.allclose(made, expected, atol=1e-5)


def test_positions_at_the_far_end_of_a_wide_picture_are_exact(device: torch.device) -> None:
    """Against the CPU, which computes them in 64 bits: with 32 the difference is three times the tolerance."""
    wide = torch.rand(3, 16, 3001, generator=torch.Generator().manual_seed(0))
    out = torch.full((1, 16, 3001), float("nan"), device=device)
    CentreSurround(1, (16, 3001), device).write(wide[None].to(device), out)
    with using("torch"):
        expected = TextureArray.from_image(wide, max_side=None)["saliency"]
    assert torch.allclose(out[0].cpu(), expected, atol=1e-5)
