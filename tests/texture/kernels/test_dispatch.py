"""Which way work goes, and that it is said."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels import dispatch, used, using
from arr_coc.texture.kernels.dispatch import chosen, reason, way


def test_the_environment_decides_and_using_counts_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARR_COC_KERNELS", "torch")
    assert way() == "triton"  # the fixture's
    with using("auto"):
        assert way() == "auto"
    token = dispatch._way.set(None)
    assert way() == "torch"
    dispatch._way.reset(token)


def test_what_was_used_is_written_down(device: torch.device) -> None:
    plane = torch.zeros(3, device=device)
    assert chosen("something", plane)
    assert used()["something"] == "triton"
    with using("torch"):
        assert not chosen("something", plane)
    assert used()["something"] == "torch"


def test_gradients_are_torchs(device: torch.device) -> None:
    plane = torch.zeros(3, device=device, requires_grad=True)
    assert not chosen("something", plane)
    with torch.no_grad():
        assert chosen("something", plane)


def test_a_cpu_is_left_to_torch_unless_it_is_asked_for() -> None:
    with using("auto"):
        assert not chosen("something", torch.zeros(3))


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    assert "not installed" in str(reason(device))
    with pytest.raises(ArrCocError, match=r"expected to run samples by Triton, and cannot: Triton is not installed"):
        chosen("samples", torch.zeros(3, device=device))
    with using("auto"):
        assert not chosen("samples", torch.zeros(3, device=device))


def test_an_old_gpu_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(dispatch, "capability", lambda index: (6, 1))
    assert reason("cuda") == "this GPU has compute capability 6.1, and Triton needs 7.0"
    monkeypatch.setattr(dispatch, "capability", lambda index: (9, 0))
    assert reason("cuda") is None


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(ArrCocError, match="on one device, got cpu and meta"):
        chosen("something", torch.zeros(3), torch.zeros(3, device="meta"))


def test_an_unknown_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArrCocError, match="expected way as one of auto, triton, torch, got 'cuda'"), using("cuda"):  # type: ignore[arg-type]
        pass
    monkeypatch.setenv("ARR_COC_KERNELS", "fast")
    token = dispatch._way.set(None)
    with pytest.raises(ArrCocError, match="ARR_COC_KERNELS"):
        way()
    dispatch._way.reset(token)


def test_an_image_that_is_too_long_is_left_to_torch(device: torch.device) -> None:
    long = torch.zeros(1, 1, device=device).expand(2, 40000)
    with pytest.raises(ArrCocError, match="a side of 40,000 px is longer than 32,768"):
        chosen("cells", long)
    with using("auto"):
        assert not chosen("cells", long)
