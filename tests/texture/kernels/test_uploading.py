"""Pictures arrive as they were sent, one batch after the other."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels.uploading import Uploads


def test_each_batch_arrives(device: torch.device) -> None:
    uploads = Uploads((2, 3, 5, 4), device)
    for _ in range(4):
        images = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8)
        uploads.send(images)
        assert torch.allclose(uploads.take().cpu(), images.float() / 255)


def test_what_does_not_fit_or_comes_out_of_turn_is_refused(device: torch.device) -> None:
    uploads = Uploads((1, 3, 2, 2), device)
    with pytest.raises(ArrCocError, match="nothing is on its way"):
        uploads.take()
    with pytest.raises(ArrCocError, match=r"expected pictures uint8 \[1, 3, 2, 2\], got float32"):
        uploads.send(torch.zeros(1, 3, 2, 2))
    uploads.send(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    with pytest.raises(ArrCocError, match="expected `take`"):
        uploads.send(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
