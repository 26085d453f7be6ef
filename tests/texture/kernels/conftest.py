"""Every test here runs kernels: on a GPU, or in Triton's interpreter, which tests/conftest.py switches on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
import torch

# Without Triton there is nothing to run here; tests/texture covers the torch path.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["*.py"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def by_triton() -> Iterator[None]:
    from arr_coc.texture.kernels import using

    with using("triton"):
        yield


@pytest.fixture
def image(device: torch.device) -> torch.Tensor:
    """Images with edges, flat parts and colours: `[2, 3, 33, 45]`, not contiguous."""
    torch.manual_seed(0)
    pictures = torch.rand(2, 45, 33, 3, device=device)
    pictures[0, 10:30, 5:20] = 0.25
    pictures[1, :, :16] = pictures[1, :, 16:32] * 0.1 + 0.5
    return pictures.permute(0, 3, 2, 1)


@pytest.fixture(autouse=True)
def unwritten_lanes() -> Iterator[None]:
    """Lanes beyond the image read unwritten memory and store nothing. In the interpreter numpy would warn of what lies there."""
    with np.errstate(invalid="ignore", over="ignore"):
        yield
