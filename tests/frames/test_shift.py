"""One shift for a whole frame, however far."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.frames import shift as shifting
from arr_coc.relevance import frame_budget as sharing
from arr_coc.video import synthetic as rendering


def luma(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame).float().mean(-1) / 255


def views(*places: tuple[float, float]) -> list[torch.Tensor]:
    """A page from several places, 320 x 240."""
    made = rendering.filmed("", rendering.page(), [rendering.View(x, y) for x, y in places], (240, 320))
    return [luma(frame) for frame in made.frames]


@pytest.mark.parametrize("moved", [(0, 96), (0, -96), (60, 40), (-110, 0)])
def test_a_shift_by_a_third_of_the_frame_is_found(moved: tuple[int, int]) -> None:
    before, after = views((280, 500), (280 + moved[0], 500 + moved[1]))
    found = shifting.shift(before, after)
    assert (found.across, found.down) == pytest.approx(moved, abs=2)
    back = shifting.shift(after, before)
    assert (back.across, back.down) == pytest.approx((found.back.across, found.back.down), abs=2)


def test_what_stands_still_and_what_is_another_picture_have_no_shift() -> None:
    page = views((280, 500))[0]
    street = luma(rendering.street().pixels[:240, :320])
    assert shifting.shift(page, page).still
    assert shifting.shift(page, street).still
    assert shifting.shift(page, torch.full_like(page, 0.5)).still


def test_shade_that_stays_does_not_hide_that_the_page_moves() -> None:
    before, after = views((280, 500), (280, 560))
    shade = torch.linspace(0.1, 1, 320)[None]
    assert shifting.shift(before * shade, after * shade).down == pytest.approx(60, abs=2)


def test_moments_far_apart_on_a_page_show_the_same_lines() -> None:
    """Flow alone takes line for line: a quarter of the page from one moment to the next."""
    frames = rendering.filmed(
        "", rendering.page(), [rendering.View(280, 300 + 120 * number) for number in range(3)], (480, 560)
    ).frames
    links = sharing.linked([torch.from_numpy(one).permute(2, 0, 1).float() / 255 for one in frames], (17, 20))
    assert float(links[0].later[1:11].mean()) > 0.9
    assert float(links[0].later[14:].mean()) < 0.1
    shown = dict(sharing._shown(0, links, torch.Size((17, 20))))
    assert float(shown[2][2:7, 1:-1].mean()) > 0.8
