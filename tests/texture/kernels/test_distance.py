"""The distance kernel is exact."""

from __future__ import annotations

import math

import cv2
import pytest
import torch

from arr_coc.texture.kernels import distance
from arr_coc.texture.kernels.distance import distance_buffers, write_distance


def by_kernel(edge: torch.Tensor) -> torch.Tensor:
    out = torch.full(edge.shape, float("nan"), device=edge.device)
    write_distance(edge, *distance_buffers(tuple(edge.shape), edge.device), out)  # type: ignore[arg-type]
    return out


def exact(edge: torch.Tensor) -> torch.Tensor:
    outside = (edge == 0).to(torch.uint8).cpu().numpy()
    length = torch.from_numpy(cv2.distanceTransform(outside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE))
    half = math.hypot(*edge.shape) / 2
    return (length.square_().round_().sqrt_() / half).clamp_(max=1).to(edge.device)


@pytest.mark.parametrize("size", [(1, 1), (1, 70), (70, 1), (33, 47)])
def test_equals_the_exact_transform(size: tuple[int, int], device: torch.device) -> None:
    torch.manual_seed(1)
    edge = (torch.rand(2, *size, device=device) < 0.02).to(torch.uint8)
    edge[:, size[0] // 2, size[1] // 3] = 1
    found = by_kernel(edge)
    for number in range(2):
        assert torch.allclose(found[number], exact(edge[number]), atol=1e-6)


def test_an_image_without_an_edge_gets_one_and_others_do_not(device: torch.device) -> None:
    edge = torch.zeros(2, 9, 12, dtype=torch.uint8, device=device)
    edge[1, 0, 0] = 1
    found = by_kernel(edge)
    assert bool((found[0] == 1).all())
    assert torch.allclose(found[1], exact(edge[1]), atol=1e-6)


def test_large_images_need_more_than_16_bits(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert distance_buffers((1, 4, 5), device)[0].dtype == torch.int16
    assert distance_buffers((1, 1, (1 << 14) + 1), device)[0].dtype == torch.int32
    if device.type == "cpu":
        monkeypatch.setattr(distance, "INT16_SIDE", 70)  # the same path on a small image: the interpreter is slow
    edge = torch.zeros(1, 1, distance.INT16_SIDE + 1, dtype=torch.uint8, device=device)
    edge[0, 0, 0] = 1
    along, found = distance_buffers((1, 1, distance.INT16_SIDE + 1), device)
    assert along.dtype == torch.int32
    out = torch.empty(edge.shape, device=device)
    write_distance(edge, along, found, out)
    assert torch.allclose(out[0], exact(edge[0]), atol=1e-6)
