"""Planes that lie anywhere in memory, as a kernel can find them: address, row stride and column stride of each.

A texture's channels are single planes: some are views of the image, some take no memory at all (strides 0). A table of
where they are spares copying them into one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from arr_coc.devices import placed
from arr_coc.errors import ArrCocError

RULES = {"mean": 0, "max": 1, "nearest": 2}
LARGEST = 1 << 31  # elements that 32-bit offsets reach
AT_ONCE = 16  # bytes that a lane of a GPU loads at once, at the most


def table(planes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Address, row stride and column stride of planes `[H, W]`: int64 `[C, 3]` on their device."""
    first = planes[0]
    for plane in planes:
        if plane.ndim != 2 or plane.shape != first.shape or plane.dtype != first.dtype or plane.device != first.device:
            raise ArrCocError(
                f"expected planes [H, W] of one size, dtype and device, got {list(first.shape)} {first.dtype} on "
                f"{first.device} and {list(plane.shape)} {plane.dtype} on {plane.device}"
            )
    rows = [[plane.data_ptr(), plane.stride(0), plane.stride(1)] for plane in planes]
    return placed(torch.tensor(rows, dtype=torch.int64), first.device)


def rules(names: Sequence[str], device: torch.device) -> torch.Tensor:
    """Pooling rules as numbers: int32 `[C]` (`RULES`)."""
    return _rules(tuple(names), device)


@lru_cache(maxsize=64)
def _rules(names: tuple[str, ...], device: torch.device) -> torch.Tensor:
    """Sent once, and there when this returns, for any stream: the same channels are asked for again and again."""
    with torch.inference_mode(False):
        return torch.tensor([RULES[name] for name in names], dtype=torch.int32).to(device)


def wide(*planes: torch.Tensor) -> bool:
    """Whether an offset inside one of these planes `[..., H, W]` can be beyond 32 bits."""
    return any(_reach(plane) >= LARGEST for plane in planes)


def packed(planes: Sequence[torch.Tensor]) -> bool:
    """Whether every row of these planes `[H, W]` lies in one piece that starts where a lane can load many values at once."""
    return all(
        plane.stride(1) == 1 and plane.data_ptr() % AT_ONCE == 0 and plane.stride(0) * plane.itemsize % AT_ONCE == 0
        for plane in planes
    )


def _reach(plane: torch.Tensor) -> int:
    """The largest offset inside a plane."""
    height, width = plane.shape[-2:]
    return int((height - 1) * abs(plane.stride(-2)) + (width - 1) * abs(plane.stride(-1)))


def element(dtype: torch.dtype) -> object:
    """Triton's name for a plane's dtype."""
    import triton.language as tl

    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]
