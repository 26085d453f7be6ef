"""Without a GPU kernels run in Triton's interpreter; it must be asked for before they are imported."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def by_triton() -> Iterator[None]:
    from arr_coc.kernels import using

    with using("triton"):
        yield
