"""Cuts are found, and nothing else is taken for one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from arr_coc.frames.scene import Scenes
from arr_coc.video import synthetic as rendering


def pixels(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame).permute(2, 0, 1).float() / 255


def found(frames: list[np.ndarray]) -> list[tuple[int, str]]:
    scenes = Scenes()
    made = [pixels(frame) for frame in frames]
    verdicts = [
        scenes.see(frame, lambda after=after: after) for frame, after in zip(made, [*made[1:], None], strict=True)
    ]
    return [(number, verdict.kind) for number, verdict in enumerate(verdicts) if verdict.cut]


def test_cuts_are_found_where_they_are() -> None:
    clip = rendering.rendered("cut", 40)
    assert found(clip.frames) == [(number, "cut") for number in clip.cuts]


@pytest.mark.parametrize("name", ["pan", "object", "flash", "zoom", "shake", "noise", "static"])
def test_nothing_else_is_a_cut(name: str) -> None:
    assert found(rendering.rendered(name, 36).frames) == []


def test_a_fast_pan_is_no_cut() -> None:
    assert found(rendering.pan(20, step=24).frames) == []


def test_pure_noise_is_no_cut() -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (90, 160, 3), dtype=np.uint8) for _ in range(12)]
    assert [number for number, _ in found(frames)] in ([], [1])  # what is usual is known after the first


def test_a_fade_through_black_is_one_new_scene() -> None:
    clip = rendering.rendered("fade", 60)
    [(number, kind)] = found(clip.frames)
    assert kind == "fade"
    assert clip.cuts[0] <= number <= clip.cuts[0] + 6


def test_black_and_back_to_the_same_is_no_new_scene() -> None:
    clip = rendering.rendered("static", 12)
    for number in (5, 6, 7):
        clip.frames[number][:] = 0
    assert found(clip.frames) == []


def test_without_the_next_frame_an_unusual_one_is_a_cut_at_once() -> None:
    clip = rendering.rendered("cut", 40)
    scenes = Scenes()
    verdicts = [scenes.see(pixels(frame)).cut for frame in clip.frames]
    assert [number for number, cut in enumerate(verdicts) if cut] == list(clip.cuts)


def test_the_next_frame_is_asked_for_only_where_a_cut_is_open() -> None:
    clip = rendering.rendered("cut", 16)
    scenes, asked = Scenes(), []

    def following(number: int) -> torch.Tensor | None:
        asked.append(number)
        return pixels(clip.frames[number + 1]) if number + 1 < len(clip.frames) else None

    for number, frame in enumerate(clip.frames):
        scenes.see(pixels(frame), partial(following, number))
    assert asked == list(clip.cuts)


def test_another_size_is_another_scene() -> None:
    scenes = Scenes()
    scenes.see(torch.rand(3, 60, 80))
    assert scenes.see(torch.rand(3, 80, 60)).cut
