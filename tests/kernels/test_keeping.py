"""Kept tokens by a kernel are those that indexing gives."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.kernels.keeping import gather_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_indexing(dtype: torch.dtype, device: torch.device) -> None:
    tokens = torch.rand(2, 70, 11, device=device).to(dtype).transpose(1, 2)  # [2, 11, 70], not contiguous
    keep = torch.randint(0, 11, (2, 5), device=device)
    expected = torch.stack([one[places] for one, places in zip(tokens, keep, strict=True)])
    assert torch.equal(gather_tokens(tokens, keep), expected)


def test_a_place_that_is_none_is_seen(device: torch.device) -> None:
    made = gather_tokens(torch.rand(1, 3, 4, device=device), torch.tensor([[2, 3, -1]], device=device))
    assert made.isnan().any(-1).tolist() == [[False, True, True]]


def test_nothing_kept_and_wrong_shapes(device: torch.device) -> None:
    tokens = torch.rand(1, 3, 4, device=device)
    assert gather_tokens(tokens, torch.zeros(1, 0, dtype=torch.long, device=device)).shape == (1, 0, 4)
    with pytest.raises(ArrCocError, match=r"expected tokens \[B, N, D\]"):
        gather_tokens(tokens[0], torch.zeros(1, 1, dtype=torch.long, device=device))
