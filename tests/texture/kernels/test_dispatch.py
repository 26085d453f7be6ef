"""Which backend runs an operation, and that it is recorded."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels import dispatch, used, using
from arr_coc.texture.kernels.dispatch import reason, requested_backend, use_kernel


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
