"""The ground truth of synthetic clips is right."""

from __future__ import annotations

import pytest
import torch

import synthetic_clips
from arr_coc.errors import ArrCocError
from arr_coc.frames import flow


@pytest.mark.parametrize("name", ["pan", "zoom", "shake", "object"])
def test_the_true_flow_warps_each_frame_to_the_next(name: str) -> None:
    clip = synthetic_clips.draw_clip(name, 6)
    before, after = (torch.from_numpy(clip.frames[number]).permute(2, 0, 1).float() for number in (3, 4))
    known = clip.flows[4]
    assert known is not None
    carried = flow.warp(before, flow.Flow(known, torch.ones(known.shape[1:])))
    seen = flow.inside_frame(known)
    assert float((carried - after).abs()[:, seen].mean()) < 3.0


def test_the_evidence_moves_with_the_picture() -> None:
    clip = synthetic_clips.draw_clip("pan", 60)
    seen = [(number, box) for number, box in enumerate(clip.evidence) if box is not None]
    assert seen
    (first, box), (second, later) = seen[5], seen[6]
    known = clip.flows[second]
    assert known is not None
    assert second == first + 1
    assert later[1] - box[1] == pytest.approx(-float(known[1, 0, 0]), abs=0.01)


def test_an_unknown_clip_is_rejected() -> None:
    with pytest.raises(ArrCocError, match="expected a clip among pan"):
        synthetic_clips.draw_clip("chase")
