"""Flow by matrices and kernels equals that of `frames/flow.py`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from arr_coc.frames import flow as flows
from arr_coc.texture.kernels import using
from gpu_graphs.flow import PyramidFlow

pytestmark = pytest.mark.usefixtures("large_blocks")


def frames(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    smooth = F.interpolate(torch.rand(1, 1, 8, 10), (33, 40), mode="bicubic", align_corners=False)[0, 0].clamp(0, 1)
    return smooth[2:31, 3:38].contiguous().to(device), smooth[3:32, 1:36].contiguous().to(device)


def test_vectors_and_confidence_are_equal(device: torch.device) -> None:
    before, after = frames(device)
    made = PyramidFlow((29, 35), device).between(before, after)
    with using("torch"):
        back, forth = flows.lucas_kanade(after, before), flows.lucas_kanade(before, after)
        there = flows._sample_torch(forth, back, False)
        missed = flows.magnitude(back + there)
        sure = flows.inside_frame(back).float() / (
            1 + (missed / (flows.MISS + flows.MISS_SHARE * flows.magnitude(back))) ** 2
        )
    assert float(back.abs().amax()) > 0.5
    assert torch.allclose(made.vectors, back, atol=2e-3)
    assert float((made.confidence - sure).abs().mean()) < 1e-3


def test_a_still_picture_has_no_flow(device: torch.device) -> None:
    before, _ = frames(device)
    made = PyramidFlow((29, 35), device).between(before, before)
    assert float(made.vectors.abs().amax()) < 1e-6
    assert float(made.confidence.amin()) > 0.999
