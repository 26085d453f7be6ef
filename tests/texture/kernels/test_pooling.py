"""Cells and mip levels by kernels equal those by torch, also for odd sizes."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.filters import Pyramid, level_count, pool
from arr_coc.texture.kernels.pooling import make_levels, needs_int64, pool_cells

RULES = ("mean", "max", "nearest", "mean", "max")


def planes(size: tuple[int, int], device: torch.device, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Contiguous, transposed, every second column, one row repeated, and a constant."""
    torch.manual_seed(2)
    height, width = size
    return [
        torch.rand(size, device=device).to(dtype),
        torch.rand(width, height, device=device).to(dtype).T - 0.5,
        torch.randint(0, 50, (height, 2 * width), device=device).to(dtype)[:, ::2],
        torch.rand(1, width, device=device).to(dtype).expand(size),
        torch.full((1, 1), 0.25, device=device, dtype=dtype).expand(size),
    ]


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((1, 1), (1, 1)),
        ((1, 1), (7, 5)),
        *(((30, 41), grid) for grid in [(1, 1), (7, 5), (15, 20), (30, 41)]),
        ((9, 25), (11, 2)),
    ],
)
def test_equals_pool(size: tuple[int, int], grid: tuple[int, int], device: torch.device) -> None:
    given = planes(size, device)
    found = pool_cells(given, grid, RULES)
    for plane, rule, made in zip(given, RULES, found, strict=True):
        assert torch.allclose(made, pool(plane, grid, rule), atol=1e-5, rtol=1e-5)  # type: ignore[arg-type]


def test_half_precision_is_summed_in_float32(device: torch.device) -> None:
    given = planes((40, 40), device, torch.float16)
    found = pool_cells(given, (3, 3), RULES)
    assert found.dtype == torch.float16
    for plane, rule, made in zip(given, RULES, found, strict=True):
        assert torch.allclose(made.float(), pool(plane.float(), (3, 3), rule), atol=1e-3)  # type: ignore[arg-type]


def test_planes_of_two_sizes_are_refused(device: torch.device) -> None:
    with pytest.raises(ArrCocError, match="expected planes"):
        pool_cells([torch.zeros(3, 3, device=device), torch.zeros(3, 4, device=device)], (1, 1), ("mean", "mean"))


def test_offsets_beyond_32_bits_are_detected() -> None:
    huge = torch.zeros(1, 1, dtype=torch.uint8).expand(1 << 16, 1 << 16)
    assert not needs_int64(huge)  # it takes no memory at all
    assert needs_int64(torch.empty(1 << 16, (1 << 15) + 1, device="meta"))
    assert not needs_int64(torch.empty(4096, 4096, device="meta"))


@pytest.mark.parametrize("size", [(1, 1), (64, 32), (48, 80), (13, 22), (1, 9)])
def test_every_level_equals_torchs(size: tuple[int, int], device: torch.device) -> None:
    torch.manual_seed(3)
    planes = [torch.rand(size, device=device) - 0.5, torch.rand(size, device=device), torch.rand(size, device=device)]
    levels = make_levels(planes, RULES[:3])
    assert len(levels) == level_count(size) - 1
    for channel, (plane, rule) in enumerate(zip(planes, RULES[:3], strict=True)):
        pyramid = Pyramid(plane, rule)  # type: ignore[arg-type]
        for number, level in enumerate(levels, start=1):
            assert torch.allclose(level[channel], pyramid.level(number), atol=1e-6), (rule, number)


def test_some_levels_in_half_precision(device: torch.device) -> None:
    plane = torch.rand(16, 24, device=device).half()
    levels = make_levels([plane, plane], ("mean", "max"), 2)
    assert [tuple(level.shape) for level in levels] == [(2, 8, 12), (2, 4, 6)]
    assert torch.allclose(levels[1][0].float(), Pyramid(plane.float(), "mean").level(2), atol=1e-3)
    assert torch.equal(levels[1][1], Pyramid(plane, "max").level(2))
