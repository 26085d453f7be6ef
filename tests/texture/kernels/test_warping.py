"""Maps carried by a kernel are carried as torch carries them."""

from __future__ import annotations

import pytest
import torch

from arr_coc.frames import flow
from arr_coc.texture.kernels.warping import warp_planes


@pytest.mark.parametrize("size", [(1, 1), (17, 40)])
@pytest.mark.parametrize("nearest", [False, True])
def test_equals_torch_times_confidence(size: tuple[int, int], nearest: bool, device: torch.device) -> None:
    torch.manual_seed(6)
    planes = torch.rand(*size[::-1], 3, device=device).permute(2, 1, 0)
    vectors, sure = torch.randn(2, *size, device=device) * 4, torch.rand(size, device=device)
    expected = flow._sample_torch(planes, vectors, nearest)
    assert torch.allclose(warp_planes(planes, vectors, nearest=nearest), expected, atol=1e-5)
    assert torch.allclose(warp_planes(planes, vectors, sure, nearest), expected * sure, atol=1e-5)


def test_halves_go_to_the_even_pixel(device: torch.device) -> None:
    planes = torch.arange(8.0, device=device).view(1, 1, 8)
    vectors = torch.zeros(2, 1, 8, device=device)
    vectors[0] = 0.5
    assert torch.equal(warp_planes(planes, vectors, nearest=True), flow._sample_torch(planes, vectors, True))


def test_half_precision_stays(device: torch.device) -> None:
    planes = torch.rand(2, 6, 6, device=device).half()
    vectors = torch.full((2, 6, 6), 0.25, device=device)
    made = warp_planes(planes, vectors)
    assert made.dtype == torch.float16
    assert torch.allclose(made.float(), flow._sample_torch(planes.float(), vectors, False), atol=1e-3)


def test_the_flow_uses_it(device: torch.device) -> None:
    from arr_coc.texture.kernels import used

    moved = flow.Flow(torch.full((2, 5, 5), 0.5, device=device), torch.ones(5, 5, device=device))
    flow.warp(torch.rand(4, 5, 5, device=device), moved)
    assert used()["warp"] == "triton"
