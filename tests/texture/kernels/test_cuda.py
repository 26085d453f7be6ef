"""What only a GPU can show: graphs, and that nothing waits. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.texture.kernels.sampling import sample
from arr_coc.texture.kernels.whole import Whole

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def nobody_waits() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.rand(1, 3, 256, 320, device="cuda")


@pytest.fixture
def warm(pixels: torch.Tensor) -> TextureArray:
    """A texture of another image of the size: everything is compiled, and buffers are there."""
    texture = TextureArray.from_image(pixels[0].flip(0), max_side=None, layout=LAYOUT)
    texture.grid(8, 10)
    texture.sample(torch.rand(9, 2, device="cuda"), torch.rand(9, device="cuda"))
    return texture


LAYOUT = [name for name in arr_coc.FULL40 if name != "text"]


@pytest.mark.usefixtures("warm")
def test_a_texture_on_the_gpu_waits_for_nothing(pixels: torch.Tensor, request: pytest.FixtureRequest) -> None:
    texture = TextureArray.from_image(pixels[0], max_side=None, layout=LAYOUT)  # looks at the values' range
    points, levels = torch.rand(9, 2, device="cuda"), torch.rand(9, device="cuda")
    request.getfixturevalue("nobody_waits")
    texture.tensor()
    texture.grid(8, 10)
    texture.sample(points, levels)


def test_a_graph_writes_what_launches_write(pixels: torch.Tensor) -> None:
    plain = Whole(1, (256, 320), dtype=torch.float32)
    plain.update(pixels)
    expected = plain.block.clone()
    recorded = Whole(1, (256, 320), dtype=torch.float32).capture()
    recorded.update(pixels.flip(0) * 0)
    recorded.update(pixels)
    assert torch.allclose(recorded.block, expected, atol=1e-6)
    for level, other in zip(recorded.levels, plain.levels, strict=True):
        assert torch.allclose(level, other, atol=1e-6)


def test_a_recorded_texture_and_its_samples_wait_for_nothing(
    pixels: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    made = Whole(1, (256, 320)).capture()
    places = made.places(0)
    points, levels = torch.rand(273, 2, device="cuda"), torch.zeros(273, device="cuda")
    sample(places, points, levels)
    request.getfixturevalue("nobody_waits")
    made.update(pixels)
    sample(places, points, levels)
