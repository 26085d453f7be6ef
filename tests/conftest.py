"""Pictures that many tests look at."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # run kernels in the interpreter; Triton reads this when it is first imported

import arr_coc
from arr_coc import TextureArray


def noise(height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def structured(height: int, width: int) -> torch.Tensor:
    """A gradient with a dark box, a light line and a single coloured pixel: something for every channel."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([x / max(1, width - 1), y / max(1, height - 1), (x + y) / max(1, height + width - 2)]) * 0.6 + 0.2
    image[:, height // 4 : height // 2, width // 5 : width // 2] = 0.05
    image[:, (3 * height) // 4, :] = 0.95
    image[:, height // 3, (2 * width) // 3] = (1.0, 0.0, 0.5)
    return torch.from_numpy(image.astype(np.float32))


@pytest.fixture(params=["noise", "structured", "odd", "receipt"])
def pixels(request: pytest.FixtureRequest) -> torch.Tensor:
    """Images `[3, H, W]` of different nature."""
    if request.param == "receipt":
        picture = arr_coc.pictures.receipt().crop((30, 40, 330, 300))
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255
    return {"noise": noise(64, 96), "structured": structured(120, 90), "odd": noise(37, 53, seed=1)}[request.param]


@pytest.fixture
def texture(pixels: torch.Tensor) -> TextureArray:
    return TextureArray.from_image(pixels)
