"""Scene changes are found and nothing else is taken for one; global shifts of any distance are found."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import synthetic_clips
from arr_coc.frames.scene import SceneDetector, global_shift


def pixels(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame).permute(2, 0, 1).float() / 255


def detect(frames: list[np.ndarray]) -> list[tuple[int, str]]:
    """The number and kind of each scene change."""
    scenes = SceneDetector()
    images = [pixels(frame) for frame in frames]
    changes = [
        scenes.update(now, lambda after=after: after) for now, after in zip(images, [*images[1:], None], strict=True)
    ]
    return [(number, change.kind) for number, change in enumerate(changes) if change.cut]


@pytest.fixture(scope="module")
def cut_clip() -> synthetic_clips.SyntheticClip:
    return synthetic_clips.draw_clip("cut", 24)


def test_cuts_are_found(cut_clip: synthetic_clips.SyntheticClip) -> None:
    assert detect(cut_clip.frames) == [(number, "cut") for number in cut_clip.cuts]


@pytest.mark.parametrize("name", ["pan", "object", "flash", "zoom", "shake", "noise", "static"])
def test_motion_light_and_noise_are_no_cuts(name: str) -> None:
    assert detect(synthetic_clips.draw_clip(name, 24).frames) == []


def test_a_fast_pan_is_no_cut() -> None:
    assert detect(synthetic_clips.pan(20, step=24).frames) == []


def test_pure_noise_is_no_cut() -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (90, 160, 3), dtype=np.uint8) for _ in range(12)]
    assert [number for number, _ in detect(frames)] in ([], [1])  # the usual similarity is known after the first


def test_a_fade_through_black_is_one_scene_change() -> None:
    clip = synthetic_clips.draw_clip("fade", 40)
    [(number, kind)] = detect(clip.frames)
    assert kind == "fade"
    assert clip.cuts[0] <= number <= clip.cuts[0] + 6


def test_black_frames_within_a_scene_are_no_change() -> None:
    clip = synthetic_clips.draw_clip("static", 12)
    for number in (5, 6, 7):
        clip.frames[number][:] = 0
    assert detect(clip.frames) == []


def test_without_the_next_frame_an_unusual_frame_is_a_cut(cut_clip: synthetic_clips.SyntheticClip) -> None:
    scenes = SceneDetector()
    changes = [scenes.update(pixels(frame)).cut for frame in cut_clip.frames]
    assert [number for number, cut in enumerate(changes) if cut] == list(cut_clip.cuts)


def test_the_next_frame_is_read_only_to_confirm_a_cut(cut_clip: synthetic_clips.SyntheticClip) -> None:
    frames = cut_clip.frames
    scenes, asked = SceneDetector(), []

    def next_frame(number: int) -> torch.Tensor | None:
        asked.append(number)
        return pixels(frames[number + 1]) if number + 1 < len(frames) else None

    for number, frame in enumerate(frames):
        scenes.update(pixels(frame), partial(next_frame, number))
    assert asked == list(cut_clip.cuts)


def test_another_size_is_another_scene() -> None:
    scenes = SceneDetector()
    scenes.update(torch.rand(3, 60, 80))
    assert scenes.update(torch.rand(3, 80, 60)).cut


def luma(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame).float().mean(-1) / 255


def page_views(*places: tuple[float, float]) -> list[torch.Tensor]:
    """Lumas `[240, 320]` of a page, seen from several places."""
    clip = synthetic_clips.film_still(
        "", synthetic_clips.page(), [synthetic_clips.Camera(x, y) for x, y in places], (240, 320)
    )
    return [luma(frame) for frame in clip.frames]


@pytest.mark.parametrize("moved", [(0, 96), (0, -96), (60, 40), (-110, 0)])
def test_a_shift_by_a_third_of_the_frame_is_found(moved: tuple[int, int]) -> None:
    before, after = page_views((280, 500), (280 + moved[0], 500 + moved[1]))
    found = global_shift(before, after)
    assert (found.x, found.y) == pytest.approx(moved, abs=2)
    back = global_shift(after, before)
    assert (back.x, back.y) == pytest.approx((found.inverse.x, found.inverse.y), abs=2)


def test_equal_and_unrelated_pictures_have_no_shift() -> None:
    page = page_views((280, 500))[0]
    street = luma(synthetic_clips.street().pixels[:240, :320])
    for other in (page, street, torch.full_like(page, 0.5)):
        assert global_shift(page, other).is_zero


def test_static_shade_does_not_hide_the_shift_of_a_page() -> None:
    before, after = page_views((280, 500), (280, 560))
    shade = torch.linspace(0.1, 1, 320)[None]
    assert global_shift(before * shade, after * shade).y == pytest.approx(60, abs=2)
