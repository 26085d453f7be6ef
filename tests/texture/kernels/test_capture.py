"""The channels of a batch, and the text detector, can be captured as CUDA graphs: on a GPU that does not exist."""

from __future__ import annotations

import pytest
import torch

from arr_coc.texture import filters
from arr_coc.texture.channels import text
from arr_coc.texture.kernels import dispatch
from arr_coc.texture.kernels.dispatch import TOGETHER
from tests.capturing import DEVICE, Refused, capture, fake_gpu

pytest.importorskip("triton")


@pytest.mark.parametrize("batch", [1, 3])
def test_the_channels_of_a_batch_can_be_captured(batch: int) -> None:
    with fake_gpu() as gpu:
        work = dispatch._ChannelWork(TOGETHER, batch, (64, 80), torch.float32, DEVICE)
        (made,) = capture(work, [torch.rand(batch, 3, 64, 80, device=DEVICE)], owner=work)
        assert made.shape == (batch, len(TOGETHER), 64, 80)
        assert {"_rows", "_stretch"} & set(gpu.launches)


def test_buffers_that_nobody_holds_are_found() -> None:
    """Control: without the work that holds them, its buffers are freed while the graph writes to them."""
    with fake_gpu():
        work = dispatch._ChannelWork(TOGETHER, 1, (64, 80), torch.float32, DEVICE)
        with pytest.raises(Refused, match="neither an input nor made in the capture"):
            capture(work, [torch.rand(1, 3, 64, 80, device=DEVICE)])


@pytest.mark.parametrize("size", [(64, 96), (65, 97)])
def test_the_text_detector_can_be_captured(size: tuple[int, int]) -> None:
    with fake_gpu():
        given = torch.rand(3, *size, device=DEVICE)
        found = capture(lambda pixels: text.text_likelihood(filters.luma(pixels)), [given], [text._weights(DEVICE)])
        assert found.shape == (size[0] // 2, size[1] // 2)


def test_a_kernel_on_a_tensor_of_the_host_is_found() -> None:
    """Control: its pointer would be read on the GPU."""
    with fake_gpu():
        work = dispatch._ChannelWork(TOGETHER, 1, (64, 80), torch.float32, DEVICE)
        with pytest.raises(Refused, match="gets a tensor on cpu"):
            work(torch.rand(1, 3, 64, 80))
