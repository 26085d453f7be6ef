"""Every test here runs kernels: on a GPU, or in Triton's interpreter, which tests/conftest.py asks for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

# Without Triton there is nothing to run: dispatch says so to users, and tests/texture runs what they get then.
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
    """Something with edges, flat parts and colours: `[2, 3, 33, 45]`, not contiguous."""
    torch.manual_seed(0)
    pictures = torch.rand(2, 45, 33, 3, device=device)
    pictures[0, 10:30, 5:20] = 0.25
    pictures[1, :, :16] = pictures[1, :, 16:32] * 0.1 + 0.5
    return pictures.permute(0, 3, 2, 1)


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Flow in larger pieces where it is interpreted, which takes its time for every piece."""
    from arr_coc.texture.kernels import flowing

    if device.type == "cpu":
        monkeypatch.setattr(flowing, "BLOCK", 1024)
