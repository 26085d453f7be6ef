"""Planes to colours."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.draw.overlay import RAMPS, colourise, colourise_ids


def test_the_ramps_ends_are_low_and_high() -> None:
    for name, colours in RAMPS.items():
        painted = colourise(torch.tensor([[-9.0, 0.0, 2.0, 99.0]]), name, 0.0, 2.0)
        first, last = ([int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in (colours[0], colours[-1]))
        assert painted[0].tolist() == [first, first, last, last]


def test_ramps_but_the_diverging_one_grow_lighter_all_the_way() -> None:
    for name in RAMPS:
        light = colourise(torch.linspace(0, 1, 256)[None], name, 0, 1)[0] @ np.array([0.299, 0.587, 0.114])
        assert name == "diverging" or (np.diff(light) > -0.6).all(), name


def test_an_empty_range_does_not_divide_by_zero() -> None:
    assert colourise(torch.zeros(2, 2), "ember", 0.0, 0.0).max() <= 15


def test_different_ids_have_different_colours() -> None:
    painted = colourise_ids(torch.arange(60.0)[None])
    assert len({tuple(colour) for colour in painted[0].tolist()}) == 60


def test_ids_need_not_start_at_zero() -> None:
    painted = colourise_ids(torch.tensor([[-1.0, -1.0, 7.0]]))
    assert painted[0, 0].tolist() == painted[0, 1].tolist() != painted[0, 2].tolist()
