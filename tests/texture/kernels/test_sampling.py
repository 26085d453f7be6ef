"""Samples and warped planes by kernels equal those by torch."""

from __future__ import annotations

import pytest
import torch

from arr_coc.frames import flow
from arr_coc.texture import sampler
from arr_coc.texture.kernels import used
from arr_coc.texture.kernels.pooling import make_levels
from arr_coc.texture.kernels.sampling import MipTable, sample_mips, warp_planes

RULES = ("mean", "max", "nearest")


def mips(size: tuple[int, int], device: torch.device, dtype: torch.dtype = torch.float32) -> MipTable:
    torch.manual_seed(4)
    planes = [torch.rand(size, device=device).to(dtype) for _ in RULES]
    return MipTable([planes, *(list(level) for level in make_levels(planes, RULES))], RULES)


def by_torch(found: MipTable, xy: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    levels = [[plane.float() for plane in one] for one in found.levels]
    top = len(levels) - 1
    smooth = sampler.trilinear(lambda number: levels[number][:2], xy, level, top)
    return torch.cat([smooth, sampler.nearest(lambda number: levels[number][2:], xy, level, top)], dim=1)


def test_equals_the_sampler_inside_outside_and_between_levels(device: torch.device) -> None:
    for size in ((1, 1), (19, 34)):
        found = mips(size, device)
        xy = torch.rand(40, 2, device=device) * 1.4 - 0.2
        level = torch.rand(40, device=device) * 9 - 1
        level[:8] = torch.arange(8, device=device) / 2  # on levels and half way between
        assert torch.allclose(sample_mips(found, xy, level), by_torch(found, xy, level), atol=1e-5, rtol=1e-5)


def test_points_of_any_stride_and_no_points(device: torch.device) -> None:
    found = mips((8, 8), device)
    xy = torch.rand(2, 5, device=device).T
    level = torch.tensor(0.5, device=device).expand(5)
    assert torch.allclose(sample_mips(found, xy, level), by_torch(found, xy, level), atol=1e-6)
    assert sample_mips(found, xy[:0], level[:0]).shape == (0, 3)


def test_points_that_are_not_finite_give_nan(device: torch.device) -> None:
    found = mips((8, 8), device)
    xy = torch.tensor([[0.5, 0.5], [float("nan"), 0.5], [float("inf"), 0.5]], device=device)
    read = sample_mips(found, xy, torch.zeros(3, device=device))
    assert read.isnan().tolist() == [[False] * 3, [True] * 3, [True] * 3]


def test_samples_in_half_precision_overwrite_nan(device: torch.device) -> None:
    found = mips((8, 9), device, torch.float16)
    xy, level = torch.rand(7, 2, device=device), torch.full((7,), 1.25, device=device)
    out = torch.full((7, 3), float("nan"), dtype=torch.float16, device=device)
    sample_mips(found, xy, level, out)
    assert torch.allclose(out.float(), by_torch(found, xy, level), atol=1e-3)


@pytest.mark.parametrize("size", [(1, 1), (17, 40)])
@pytest.mark.parametrize("nearest", [False, True])
def test_warping_equals_torch_times_confidence(size: tuple[int, int], nearest: bool, device: torch.device) -> None:
    torch.manual_seed(6)
    planes = torch.rand(*size[::-1], 3, device=device).permute(2, 1, 0)
    vectors, sure = torch.randn(2, *size, device=device) * 4, torch.rand(size, device=device)
    expected = flow._sample_torch(planes, vectors, nearest)
    assert torch.allclose(warp_planes(planes, vectors, nearest=nearest), expected, atol=1e-5)
    assert torch.allclose(warp_planes(planes, vectors, sure, nearest), expected * sure, atol=1e-5)


def test_warping_rounds_ties_to_the_even_pixel(device: torch.device) -> None:
    planes = torch.arange(8.0, device=device).view(1, 1, 8)
    vectors = torch.zeros(2, 1, 8, device=device)
    vectors[0] = 0.5
    assert torch.equal(warp_planes(planes, vectors, nearest=True), flow._sample_torch(planes, vectors, True))


def test_warping_keeps_half_precision(device: torch.device) -> None:
    planes = torch.rand(2, 6, 6, device=device).half()
    vectors = torch.full((2, 6, 6), 0.25, device=device)
    made = warp_planes(planes, vectors)
    assert made.dtype == torch.float16
    assert torch.allclose(made.float(), flow._sample_torch(planes.float(), vectors, False), atol=1e-3)


def test_the_flow_warps_by_the_kernel(device: torch.device) -> None:
    moved = flow.Flow(torch.full((2, 5, 5), 0.5, device=device), torch.ones(5, 5, device=device))
    flow.warp(torch.rand(4, 5, 5, device=device), moved)
    assert used()["warp"] == "triton"
