"""Which backend runs an operation; a texture by kernels equals one by torch; on a GPU nothing waits for the host."""

from __future__ import annotations

import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.texture.channels import clusters
from arr_coc.texture.kernels import connected_components, dispatch, superpixels, used, using
from arr_coc.texture.kernels.dispatch import reason, requested_backend, use_kernel
from tests.waiting import no_waits

LAYOUT = [name for name in arr_coc.FULL40 if name != "text"]


def test_using_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARR_COC_KERNELS", "torch")
    assert requested_backend() == "triton"  # the fixture's
    with using("auto"):
        assert requested_backend() == "auto"
    token = dispatch._backend.set(None)
    assert requested_backend() == "torch"
    dispatch._backend.reset(token)


def test_the_backend_used_is_recorded(device: torch.device) -> None:
    plane = torch.zeros(3, device=device)
    assert use_kernel("something", plane)
    assert used()["something"] == "triton"
    with using("torch"):
        assert not use_kernel("something", plane)
    assert used()["something"] == "torch"


def test_torch_runs_where_gradients_are_needed(device: torch.device) -> None:
    plane = torch.zeros(3, device=device, requires_grad=True)
    assert not use_kernel("something", plane)
    with torch.no_grad():
        assert use_kernel("something", plane)


def test_auto_runs_torch_on_a_cpu() -> None:
    with using("auto"):
        assert not use_kernel("something", torch.zeros(3))


def test_the_error_without_triton(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    assert "not installed" in str(reason(device))
    with pytest.raises(ArrCocError, match=r"expected to run samples by Triton, and cannot: Triton is not installed"):
        use_kernel("samples", torch.zeros(3, device=device))
    with using("auto"):
        assert not use_kernel("samples", torch.zeros(3, device=device))


def test_an_old_gpu_runs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(dispatch, "capability", lambda index: (6, 1))
    assert reason("cuda") == "this GPU has compute capability 6.1, and Triton needs 7.0"
    monkeypatch.setattr(dispatch, "capability", lambda index: (9, 0))
    assert reason("cuda") is None


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(ArrCocError, match="on one device, got cpu and meta"):
        use_kernel("something", torch.zeros(3), torch.zeros(3, device="meta"))


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArrCocError, match="expected backend as one of auto, triton, torch, got 'cuda'"), using("cuda"):  # type: ignore[arg-type]
        pass
    monkeypatch.setenv("ARR_COC_KERNELS", "fast")
    token = dispatch._backend.set(None)
    with pytest.raises(ArrCocError, match="ARR_COC_KERNELS"):
        requested_backend()
    dispatch._backend.reset(token)


def test_an_image_that_is_too_large_runs_torch(device: torch.device) -> None:
    long = torch.zeros(1, 1, device=device).expand(2, 40000)
    with pytest.raises(ArrCocError, match="a side of 40,000 px is longer than 32,768"):
        use_kernel("cells", long)
    with using("auto"):
        assert not use_kernel("cells", long)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (superpixels, connected_components, clusters):
        monkeypatch.setattr(module, "ROUNDS", 1, raising=False)
        monkeypatch.setattr(module, "SEGMENTS", 4)
        monkeypatch.setattr(module, "WORK_SIDE", 10, raising=False)


@pytest.mark.usefixtures("few")
def test_a_texture_by_kernels_equals_torch(image: torch.Tensor) -> None:
    picture = image[0, :, :16, :24].contiguous()
    layout = [*LAYOUT, "sobel_x", "edge_magnitude"]
    made = TextureArray.from_image(picture, layout=layout, max_side=None, supplied={"previous_frame": picture})
    with using("torch"):
        plain = TextureArray.from_image(picture, layout=layout, max_side=None, supplied={"previous_frame": picture})
        expected = plain.tensor(), plain.grid(8, 12), plain.sample([[0.3, 0.8], [0.9, 0.1]], [0.5, 1.5])
    found = made.tensor(), made.grid(8, 12), made.sample([[0.3, 0.8], [0.9, 0.1]], [0.5, 1.5])
    for one, other in zip(found, expected, strict=True):
        assert float(((one - other).abs() > 1e-5).float().mean()) < 0.01
    kernels = ("pointwise channels", "motion", "saliency", "superpixels", "regions", "distance", "cells", "samples")
    assert [used()[name] for name in kernels] == ["triton"] * len(kernels)


def test_gradients_are_torchs(device: torch.device) -> None:
    plane = torch.rand(8, 8, device=device, requires_grad=True)
    texture = TextureArray.from_planes({"red": plane})
    texture.sample([[0.2, 0.7]], 0.5).sum().backward()
    assert plane.grad is not None
    assert float(plane.grad.sum()) == pytest.approx(1.0)
    assert used()["samples"] == "torch"


def test_points_on_the_host_that_are_not_finite_are_refused(device: torch.device) -> None:
    texture = TextureArray.from_planes({"red": torch.rand(8, 8, device=device)})
    with pytest.raises(ArrCocError, match="finite"):
        texture.sample([[float("nan"), 0.5]])


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.rand(1, 3, 256, 320, device="cuda")


@pytest.fixture
def warm(pixels: torch.Tensor) -> TextureArray:
    """A texture of another image of the same size: kernels are compiled, buffers allocated."""
    texture = TextureArray.from_image(pixels[0].flip(0), max_side=None, layout=LAYOUT)
    texture.grid(8, 10)
    texture.sample(torch.rand(9, 2, device="cuda"), torch.rand(9, device="cuda"))
    return texture


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.usefixtures("warm")
def test_a_texture_on_the_gpu_waits_for_nothing(pixels: torch.Tensor) -> None:
    texture = TextureArray.from_image(pixels[0], max_side=None, layout=LAYOUT)  # checks the range of the values
    points, levels = torch.rand(9, 2, device="cuda"), torch.rand(9, device="cuda")
    with no_waits():
        texture.tensor()
        texture.grid(8, 10)
        texture.sample(points, levels)
