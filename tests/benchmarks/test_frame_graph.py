"""Frames of fixed shape: textures equal plain ones, features are warped along the motion."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels import using
from gpu_graphs import flow
from gpu_graphs.frame_graph import FrameGraph

pytestmark = pytest.mark.usefixtures("large_blocks")

LAYOUT = ("red", "highpass", "motion", *(f"embedding_{number:02d}" for number in range(16)))


def clip(device: torch.device) -> torch.Tensor:
    """Three frames `[3, 3, 26, 30]` of a picture that moves to the right by 2 px a frame."""
    torch.manual_seed(8)
    wide = F.interpolate(torch.rand(1, 3, 9, 12), (26, 40), mode="bicubic", align_corners=False)[0].clamp(0, 1)
    return torch.stack([wide[:, :, 6 - 2 * n : 36 - 2 * n] for n in range(3)]).to(device)


def test_textures_equal_plain_ones_and_features_follow_the_motion(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "LK_ITERATIONS", 3)  # enough for 2 px, and faster in the interpreter
    film = clip(device)
    frames = FrameGraph((26, 30), layout=LAYOUT, dtype=torch.float32, device=device, levels=1, features=(13, 15))
    ramp = torch.arange(15.0, device=device).expand(16, 13, 15)
    frames.begin(film[0], ramp)
    frames.next(film[1])
    made = frames.next(film[2])[0]
    with using("torch"):
        plain = TextureArray.from_image(film[2], layout=LAYOUT, max_side=None, supplied={"previous_frame": film[1]})
        for number, name in enumerate(LAYOUT[:3]):
            assert torch.allclose(made[number], plain[name], atol=1e-5), name
    inner = frames.flow.vectors[0, 8:18, 8:22]
    assert float(inner.median()) == pytest.approx(-2, abs=0.3)  # the flow points to the previous position: left
    assert frames.textures.features is not None
    moved = frames.textures.features[0, 0, 6, 5:10] - ramp[0, 6, 5:10]
    assert float(moved.median()) == pytest.approx(-2, abs=0.4)  # two frames, a cell each


def test_wrong_order_and_shape_are_refused(device: torch.device) -> None:
    frames = FrameGraph((16, 16), layout=LAYOUT, device=device, levels=1, features=(4, 4))
    with pytest.raises(ArrCocError, match="expected `begin`"):
        frames.next(torch.zeros(3, 16, 16, device=device))
    frames.begin(torch.rand(3, 16, 16, device=device), torch.rand(16, 4, 4, device=device))
    with pytest.raises(ArrCocError, match=r"expected frames \[3, 16, 16\], got \[3, 16, 17\]"):
        frames.next(torch.zeros(3, 16, 17, device=device))
