"""Optical flow against the ground truth of synthetic clips."""

from __future__ import annotations

import pytest
import torch

import synthetic_clips
from arr_coc.errors import ArrCocError
from arr_coc.frames import flow


def pixels(clip: synthetic_clips.SyntheticClip, number: int) -> torch.Tensor:
    return torch.from_numpy(clip.frames[number]).permute(2, 0, 1).float() / 255


@pytest.mark.parametrize("method", ["dis", "pyramidal"])
@pytest.mark.parametrize("name", ["pan", "zoom", "shake"])
def test_the_true_flow_is_found(name: str, method: flow.Method) -> None:
    clip = synthetic_clips.draw_clip(name, 8)
    known = clip.flows[5]
    assert known is not None
    after = pixels(clip, 5)
    found = flow.upsample(flow.optical_flow(pixels(clip, 4), after, method=method), flow.luma(after))
    missed = torch.linalg.vector_norm(found.vectors - known, dim=0)
    sure = found.confidence > 0.9
    assert float(sure.float().mean()) > 0.3  # a clear sky has no structure
    assert float(missed[sure].median()) < 0.6


@pytest.mark.parametrize("method", ["dis", "pyramidal"])
def test_warping_a_frame_gives_the_next(method: flow.Method) -> None:
    clip = synthetic_clips.draw_clip("pan", 8)
    before, after = pixels(clip, 4), pixels(clip, 5)
    found = flow.upsample(flow.optical_flow(before, after, method=method), flow.luma(after))
    sure = found.confidence > 0.5
    stays = (before - after).abs()[:, sure].mean()
    assert float((flow.warp(before, found) - after).abs()[:, sure].mean()) < 0.4 * float(stays)


def test_pixels_from_outside_have_no_confidence() -> None:
    clip = synthetic_clips.draw_clip("pan", 8)  # the picture moves up: its last rows are new
    found = flow.optical_flow(pixels(clip, 4), pixels(clip, 5)).confidence
    assert float(found[-2:].mean()) < 0.2
    assert float(found[20:-20].mean()) > 0.8


def test_upsampling_follows_edges() -> None:
    coarse = torch.zeros(2, 16, 16)
    coarse[0, :, 8:] = 4.0
    guide = torch.zeros(64, 64)
    guide[:, 32:] = 1.0
    found = flow.upsample(flow.Flow(coarse, torch.ones(16, 16)), guide).vectors[0, 32]
    smooth = flow.Flow(coarse, torch.ones(16, 16)).resize((64, 64)).vectors[0, 32]
    assert found[31] < 0.1
    assert found[32] > 15.9
    assert 1 < smooth[31] < 15  # without the guide both sides mix


def test_equal_frames_have_zero_flow_and_warping_copies_nothing() -> None:
    frame = torch.rand(3, 48, 64)
    found = flow.optical_flow(frame, frame)
    assert found.is_zero
    assert flow.warp(frame, found) is frame


def test_nearest_warping_makes_no_new_ids() -> None:
    ids = torch.arange(12.0).repeat_interleave(4).view(1, 48).expand(48, 48).contiguous()
    moved = flow.Flow(torch.full((2, 48, 48), 0.4), torch.ones(48, 48))
    assert set(flow.warp(ids, moved, nearest=True).unique().tolist()) <= set(range(12))
    assert len(flow.warp(ids, moved).unique()) > 12


def test_flows_compose() -> None:
    first = flow.Flow(torch.full((2, 32, 32), 2.0), torch.full((32, 32), 0.5))
    second = flow.Flow(torch.full((2, 32, 32), -1.0), torch.full((32, 32), 0.5))
    both = flow.compose(first, second)
    assert torch.allclose(both.vectors, torch.ones(2, 32, 32))
    assert torch.allclose(both.confidence, torch.full((32, 32), 0.25))


def test_opencv_and_torch_sample_the_same() -> None:
    values, vectors = torch.rand(2, 40, 56), 3 * torch.rand(2, 40, 56) - 1.5
    by_cv2, by_torch = flow._sample_cv2(values, vectors, False), flow._sample_torch(values, vectors, False)
    assert float((by_cv2 - by_torch).abs().max()) < 0.04  # OpenCV interpolates in steps of 1/32 pixel


@pytest.mark.parametrize(
    ("before", "after", "options", "message"),
    [
        ((8, 8), (8, 9), {}, "of one size"),
        ((8, 8), (8, 8), {"method": "magic"}, "'dis' or 'pyramidal'"),
    ],
)
def test_bad_input_is_rejected(
    before: tuple[int, int], after: tuple[int, int], options: dict[str, str], message: str
) -> None:
    with pytest.raises(ArrCocError, match=message):
        flow.optical_flow(torch.rand(before), torch.rand(after), **options)  # type: ignore[arg-type]


def test_tiny_frames_have_a_flow() -> None:
    assert flow.optical_flow(torch.rand(3, 5, 3), torch.rand(3, 5, 3)).size == (16, 16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gives_the_same_flow() -> None:
    clip = synthetic_clips.draw_clip("pan", 8)
    here = flow.optical_flow(pixels(clip, 4), pixels(clip, 5), method="pyramidal")
    there = flow.optical_flow(pixels(clip, 4).cuda(), pixels(clip, 5).cuda())
    assert float((here.vectors - there.vectors.cpu()).abs().median()) < 0.05
