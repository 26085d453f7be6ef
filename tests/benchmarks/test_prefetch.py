"""Pictures are copied unchanged, one batch after the other."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from gpu_graphs.prefetch import Prefetcher


def test_each_batch_arrives(device: torch.device) -> None:
    prefetcher = Prefetcher((2, 3, 5, 4), device)
    for _ in range(4):
        images = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8)
        prefetcher.send(images)
        assert torch.allclose(prefetcher.take().cpu(), images.float() / 255)


def test_wrong_shape_and_order_are_refused(device: torch.device) -> None:
    prefetcher = Prefetcher((1, 3, 2, 2), device)
    with pytest.raises(ArrCocError, match="no copy was started"):
        prefetcher.take()
    with pytest.raises(ArrCocError, match=r"expected pictures uint8 \[1, 3, 2, 2\], got float32"):
        prefetcher.send(torch.zeros(1, 3, 2, 2))
    prefetcher.send(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    with pytest.raises(ArrCocError, match="expected `take`"):
        prefetcher.send(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
