"""Samples by a kernel are the sampler's."""

from __future__ import annotations

import torch

from arr_coc.texture import sampler
from arr_coc.texture.kernels.pyramid import make_levels
from arr_coc.texture.kernels.sampling import Places, sample

RULES = ("mean", "max", "nearest")


def places(size: tuple[int, int], device: torch.device, dtype: torch.dtype = torch.float32) -> Places:
    torch.manual_seed(4)
    planes = [torch.rand(size, device=device).to(dtype) for _ in RULES]
    return Places([planes, *(list(level) for level in make_levels(planes, RULES))], RULES)


def by_torch(found: Places, xy: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    levels = [[plane.float() for plane in one] for one in found.held]
    top = len(levels) - 1
    smooth = sampler.trilinear(lambda number: levels[number][:2], xy, level, top)
    return torch.cat([smooth, sampler.nearest(lambda number: levels[number][2:], xy, level, top)], dim=1)


def test_equals_the_sampler_inside_beside_and_above(device: torch.device) -> None:
    for size in ((1, 1), (19, 34)):
        found = places(size, device)
        xy = torch.rand(40, 2, device=device) * 1.4 - 0.2
        level = torch.rand(40, device=device) * 9 - 1
        level[:8] = torch.arange(8, device=device) / 2  # on and half way between levels
        assert torch.allclose(sample(found, xy, level), by_torch(found, xy, level), atol=1e-5, rtol=1e-5)


def test_points_in_any_layout_and_none_at_all(device: torch.device) -> None:
    found = places((8, 8), device)
    xy = torch.rand(2, 5, device=device).T
    level = torch.tensor(0.5, device=device).expand(5)
    assert torch.allclose(sample(found, xy, level), by_torch(found, xy, level), atol=1e-6)
    assert sample(found, xy[:0], level[:0]).shape == (0, 3)


def test_what_is_no_number_reads_as_none(device: torch.device) -> None:
    found = places((8, 8), device)
    xy = torch.tensor([[0.5, 0.5], [float("nan"), 0.5], [float("inf"), 0.5]], device=device)
    read = sample(found, xy, torch.zeros(3, device=device))
    assert read.isnan().tolist() == [[False] * 3, [True] * 3, [True] * 3]


def test_half_precision_and_a_poisoned_target(device: torch.device) -> None:
    found = places((8, 9), device, torch.float16)
    xy, level = torch.rand(7, 2, device=device), torch.full((7,), 1.25, device=device)
    out = torch.full((7, 3), float("nan"), dtype=torch.float16, device=device)
    sample(found, xy, level, out)
    assert torch.allclose(out.float(), by_torch(found, xy, level), atol=1e-3)
