"""The gate trusts a flow only where the pixels confirm it."""

from __future__ import annotations

import torch

from arr_coc.frames import gate
from arr_coc.frames.flow import Flow


def test_a_flow_that_makes_things_worse_is_rejected() -> None:
    before = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    wrong = Flow(torch.full((2, 64, 64), 3.0), torch.ones(64, 64))
    accepted, worse = gate.reject_flow(wrong, before, before + 0.001)
    assert accepted.is_zero
    assert bool(worse.all())


def test_only_changed_windows_are_stale() -> None:
    before = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    after[:16, 16:32] = 1 - after[:16, 16:32]
    still = Flow(torch.zeros(2, 64, 64), torch.ones(64, 64))
    stale = gate.stale_windows(before, after, still)
    assert stale.nonzero().tolist() == [[0, 1]]
    assert gate.expand_windows(stale, (8, 8)).nonzero().tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]


def test_an_abrupt_change_of_light_is_matched_and_a_small_one_is_left() -> None:
    plane = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) * 0.5
    brighter = plane * 1.2 + 0.1
    assert torch.allclose(gate.match_brightness(plane, brighter), brighter, atol=1e-5)
    assert gate.match_brightness(plane, plane + 0.01) is plane
