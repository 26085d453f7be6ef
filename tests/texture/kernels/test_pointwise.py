"""The pointwise channels in one pass equal the channels one by one."""

from __future__ import annotations

import pytest
import torch

from arr_coc import TextureArray
from arr_coc.texture.channels.edges import IS_EDGE
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.pointwise import POINTWISE, write_pointwise

CLOSE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def reference(image: torch.Tensor, before: torch.Tensor) -> dict[str, torch.Tensor]:
    with using("torch"):
        texture = TextureArray.from_image(image, max_side=None, supplied={"previous_frame": before})
        return {name: texture[name] for name in POINTWISE}


def by_kernel(image: torch.Tensor, before: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Written into memory that holds NaN."""
    batch, _, height, width = image.shape
    out = torch.full((batch, len(POINTWISE), height, width), float("nan"), dtype=dtype, device=image.device)
    edge = torch.full((batch, height, width), 7, dtype=torch.uint8, device=image.device)
    write_pointwise(image, out, {name: number for number, name in enumerate(POINTWISE)}, before, edge)
    return out, edge


@pytest.mark.parametrize("dtype", list(CLOSE))
def test_equals_the_channels_on_a_strided_batch(image: torch.Tensor, dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        image = image[:, :, :9, :21]
    before = image.flip(0)
    out, edge = by_kernel(image, before, dtype)
    for number in range(len(image)):
        expected = reference(image[number], before[number])
        for name, plane in zip(POINTWISE, out[number], strict=True):
            difference = (plane.float() - expected[name]).abs()
            if name in ("edges", "edges_inverted"):
                # A pixel whose luma equals its surroundings' may fall to either polarity.
                assert (difference <= CLOSE[dtype]).float().mean() > 0.99, name
            else:
                assert difference.max() <= CLOSE[dtype] * max(1.0, float(expected[name].abs().max())), name
        steep = expected["edge_magnitude"]
        clear = (steep - IS_EDGE).abs() > 1e-5
        assert torch.equal(edge[number].bool()[clear], (steep > IS_EDGE)[clear])


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (14, 32)])
def test_any_size_is_written_to_its_last_pixel(size: tuple[int, int], device: torch.device) -> None:
    image = torch.rand(1, 3, *size, device=device)
    out, edge = by_kernel(image, image.flip(1), torch.float32)
    expected = reference(image[0], image.flip(1)[0])
    assert not bool(out.isnan().any())
    assert int(edge.max()) <= 1
    for name, plane in zip(POINTWISE, out[0], strict=True):
        if not name.startswith("edges"):
            assert torch.allclose(plane, expected[name], atol=1e-5, rtol=1e-5), name


def test_a_gray_image_may_be_three_views_of_one_plane(device: torch.device) -> None:
    gray = torch.rand(1, 1, 9, 20, device=device)
    assert torch.equal(
        by_kernel(gray.expand(1, 3, 9, 20), gray.expand(1, 3, 9, 20), torch.float32)[0],
        by_kernel(gray.repeat(1, 3, 1, 1), gray.repeat(1, 3, 1, 1), torch.float32)[0],
    )


def test_other_planes_are_not_touched(device: torch.device) -> None:
    out = torch.full((1, 2, 9, 9), 5.0, device=device)
    write_pointwise(torch.rand(1, 3, 9, 9, device=device), out, {"lowpass": 1})
    assert bool((out[:, 0] == 5).all())
    assert bool((out[:, 1] <= 1).all())
