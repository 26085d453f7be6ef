"""Mip levels by kernels equal the pyramid's, also for odd sizes."""

from __future__ import annotations

import pytest
import torch

from arr_coc.texture.kernels.pyramid import make_levels
from arr_coc.texture.pooling import Pyramid, level_count

RULES = ("mean", "max", "nearest")


@pytest.mark.parametrize("size", [(1, 1), (64, 32), (48, 80), (13, 22), (1, 9)])
def test_every_level_equals_torchs(size: tuple[int, int], device: torch.device) -> None:
    torch.manual_seed(3)
    planes = [torch.rand(size, device=device) - 0.5, torch.rand(size, device=device), torch.rand(size, device=device)]
    levels = make_levels(planes, RULES)
    assert len(levels) == level_count(size) - 1
    for channel, (plane, rule) in enumerate(zip(planes, RULES, strict=True)):
        pyramid = Pyramid(plane, rule)  # type: ignore[arg-type]
        for number, level in enumerate(levels, start=1):
            assert torch.allclose(level[channel], pyramid.level(number), atol=1e-6), (rule, number)


def test_some_levels_in_half_precision(device: torch.device) -> None:
    plane = torch.rand(16, 24, device=device).half()
    levels = make_levels([plane, plane], ("mean", "max"), 2)
    assert [tuple(level.shape) for level in levels] == [(2, 8, 12), (2, 4, 6)]
    assert torch.allclose(levels[1][0].float(), Pyramid(plane.float(), "mean").level(2), atol=1e-3)
    assert torch.equal(levels[1][1], Pyramid(plane, "max").level(2))
